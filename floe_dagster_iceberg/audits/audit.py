"""One audit: the rows of an asset on a branch of its table, to be published or rejected."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from pyiceberg.expressions import AlwaysFalse
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef

from floe_dagster_iceberg import run_identity
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, history_of
from floe_dagster_iceberg.audits.table import AuditedTable
from floe_dagster_iceberg.errors import (
    CommitConflictError,
    FloeStorageError,
    NoSuchTableError,
    SnapshotNotFoundError,
    ValidationError,
)
from floe_dagster_iceberg.incremental import changes_read
from floe_dagster_iceberg.io_managers.engines import Engine, SparkEngine
from floe_dagster_iceberg.io_managers.managers import IcebergIOManagerBase, owner_of
from floe_dagster_iceberg.io_managers.output import build_table_write, engine_for
from floe_dagster_iceberg.models import SnapshotInfo, TableIdentifier, WriteMode
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import commit, load_table_or_none, snapshot_id_for
from floe_dagster_iceberg.table.commit.refs import create_ref, new_branch, remove_ref
from floe_dagster_iceberg.table.joint_publication import BranchPublication
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.write.exactly_once import already_written
from floe_dagster_iceberg.table.write.handover import HandoverProvider
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, describe_written

AUDIT_PREFIX: Final = "floe-audit-"
REJECTED_PREFIX: Final = "floe-rejected-"
REJECTED_KEPT: Final = timedelta(days=7)
"""After this long, the next expiry removes a branch with rejected rows."""
_KEY_DIGITS: Final = 16


@dataclass(frozen=True, eq=False)
class AuditedWrite:
    """The rows of an asset, and how they are written to the branch of their audit.

    Attributes:
        io_manager: What stores the asset.
        engine: What writes the rows.
        output: The output of the asset.
        data: The rows.
        write: The write, as it would go to the target without an audit.
    """

    io_manager: IcebergIOManagerBase
    engine: Engine
    output: dg.OutputContext
    data: Any
    write: TableWrite

    @classmethod
    def of(cls, io_manager: IcebergIOManagerBase, output: dg.OutputContext, data: Any) -> "AuditedWrite":
        notes = run_identity.notes_of_step(output)
        write = build_table_write(io_manager, output, changes_read(owner_of(output), notes) if notes else {})
        if write.branch != MAIN_BRANCH and write.environment is None:
            raise ValidationError(
                f"'{write.table}' is written to branch '{write.branch}', and an audited asset publishes to "
                f"'{MAIN_BRANCH}'. Leave iceberg/branch out.",
                table=write.table,
            )
        return cls(io_manager, engine_for(io_manager, data, output), output, data, write)

    @property
    def branch(self) -> str:
        """The branch of the audit, the same for every attempt."""
        return f"{AUDIT_PREFIX}{(self.write.idempotency_key or '')[:_KEY_DIGITS]}"

    @property
    def on_branch(self) -> TableWrite:
        """The write to that branch."""
        return replace(self.write, branch=self.branch)

    @property
    def handover(self) -> HandoverProvider | None:
        """Spark, if the IO manager has it, for tables that PyIceberg cannot commit to."""
        return next((engine.handover for engine in self.io_manager.engines() if isinstance(engine, SparkEngine)), None)

    @property
    def manager(self) -> IcebergTableManager:
        """The manager of the table."""
        manager = self.io_manager.iceberg.table_manager
        return manager if self.handover is None else manager.with_handover(self.handover)

    def find(self) -> "Audit | None":
        """The audit that an earlier attempt began; None if its rows are neither on the branch nor on the target."""
        table = load_table_or_none(self.manager.catalog, self.write.table)
        if table is None:
            return None
        if (published := already_written(table, self.write)) is not None:
            return Audit(self, published, is_published=True)
        staged = already_written(table, self.on_branch) if self.branch in table.metadata.refs else None
        return None if staged is None else Audit(self, staged)

    def run(self) -> "Audit":
        """Write the rows to the branch."""
        if self.write.branch != MAIN_BRANCH:
            self._begin_in_environment()
        write, output = self.on_branch, self.output
        # The snapshot's trace is that of the operation that writes it.
        known = {
            attrs.CATALOG: self.io_manager.iceberg.catalog_name,
            **run_identity.describe_run(output),
            **describe_table(write.table),
            attrs.ENGINE: self.engine.name,
        }
        with run_identity.telemetry_of(output).operation("write_for_audit", known) as operation:
            result = self.engine.write(self.data, write, lambda repair: output.log.warning(str(repair)))
            operation.set_attributes(describe_written(result.snapshot))
            rows = counted(result.snapshot.added_records, "row")
            already = ", written by an earlier attempt" if result.deduplicated else ""
            operation.sentence = f"{write.table}: {rows} to check on branch '{write.branch}'{already}"
        return Audit(self, result)

    def remove_branch(self) -> None:
        """Remove the branch, if it is there."""
        try:
            self.manager.remove_ref(self.write.table, self.branch)
        except (SnapshotNotFoundError, NoSuchTableError, CommitConflictError):
            # Another attempt has removed it, or will.
            return

    def _begin_in_environment(self) -> None:
        """Let the branch begin where that of the environment stands; without one, it begins at main."""
        table = load_table_or_none(self.manager.catalog, self.write.table)
        if table is not None and (own := table.metadata.refs.get(self.write.branch)) is not None:
            self.ensure_branch(table, self.branch, own)

    def ensure_branch(self, table: Table, name: str, ref: SnapshotRef) -> None:
        """Create a branch where another one stands, unless it exists."""

        def create(transaction: TableTransaction) -> None:
            if name not in transaction.table_metadata.refs:
                create_ref(transaction, str(self.write.table), name, ref.snapshot_id, new_branch(ref.snapshot_id))

        with translate_errors(table.catalog.name, table=self.write.table):
            commit(table, create, budget=self.manager.budget, through=self.handover)


@dataclass(frozen=True, eq=False)
class Audit:
    """Rows on a branch of their table, to be published or rejected.

    Attributes:
        of: How they were written.
        result: The write to the branch.
        is_published: Whether an earlier attempt at the same work has published them.
    """

    of: AuditedWrite
    result: TableWriteResult
    is_published: bool = False

    @property
    def output(self) -> dg.OutputContext:
        """The output of the asset."""
        return self.of.output

    @property
    def table(self) -> TableIdentifier:
        """The table."""
        return self.of.write.table

    @property
    def audited(self) -> AuditedTable:
        """What the checks get."""
        write = self.of.write
        return AuditedTable(
            write.table,
            self.of.branch,
            self.result.snapshot,
            write.scope,
            self.result.table,
            self.of.io_manager,
            _target=write.branch,
        )

    def publication(self) -> BranchPublication | TableWriteResult:
        """What publishes the rows; the result, if another attempt has published them meanwhile."""
        write, manager = self.of.write, self.of.manager
        table = manager.load_table(write.table)
        if (published := already_written(table, write)) is not None:
            self.of.remove_branch()
            return published
        refs = table.metadata.refs
        # The first write of an environment to this table; as elsewhere, its branch begins at main, if there is one.
        begin = refs.get(MAIN_BRANCH) or refs.get(self.of.branch)
        if write.branch != MAIN_BRANCH and write.branch not in refs and begin is not None:
            self.of.ensure_branch(table, write.branch, begin)
        return BranchPublication(
            table,
            self.of.branch,
            write.branch,
            self.result.snapshot.snapshot_id,
            snapshot_id=snapshot_id_for(f"{write.idempotency_key}#publication", table.metadata),
            snapshot_properties=write.summary_properties,
            replaces=AlwaysFalse() if write.mode is WriteMode.APPEND else write.scope.expression(table.schema()),
            precondition=write.precondition,
        )

    def reject(self) -> str | None:
        """Keep the rows under another name, so that later attempts at the same work do not find them.

        A table that was made for the rows is dropped.

        Returns:
            The branch that keeps them; None if the table was dropped.
        """
        manager, identifier, branch = self.of.manager, self.of.write.table, self.of.branch
        table = manager.load_table(identifier)
        if self._is_new(table):
            self._drop_table()
            return None
        rejected = new_branch(self.result.snapshot.snapshot_id).model_copy(
            update={"max_ref_age_ms": REJECTED_KEPT // timedelta(milliseconds=1)}
        )
        kept: list[str] = []

        def rename(transaction: TableTransaction) -> None:
            kept[:] = [_free_name(branch.replace(AUDIT_PREFIX, REJECTED_PREFIX), list(transaction.table_metadata.refs))]
            create_ref(transaction, str(identifier), kept[0], rejected.snapshot_id, rejected)
            remove_ref(transaction, str(identifier), branch)

        with translate_errors(table.catalog.name, table=identifier):
            commit(table, rename, budget=manager.budget, through=self.of.handover)
        return kept[0]

    def discard(self) -> None:
        """Remove the rows, after those of another table could not be written; a table that was made for them as well.

        If that fails, it is the first failure that counts: the rows are hidden, and a retry finds or replaces them.
        """
        try:
            if self._is_new(self.of.manager.load_table(self.table)):
                self._drop_table()
            else:
                self.of.remove_branch()
        except FloeStorageError:
            return

    def _drop_table(self) -> None:
        try:
            self.of.manager.drop_table(self.table, purge=True)
        except FloeStorageError as error:
            if error.retryable:
                raise
            # Some servers let nobody delete files; without its entry, the table is gone all the same.
            self.of.manager.drop_table(self.table)

    def _is_new(self, table: Table) -> bool:
        """Whether the table has nothing but these rows, and the empty snapshot that their branch began at."""
        metadata = table.metadata
        own = set(metadata.refs) <= {MAIN_BRANCH, self.of.branch}
        main = metadata.current_snapshot()
        is_empty = main is None or (
            main.parent_snapshot_id is None and not SnapshotInfo.from_pyiceberg_snapshot(main).total_records
        )
        ours = {each.snapshot_id for each in history_of(metadata, metadata.snapshot_by_name(self.of.branch))}
        return own and is_empty and {each.snapshot_id for each in metadata.snapshots} <= ours


def _free_name(name: str, taken: Sequence[str]) -> str:
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
    return next(each for each in names if each not in taken)

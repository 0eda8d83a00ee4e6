"""One audit: rows on a branch, the results of checks, and then a publication or a rejection."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, get_type_hints

import dagster as dg
from pyiceberg.expressions import AlwaysFalse
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg import run_identity
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, history_of
from floe_dagster_iceberg.audits.checks import AuditCheck
from floe_dagster_iceberg.audits.table import AuditedTable
from floe_dagster_iceberg.errors import (
    AuditFailedError,
    CommitConflictError,
    FloeStorageError,
    SnapshotNotFoundError,
    ValidationError,
)
from floe_dagster_iceberg.failures import dagster_failures, to_failure
from floe_dagster_iceberg.incremental import changes_read
from floe_dagster_iceberg.io_managers.engines import Engine, SparkEngine, StagedWrite
from floe_dagster_iceberg.io_managers.managers import IcebergIOManagerBase, name_of, owner_of
from floe_dagster_iceberg.io_managers.output import build_table_write, engine_for
from floe_dagster_iceberg.models import SnapshotInfo, WriteMode
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import commit, load_table_or_none, snapshot_id_for
from floe_dagster_iceberg.table.commit.refs import create_ref, new_branch, remove_ref
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.publication import publish
from floe_dagster_iceberg.table.write.exactly_once import already_written
from floe_dagster_iceberg.table.write.handover import HandoverProvider
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, describe_written

AUDIT_PREFIX: Final = "floe-audit-"
REJECTED_PREFIX: Final = "floe-rejected-"
REJECTED_KEPT: Final = timedelta(days=7)
"""After this long, the next expiry removes a branch with rejected rows."""
_KEY_DIGITS: Final = 16


def audit_output(context: dg.AssetExecutionContext, checks: Sequence[AuditCheck], value: Any) -> Iterator[Any]:
    """Write an asset's value to a branch and check it; yields the results, and then the output that publishes it."""
    data, metadata = _unwrap(value)
    output, io_manager = run_identity.output_of(context, metadata)
    if not isinstance(io_manager, IcebergIOManagerBase):
        raise ValidationError(
            f"Audited asset '{context.asset_key.to_user_string()}' is stored by {name_of(type(io_manager))}. Give it "
            "an IO manager of floe_dagster_iceberg."
        )
    with dagster_failures(output):
        if data is None:
            raise ValidationError(
                f"Audited asset '{context.asset_key.to_user_string()}' returned None: there is nothing to audit. "
                "Return rows, or an empty DataFrame."
            )
        audit = Audit.begin(io_manager, output, data)
    found = []
    for check in checks:
        with dagster_failures(output):
            found.append(_evaluate(check, audit.audited))
        yield found[-1]
    errors = [result.check_name for result in found if _blocks(result)]
    if errors and not audit.is_published:
        with dagster_failures(output):
            raise to_failure(audit.reject([str(name) for name in errors]))
    yield dg.Output(audit.staged_write(len(found)), metadata=metadata)


def _unwrap(value: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(value, dg.Output | dg.MaterializeResult):
        return value.value, dict(value.metadata or {})
    return value, {}


def _blocks(result: dg.AssetCheckResult) -> bool:
    return not result.passed and result.severity is dg.AssetCheckSeverity.ERROR


def _evaluate(check: AuditCheck, audited: AuditedTable) -> dg.AssetCheckResult:
    """The result of a check; one that fails to run has failed."""
    shown = {"iceberg/audit_snapshot_id": dg.MetadataValue.text(str(audited.snapshot.snapshot_id))}
    try:
        result = _to_result(check, check.function(_argument(check, audited)))
    except (dg.Failure, dg.RetryRequested):
        raise
    except Exception as error:
        # Whatever a check raises, its rows are not published.
        if isinstance(error, FloeStorageError) and error.retryable:
            raise
        # Not its message: libraries that check rows quote them.
        where = traceback.extract_tb(error.__traceback__)[-1]
        return dg.AssetCheckResult(
            passed=False,
            check_name=check.name,
            description=str(error)
            if isinstance(error, FloeStorageError)
            else f"The check raised {type(error).__name__} in {where.name}, line {where.lineno} of {where.filename}.",
            metadata={**shown, "iceberg/error": dg.MetadataValue.text(type(error).__name__)},
        )
    return dg.AssetCheckResult(
        passed=result.passed,
        check_name=check.name,
        metadata={**shown, **result.metadata},
        # A check that is declared a warning never blocks.
        severity=check.severity if check.severity is dg.AssetCheckSeverity.WARN else result.severity,
        description=result.description,
    )


def _argument(check: AuditCheck, audited: AuditedTable) -> Any:
    hints = get_type_hints(check.function)
    hints.pop("return", None)
    annotation = next(iter(hints.values()), AuditedTable)
    return audited if annotation is AuditedTable else audited.read_as(annotation)


def _to_result(check: AuditCheck, returned: Any) -> dg.AssetCheckResult:
    if isinstance(returned, dg.AssetCheckResult):
        return returned
    if hasattr(returned, "success"):
        returned = returned.success
    # NumPy and pandas have a bool of their own.
    if type(returned).__name__ not in {"bool", "bool_"}:
        raise ValidationError(
            f"Check '{check.name}' returned a {name_of(type(returned))}. Return a bool, an AssetCheckResult, or a "
            "result with 'success'."
        )
    return dg.AssetCheckResult(passed=bool(returned), severity=check.severity)


@dataclass(frozen=True)
class Audit:
    """Rows on a branch of their table, to be published or rejected.

    Attributes:
        io_manager: What stores the asset.
        engine: What wrote the rows.
        write: The write, as it would go to the target without an audit.
        branch: The branch with the rows.
        result: The write to the branch.
        is_published: Whether an earlier attempt at the same work has published them.
    """

    io_manager: IcebergIOManagerBase
    engine: Engine
    write: TableWrite
    branch: str
    result: TableWriteResult
    is_published: bool = False

    @classmethod
    def begin(cls, io_manager: IcebergIOManagerBase, output: dg.OutputContext, data: Any) -> "Audit":
        """Write the rows to the branch of this work, unless an earlier attempt has."""
        notes = run_identity.notes_of_step(output)
        write = build_table_write(io_manager, output, changes_read(owner_of(output), notes) if notes else {})
        engine, manager = engine_for(io_manager, data, output), io_manager.iceberg.table_manager
        branch = f"{AUDIT_PREFIX}{(write.idempotency_key or '')[:_KEY_DIGITS]}"
        table = load_table_or_none(manager.catalog, write.table)
        if table is not None and (published := already_written(table, write)) is not None:
            return cls(io_manager, engine, write, branch, published, is_published=True)
        if write.branch != MAIN_BRANCH and write.environment is None:
            raise ValidationError(
                f"'{write.table}' is written to branch '{write.branch}', and an audited asset publishes to "
                f"'{MAIN_BRANCH}'. Leave iceberg/branch out.",
                table=write.table,
            )
        if table is not None and write.branch != MAIN_BRANCH and branch not in table.metadata.refs:
            _begin_in_environment(manager, table, write, branch)
        on_branch = replace(write, branch=branch)
        # The snapshot's trace is that of the operation that writes it.
        known = {
            attrs.CATALOG: io_manager.iceberg.catalog_name,
            **run_identity.describe_run(output),
            **describe_table(write.table),
            attrs.ENGINE: engine.name,
        }
        with run_identity.telemetry_of(output).operation("write_for_audit", known) as operation:
            result = engine.write(data, on_branch, lambda repair: output.log.warning(str(repair)))
            operation.set_attributes(describe_written(result.snapshot))
            rows = counted(result.snapshot.added_records, "row")
            already = ", written by an earlier attempt" if result.deduplicated else ""
            operation.sentence = f"{write.table}: {rows} to check on branch '{branch}'{already}"
        return cls(io_manager, engine, write, branch, result)

    @property
    def _handover(self) -> HandoverProvider | None:
        """Spark, if the IO manager has it, for tables that PyIceberg cannot commit to."""
        return next((engine.handover for engine in self.io_manager.engines() if isinstance(engine, SparkEngine)), None)

    @property
    def _manager(self) -> IcebergTableManager:
        manager = self.io_manager.iceberg.table_manager
        return manager if self._handover is None else manager.with_handover(self._handover)

    @property
    def audited(self) -> AuditedTable:
        """What the checks get."""
        return AuditedTable(
            self.write.table,
            self.branch,
            self.result.snapshot,
            self.write.scope,
            self.result.table,
            self.io_manager,
            _target=self.write.branch,
        )

    def staged_write(self, checks: int) -> StagedWrite:
        """The output whose handling publishes the rows."""
        metadata = {
            "iceberg/audit_snapshot_id": dg.MetadataValue.text(str(self.result.snapshot.snapshot_id)),
            "iceberg/audit_checks": dg.MetadataValue.int(checks),
        }
        return StagedWrite(self.engine, self._published if self.is_published else self.publish, metadata)

    def _published(self) -> TableWriteResult:
        return self.result

    def publish(self) -> TableWriteResult:
        """Put the rows onto the target, in one commit.

        Raises:
            CommitConflictError: Rows that are being replaced have changed. The branch is removed: an attempt that comes
                later has to write the rows again.
        """
        write, manager = self.write, self._manager
        table = manager.load_table(write.table)
        if write.branch != MAIN_BRANCH and write.branch not in table.metadata.refs:
            # The first write of an environment to this table; as elsewhere, its branch begins at main.
            manager.create_branch(table, write.branch)
        schema, key = table.schema(), f"{write.idempotency_key}#publication"
        try:
            snapshot = publish(
                table,
                branch=self.branch,
                target=write.branch,
                budget=manager.budget,
                head_snapshot_id=self.result.snapshot.snapshot_id,
                snapshot_id=snapshot_id_for(key, table.metadata),
                snapshot_properties=write.summary_properties,
                replaces=AlwaysFalse() if write.mode is WriteMode.APPEND else write.scope.expression(schema),
                through=self._handover,
                precondition=write.precondition,
            )
        except CommitConflictError:
            self._remove_branch()
            raise
        return replace(self.result, table=table, snapshot=SnapshotInfo.from_pyiceberg_snapshot(snapshot))

    def reject(self, failed: Sequence[str]) -> AuditFailedError:
        """Keep the rows under another name, so that later attempts at the same work do not find them.

        A table that was made for the rows is dropped.
        """
        manager, identifier = self._manager, self.write.table
        table = manager.load_table(identifier)
        if self._is_new(table):
            manager.drop_table(identifier, purge=True)
            return AuditFailedError(identifier, checks=failed, branch=None)
        kept = self.branch.replace(AUDIT_PREFIX, REJECTED_PREFIX)
        names = (kept, *(f"{kept}-{number}" for number in range(2, len(table.metadata.refs) + 3)))
        kept = next(name for name in names if name not in table.metadata.refs)
        rejected = new_branch(self.result.snapshot.snapshot_id).model_copy(
            update={"max_ref_age_ms": REJECTED_KEPT // timedelta(milliseconds=1)}
        )

        def rename(transaction: TableTransaction) -> None:
            create_ref(transaction, str(identifier), kept, rejected.snapshot_id, rejected)
            remove_ref(transaction, str(identifier), self.branch)

        with translate_errors(table.catalog.name, table=identifier):
            commit(table, rename, budget=manager.budget, through=self._handover)
        return AuditFailedError(identifier, checks=failed, branch=kept)

    def _is_new(self, table: Table) -> bool:
        """Whether the table has nothing but these rows, and the empty snapshot that their branch began at."""
        metadata = table.metadata
        own = set(metadata.refs) <= {MAIN_BRANCH, self.branch}
        main = metadata.current_snapshot()
        is_empty = main is None or (
            main.parent_snapshot_id is None and not SnapshotInfo.from_pyiceberg_snapshot(main).total_records
        )
        ours = {each.snapshot_id for each in history_of(metadata, metadata.snapshot_by_name(self.branch))}
        return own and is_empty and {each.snapshot_id for each in metadata.snapshots} <= ours

    def _remove_branch(self) -> None:
        try:
            self._manager.remove_ref(self.write.table, self.branch)
        except (SnapshotNotFoundError, CommitConflictError):
            # Another attempt has removed it, or will.
            return


def _begin_in_environment(manager: IcebergTableManager, table: Table, write: TableWrite, branch: str) -> None:
    """Let the branch of an audit begin where that of its environment stands; without one, it begins at main."""
    if (own := table.metadata.refs.get(write.branch)) is not None:
        manager.create_branch(table, branch, own.snapshot_id)
        table.refresh()

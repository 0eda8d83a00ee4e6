"""Iceberg's procedures, called through a Spark session.

Values are passed as parameters, so the text of a call has none and can be logged.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyspark.sql import Column, SparkSession, functions as sf

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.models import CompactionPolicy, MaintenanceOperation, TableIdentifier, snapshot_properties
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, FailureKind, kind_of, name_of, redacted, to_error
from floe_dagster_iceberg.spark.filters import to_condition
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.types import quote, spark_table
from floe_dagster_iceberg.table.maintenance.compaction_plan import LARGE_FILE_RATIO
from floe_dagster_iceberg.telemetry import Operation, attributes as attrs, describe_table, step, trace_properties

SparkProvider: TypeAlias = Callable[[], SparkSession]
"""Returns the session to use; called when Spark is first needed, which is what starts it."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMPACTION: Final = ("rewrite_data_files", "rewrite_position_delete_files")

# Iceberg's message for a snapshot that got a branch or tag after we chose it.
_STILL_REFERENCED: Final = "Still referenced by refs"


@dataclass(frozen=True)
class ProcedureResult:
    """The call, without values, and the rows that it returned."""

    statement: str
    rows: Sequence[Mapping[str, Any]]

    def count(self, column: str) -> int:
        """A number of the first row; 0 if it is missing."""
        return int(self.rows[0].get(column) or 0) if self.rows else 0

    def total(self, prefix: str) -> int:
        """The sum of the columns of the first row that begin with a prefix."""
        return sum(self.count(column) for column in (self.rows[0] if self.rows else ()) if column.startswith(prefix))


class SparkProcedures:
    """The procedures of one catalog.

    Args:
        session: A session with the catalog.
        catalog: Name of the catalog, the same as PyIceberg's.
        snapshot_properties: Stored in every snapshot that a procedure creates.
    """

    def __init__(
        self, session: SparkSession, catalog: str, snapshot_properties: Mapping[str, str] | None = None
    ) -> None:
        self._session, self._catalog = session, catalog
        self._snapshot_properties = dict(snapshot_properties or {})

    def rewrite_data_files(
        self,
        table: TableIdentifier,
        policy: CompactionPolicy,
        *,
        schema: Schema,
        row_filter: BooleanExpression | None = None,
    ) -> ProcedureResult:
        target = policy.target_file_size_bytes
        options = {
            "target-file-size-bytes": target,
            "min-file-size-bytes": int(target * policy.small_file_ratio),
            "max-file-size-bytes": int(target * LARGE_FILE_RATIO),
            "min-input-files": policy.min_input_files,
            "max-concurrent-file-group-rewrites": policy.max_concurrent_file_group_rewrites,
            "partial-progress.enabled": policy.partial_progress,
            # Deletes that do not apply to any file; PyIceberg cannot read tables that have equality deletes.
            "remove-dangling-deletes": policy.rewrite_position_deletes,
        }
        arguments: dict[str, Any] = {"options": _options(options)}
        if policy.strategy is not policy.strategy.BIN_PACK:
            columns = ", ".join(quote(*column.split(".")) for column in policy.sort_columns)
            z_order = policy.strategy is policy.strategy.Z_ORDER
            arguments |= {"strategy": "sort", "sort_order": f"zorder({columns})" if z_order else columns}
        if row_filter is not None and not isinstance(row_filter, AlwaysTrue):
            arguments["where"] = to_condition(row_filter, schema)
        return self._call("rewrite_data_files", table, arguments, operation=MaintenanceOperation.COMPACTION)

    def rewrite_position_delete_files(self, table: TableIdentifier, policy: CompactionPolicy) -> ProcedureResult:
        """Rewrite position delete files, and drop positions in files that are gone."""
        options = {"min-input-files": policy.min_input_files, "rewrite-all": False}
        return self._call(
            "rewrite_position_delete_files",
            table,
            {"options": _options(options)},
            operation=MaintenanceOperation.POSITION_DELETES,
        )

    def rewrite_manifests(self, table: TableIdentifier) -> ProcedureResult:
        return self._call("rewrite_manifests", table, {}, operation=MaintenanceOperation.MANIFESTS)

    def expire_snapshots(self, table: TableIdentifier, snapshot_ids: Sequence[int]) -> ProcedureResult:
        """Expire exactly these snapshots, and delete the files that only they reference.

        Raises:
            CommitConflictError: One of them got a branch or tag meanwhile.
        """
        # The plan alone decides about age: no snapshot is older than this.
        arguments: dict[str, Any] = {"older_than": _EPOCH}
        if snapshot_ids:
            arguments["snapshot_ids"] = sf.array(*(sf.lit(each) for each in snapshot_ids))
        return self._call("expire_snapshots", table, arguments)

    def find_orphan_files(self, table: TableIdentifier, *, older_than: datetime) -> list[str]:
        """List the locations of orphan files; nothing is deleted."""
        result = self._call("remove_orphan_files", table, {"older_than": older_than, "dry_run": True})
        return [str(row["orphan_file_location"]) for row in result.rows]

    def create_changelog_view(
        self,
        table: TableIdentifier,
        view: str,
        *,
        start: int | None,
        end: int,
        net_changes: bool = False,
        identifier_columns: Sequence[str] = (),
    ) -> None:
        """Create a temporary view of the changes after one snapshot, or since the first, up to another."""
        options = {"end-snapshot-id": end} if start is None else {"start-snapshot-id": start, "end-snapshot-id": end}
        arguments: dict[str, Any] = {"changelog_view": view, "options": _options(options), "net_changes": net_changes}
        if identifier_columns:
            keys = sf.array(*(sf.lit(column) for column in identifier_columns))
            arguments |= {"compute_updates": True, "identifier_columns": keys}
        self._call("create_changelog_view", table, arguments)

    def set_properties(self, table: TableIdentifier, properties: Mapping[str, str]) -> None:
        pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        try:
            with _span("set_properties", table):
                self._session.sql(f"ALTER TABLE {spark_table(self._catalog, table)} SET TBLPROPERTIES ({pairs})")
        except SPARK_ERRORS as error:
            raise _to_error(error, "ALTER TABLE", catalog=self._catalog, table=table) from redacted(error)

    def _call(
        self,
        procedure: str,
        table: TableIdentifier,
        arguments: Mapping[str, Any],
        *,
        operation: MaintenanceOperation | None = None,
    ) -> ProcedureResult:
        values = {"table": spark_table(self._catalog, table), **arguments}
        named = ", ".join(f"{name} => :{name}" for name in values)
        statement = f"CALL {quote(self._catalog)}.system.{procedure}({named})"
        try:
            with _span(procedure, table), self._snapshot_properties_for(operation), warnings.catch_warnings():
                # PySpark leaves the socket of a result to the garbage collector, which warns about it.
                warnings.filterwarnings("ignore", message="unclosed <socket", category=ResourceWarning)
                rows = run_action(self._session, lambda: self._session.sql(statement, args=values).collect())
        except SPARK_ERRORS as error:
            raise _to_error(error, procedure, catalog=self._catalog, table=table) from redacted(error)
        return ProcedureResult(statement, [row.asDict() for row in rows])

    @contextmanager
    def _snapshot_properties_for(self, operation: MaintenanceOperation | None) -> Iterator[None]:
        """Make snapshots name the operation and the run.

        Procedures take no snapshot properties. Iceberg adds its environment's to every snapshot; only a
        session in this process can set those, Spark Connect cannot.
        """
        jvm = getattr(self._session, "_jvm", None)
        if jvm is None or operation is None:
            yield
            return
        environment = jvm.org.apache.iceberg.EnvironmentContext
        properties = {
            snapshot_properties.MAINTENANCE_OPERATION: operation.value,
            **self._snapshot_properties,
            **trace_properties(),
        }
        for name, value in properties.items():
            environment.put(name, value)
        try:
            yield
        finally:
            for name in properties:
                environment.remove(name)


def _span(procedure: str, table: TableIdentifier) -> AbstractContextManager[Operation]:
    return step(procedure, {**describe_table(table), attrs.ENGINE: "spark"})


def _options(options: Mapping[str, object]) -> Column:
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in options.values()]
    return sf.create_map(*(sf.lit(text) for pair in zip(options, texts, strict=True) for text in pair))


def _to_error(error: BaseException, procedure: str, *, catalog: str, table: TableIdentifier) -> errors.FloeStorageError:
    match kind_of(error):
        case FailureKind.ROWS_CHANGED | FailureKind.COMMIT_LOST:
            return errors.CommitConflictError(
                table, attempts=1, reason="another writer changed files that were being rewritten"
            )
        case FailureKind.OUTCOME_UNKNOWN:
            return errors.CommitOutcomeUnknownError(table, snapshot_id=None, reason=f"{procedure}: {name_of(error)}")
        case FailureKind.TABLE_GONE:
            return errors.NoSuchTableError(table)
        case FailureKind.NO_ACCESS | FailureKind.NO_CATALOG | FailureKind.NO_RUNTIME:
            return to_error(error, catalog=catalog, table=table)
    if _STILL_REFERENCED in str(error):
        return errors.CommitConflictError(table, attempts=1, reason="an expiring snapshot got a branch or tag")
    error_type = errors.CompactionError if procedure in _COMPACTION else errors.IcebergError
    return error_type(
        f"Spark's procedure {procedure} failed for '{table}' ({name_of(error)}). See the cause below; "
        "what it committed before stays.",
        table=table,
    )

"""The engines of the IO managers: Arrow and Spark, behind one protocol."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.transaction import find_snapshot
from floe_dagster_iceberg.asset_settings import InputSettings
from floe_dagster_iceberg.errors import NoSuchTableError, ScanError, ValidationError
from floe_dagster_iceberg.models import OperationType, SnapshotInfo, TableIdentifier
from floe_dagster_iceberg.models.partition_slice import PartitionSlice
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.table.arrow_input import ACCEPTED_TYPES, to_arrow_rows
from floe_dagster_iceberg.table.filter.partition_slice import DEFAULT_NAIVE_TIMEZONE, to_expression
from floe_dagster_iceberg.table.filter.row_filter import CheckedFilter, to_row_filter
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.manager.changes import TableChanges
from floe_dagster_iceberg.table.manager.repair import OnRepair
from floe_dagster_iceberg.table.manager.scan import branch_to_read, version_to_read
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.handover import Handover, HandoverProvider
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ChangesPlanner: TypeAlias = Callable[[Table, BooleanExpression], TableChanges]
"""Finds what changed in a table, of the rows that match a filter."""


@dataclass(frozen=True)
class ReadVersion:
    """A snapshot to read, None is the newest of main; if `only_added`, only the rows that it added."""

    snapshot_id: int | None
    only_added: bool = False


@dataclass(frozen=True)
class ReadRequest:
    """Which rows of which table an input asks for.

    Attributes:
        table: The table.
        rows: The rows of the upstream partitions.
        settings: Columns, filter and version.
        naive_timezone: Time zone of timestamps that have none.
        written: Properties of the snapshot to read, which a step of this run wrote; None reads what `settings` say, and
            so does an asset that this run has not written.
        output: The op's output that was written, in words; None for an asset.
        is_upsert: Whether that output is upserted into rows of other runs.
        empty_schema: Columns of the empty result for a missing table, as for an asset that reads its own earlier
            partition in its first run; None if a missing table is an error.
        plan_changes: Finds what changed, for an input that reads changes instead of rows.
        environment: The environment whose branch is read where the table has one.
    """

    table: TableIdentifier
    rows: PartitionSlice
    settings: InputSettings = field(default_factory=InputSettings)
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE
    empty_schema: Schema | None = None
    plan_changes: "ChangesPlanner | None" = None
    written: Mapping[str, Collection[str]] | None = None
    output: str | None = None
    is_upsert: bool = False
    environment: str | None = None

    def version(self, table: Table) -> "ReadVersion":
        """The snapshot to read.

        Raises:
            ValidationError: The branch is a tag, or the tag a branch.
            SnapshotNotFoundError: There is no such version.
            ScanError: The output of the op is not there any more.
        """
        settings, branch = self.settings, branch_to_read(table, self.settings.branch, self.environment)
        snapshot = None if self.written is None else self._find_written(table, branch, self.written)
        if snapshot is not None:
            # An append has added its rows to those of other runs.
            is_append = SnapshotInfo.from_pyiceberg_snapshot(snapshot).operation is OperationType.APPEND
            only_added = self.output is not None and is_append and not self.is_upsert
            return ReadVersion(snapshot.snapshot_id, only_added=only_added)
        if self.output is not None:
            raise ScanError(
                f"{self.output} is not in '{self.table}': it was None, or its snapshot has expired. "
                "Run that step again.",
                table=self.table,
            )
        return ReadVersion(
            version_to_read(
                table,
                snapshot_id=settings.snapshot_id,
                as_of=settings.as_of,
                branch=branch,
                tag=settings.tag,
            )
        )

    def _find_written(
        self, table: Table, branch: str | None, written: Mapping[str, Collection[str]]
    ) -> Snapshot | None:
        """The snapshot that a step of this run wrote, on the branch of its asset or the one that its output named."""
        branches = [branch or MAIN_BRANCH]
        if branch is None:
            refs = table.metadata.refs.items()
            branches += [name for name, ref in refs if ref.snapshot_ref_type is SnapshotRefType.BRANCH]
        found = (find_snapshot(table.metadata, name, written) for name in dict.fromkeys(branches))
        return next((snapshot for snapshot in found if snapshot is not None), None)

    def row_filter(self, table: Table) -> BooleanExpression:
        """The filter that selects the rows, in terms of the table's columns.

        Raises:
            ValidationError: The input's own filter does not fit the table, or a partition column is missing.
        """
        rows = to_expression(self.rows, table.schema(), naive_timezone=self.naive_timezone)
        asked = self.settings.row_filter
        return rows if asked is None else And(rows, to_row_filter(table, asked))


class Engine(Protocol):
    """Moves rows between data of its own types and tables."""

    name: str
    accepted_types: str
    loadable_types: str

    def accepts(self, data: Any) -> bool:
        """Whether it can write this type of data."""

    def write(self, data: Any, write: TableWrite, on_repair: OnRepair | None = None) -> TableWriteResult:
        """Write data into its table, exactly once; `on_repair` is called if its metadata had to be repaired."""

    def loads(self, annotation: Any) -> bool:
        """Whether it can read a table as the annotated type."""

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Read rows as the annotated type."""


@dataclass(frozen=True)
class StagedWrite:
    """An output whose rows are in its table already, on a branch, and become visible when it is handled.

    Attributes:
        engine: What wrote them.
        publish: Makes them visible, in one commit.
        metadata: More metadata of the materialization.
    """

    engine: Engine
    publish: Callable[[], TableWriteResult]
    metadata: Mapping[str, Any]


def _to_polars(rows: pa.Table) -> Any:
    import polars as pl  # noqa: PLC0415 - only those who use polars need it

    return pl.from_arrow(rows)


_CONVERSIONS: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow.Table": lambda rows: rows,
    "pyarrow.RecordBatchReader": lambda rows: rows.to_reader(),
    "pandas.DataFrame": lambda rows: rows.to_pandas(),
    "polars.DataFrame": _to_polars,
    "polars.LazyFrame": lambda rows: _to_polars(rows).lazy(),
}

_READER, _TABLE = "pyarrow.RecordBatchReader", "pyiceberg.Table"
_CHANGES = "floe_dagster_iceberg.TableChanges"


class ArrowEngine:
    """PyIceberg and Arrow on one machine, without a JVM."""

    name = "arrow"
    accepted_types = ACCEPTED_TYPES
    loadable_types = f"{', '.join(_CONVERSIONS)}, pyiceberg.table.Table"

    def __init__(self, manager: IcebergTableManager, handover: HandoverProvider | None = None) -> None:
        """`handover` does what PyIceberg cannot."""
        self._manager, self._handover = manager, handover

    def accepts(self, data: Any) -> bool:
        is_arrow = isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader)
        return is_arrow or _type_name(type(data)) in _CONVERSIONS

    def write(self, data: Any, write: TableWrite, on_repair: OnRepair | None = None) -> TableWriteResult:
        manager, rows = self._manager, to_arrow_rows(data)
        return manager.with_metadata_repair(
            write.table, write_once, manager.catalog, rows, write, manager.budget, self._handover, on_repair=on_repair
        )

    def loads(self, annotation: Any) -> bool:
        return annotation is None or _type_name(annotation) in {*_CONVERSIONS, _TABLE, _CHANGES}

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        kind = "pyarrow.Table" if annotation is None else _type_name(annotation)
        manager = self._manager if self._handover is None else self._manager.with_handover(self._handover)
        try:
            table = manager.load_table(request.table)
        except NoSuchTableError:
            if request.empty_schema is None or kind == _TABLE:
                raise
            return _CONVERSIONS[kind](_empty(request.empty_schema, request.settings.columns))
        if kind == _TABLE:
            return table
        if request.plan_changes is not None:
            changes = request.plan_changes(table, request.row_filter(table))
            if kind in {_CHANGES, _READER}:
                return changes if kind == _CHANGES else changes.to_batches()
            return _CONVERSIONS[kind](changes.to_arrow())
        if kind == _CHANGES:
            raise ValidationError(
                f"An input annotated as TableChanges reads changes of '{request.table}': set its metadata "
                "'iceberg/changes'.",
                table=request.table,
            )
        version = request.version(table)
        what: dict[str, Any] = {
            "columns": request.settings.columns or None,
            "row_filter": CheckedFilter(request.row_filter(table)),
            "snapshot_id": version.snapshot_id,
            "only_added": version.only_added,
        }
        if kind == _READER:
            return manager.scan_batches(table, **what)
        return _CONVERSIONS[kind](manager.scan(table, **what))


def _empty(schema: Schema, columns: Sequence[str]) -> pa.Table:
    rows = pa.Table.from_batches([], schema_to_pyarrow(schema, include_field_ids=False))
    return rows.select([name for name in rows.column_names if name in columns]) if columns else rows


def _type_name(kind: Any) -> str:
    """Library and class of a type, without importing the library to find out."""
    return f"{getattr(kind, '__module__', '').split('.')[0]}.{getattr(kind, '__name__', '')}"


_FRAME = ("pyspark.sql.dataframe", "DataFrame")


class SparkEngine:
    """Data of any size, on one machine or many."""

    name = "spark"
    accepted_types = "pyspark.sql.DataFrame"
    loadable_types = "pyspark.sql.DataFrame"

    def __init__(self, iceberg: IcebergResource, spark: IcebergSparkResource) -> None:
        self._iceberg, self._spark = iceberg, spark

    def accepts(self, data: Any) -> bool:
        return _is_frame(type(data))

    def write(self, data: Any, write: TableWrite, on_repair: OnRepair | None = None) -> TableWriteResult:
        from floe_dagster_iceberg.spark import exactly_once  # noqa: PLC0415 - brings PySpark along

        manager = self._iceberg.table_manager
        self._register_catalog(data.sparkSession)
        return manager.with_metadata_repair(
            write.table, exactly_once.write_once, manager.catalog, data, write, manager.budget, on_repair=on_repair
        )

    def loads(self, annotation: Any) -> bool:
        return isinstance(annotation, type) and _is_frame(annotation)

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Open a DataFrame on the rows; they are read when it is computed."""
        from floe_dagster_iceberg.spark.scan import empty_frame, open_frame  # noqa: PLC0415 - brings PySpark along

        del annotation
        session, settings = self._open_session(), request.settings
        try:
            table = self._iceberg.table_manager.load_table(request.table)
        except NoSuchTableError:
            if request.empty_schema is None:
                raise
            return empty_frame(session, request.empty_schema, settings.columns)
        if request.plan_changes is not None:
            from floe_dagster_iceberg.spark.changes import open_changes  # noqa: PLC0415 - brings PySpark along

            return open_changes(session, request.plan_changes(table, request.row_filter(table)))
        version = request.version(table)
        return open_frame(
            session,
            table,
            snapshot_id=version.snapshot_id,
            only_added=version.only_added,
            row_filter=request.row_filter(table),
            columns=settings.columns,
        )

    def handover(self) -> Handover:
        """What the Arrow engine hands its work to where PyIceberg cannot do it."""
        from floe_dagster_iceberg.spark.handover import SparkHandover  # noqa: PLC0415 - brings PySpark along

        return SparkHandover(self._open_session)

    def _open_session(self) -> "SparkSession":
        session = self._spark.spark_session
        self._register_catalog(session)
        return session

    def _register_catalog(self, session: "SparkSession") -> None:
        from floe_dagster_iceberg.spark.session import ensure_catalog  # noqa: PLC0415 - brings PySpark along

        ensure_catalog(session, self._iceberg.spark_conf())


class SparkOnlyEngine(SparkEngine):
    """Writes only Spark's DataFrames, and reads tables as any annotated type; Spark's DataFrame by default."""

    loadable_types = f"{SparkEngine.loadable_types}, {ArrowEngine.loadable_types}"

    def loads(self, annotation: Any) -> bool:
        return super().loads(annotation) or self._arrow.loads(annotation)

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        if annotation is None or super().loads(annotation):
            return super().read(request, annotation)
        return self._arrow.read(request, annotation)

    @property
    def _arrow(self) -> ArrowEngine:
        return ArrowEngine(self._iceberg.table_manager, self.handover)


def _is_frame(kind: type) -> bool:
    """By name, so that Spark is not loaded to find out; DataFrames of Connect have the same base class."""
    return any((ancestor.__module__, ancestor.__name__) == _FRAME for ancestor in kind.__mro__)

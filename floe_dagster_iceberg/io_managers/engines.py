"""The engines of the IO managers: Arrow and Spark, behind one protocol."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg.asset_settings import InputSettings
from floe_dagster_iceberg.errors import NoSuchTableError
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.partition_slice import PartitionSlice
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.table.arrow_input import ACCEPTED_TYPES, to_arrow_rows
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.filter.partition_slice import DEFAULT_NAIVE_TIMEZONE, to_expression
from floe_dagster_iceberg.table.filter.row_filter import CheckedFilter, to_row_filter
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.manager.scan import version_to_read
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ReadRequest:
    """Which rows of which table an input asks for.

    Attributes:
        table: The table.
        rows: The rows of the upstream partitions.
        settings: Columns, filter and version.
        naive_timezone: Time zone of timestamps that have none.
        empty_schema: Columns of the empty result for a missing table, as for an asset that reads its own earlier
            partition in its first run; None if a missing table is an error.
    """

    table: TableIdentifier
    rows: PartitionSlice
    settings: InputSettings = field(default_factory=InputSettings)
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE
    empty_schema: Schema | None = None

    @property
    def ref(self) -> str | None:
        """Branch or tag to read; None is main."""
        ref = self.settings.tag or self.settings.branch
        return None if ref == MAIN_BRANCH else ref

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

    def write(self, data: Any, write: TableWrite) -> TableWriteResult:
        """Write data into its table, exactly once."""

    def loads(self, annotation: Any) -> bool:
        """Whether it can read a table as the annotated type."""

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Read rows as the annotated type."""


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


class ArrowEngine:
    """PyIceberg and Arrow on one machine, without a JVM."""

    name = "arrow"
    accepted_types = ACCEPTED_TYPES
    loadable_types = f"{', '.join(_CONVERSIONS)}, pyiceberg.table.Table"

    def __init__(self, manager: IcebergTableManager) -> None:
        self._manager = manager

    def accepts(self, data: Any) -> bool:
        is_arrow = isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader)
        return is_arrow or _type_name(type(data)) in _CONVERSIONS

    def write(self, data: Any, write: TableWrite) -> TableWriteResult:
        manager, rows = self._manager, to_arrow_rows(data)
        budget = CommitBudget.from_config(manager.config)
        return manager.with_metadata_repair(write.table, write_once, manager.catalog, rows, write, budget)

    def loads(self, annotation: Any) -> bool:
        return annotation is None or _type_name(annotation) in {*_CONVERSIONS, _TABLE}

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        kind = "pyarrow.Table" if annotation is None else _type_name(annotation)
        try:
            table = self._manager.load_table(request.table)
        except NoSuchTableError:
            if request.empty_schema is None or kind == _TABLE:
                raise
            return _CONVERSIONS[kind](_empty(request.empty_schema, request.settings.columns))
        if kind == _TABLE:
            return table
        settings = request.settings
        what: dict[str, Any] = {
            "columns": settings.columns or None,
            "row_filter": CheckedFilter(request.row_filter(table)),
            "snapshot_id": settings.snapshot_id,
            "as_of": settings.as_of,
            "ref": request.ref,
        }
        if kind == _READER:
            return self._manager.scan_batches(table, **what)
        return _CONVERSIONS[kind](self._manager.scan(table, **what))


def _empty(schema: Schema, columns: Sequence[str]) -> pa.Table:
    rows = schema_to_pyarrow(schema, include_field_ids=False).empty_table()
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

    def write(self, data: Any, write: TableWrite) -> TableWriteResult:
        from floe_dagster_iceberg.spark import exactly_once  # noqa: PLC0415 - brings PySpark along

        manager = self._iceberg.table_manager
        self._register_catalog(data.sparkSession)
        budget = CommitBudget.from_config(manager.config)
        return manager.with_metadata_repair(write.table, exactly_once.write_once, manager.catalog, data, write, budget)

    def loads(self, annotation: Any) -> bool:
        return isinstance(annotation, type) and _is_frame(annotation)

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Open a DataFrame on the rows; they are read when it is computed."""
        from floe_dagster_iceberg.spark.scan import empty_frame, open_frame  # noqa: PLC0415 - brings PySpark along

        del annotation
        session, settings = self._spark.spark_session, request.settings
        self._register_catalog(session)
        try:
            table = self._iceberg.table_manager.load_table(request.table)
        except NoSuchTableError:
            if request.empty_schema is None:
                raise
            return empty_frame(session, request.empty_schema, settings.columns)
        return open_frame(
            session,
            table,
            snapshot_id=version_to_read(table, snapshot_id=settings.snapshot_id, as_of=settings.as_of, ref=request.ref),
            row_filter=request.row_filter(table),
            columns=settings.columns,
        )

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
        return ArrowEngine(self._iceberg.table_manager)


def _is_frame(kind: type) -> bool:
    """By name, so that Spark is not loaded to find out; DataFrames of Connect have the same base class."""
    return any((ancestor.__module__, ancestor.__name__) == _FRAME for ancestor in kind.__mro__)

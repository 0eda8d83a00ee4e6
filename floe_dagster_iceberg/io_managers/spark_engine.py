"""Spark DataFrames, classic and Connect. Loading this module loads no Spark."""

from typing import TYPE_CHECKING, Any

from floe_dagster_iceberg.errors import NoSuchTableError
from floe_dagster_iceberg.io_managers.arrow_engine import ArrowEngine
from floe_dagster_iceberg.io_managers.engine import ReadRequest
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark_resource import IcebergSparkResource
from floe_dagster_iceberg.table.commit import CommitBudget
from floe_dagster_iceberg.table.scan import version_to_read
from floe_dagster_iceberg.table.write import TableWrite, TableWriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FRAME = ("pyspark.sql.dataframe", "DataFrame")


class SparkEngine:
    """Data of any size, on one machine or many."""

    name = "spark"
    accepted_types = "pyspark.sql.DataFrame"
    loadable_types = "pyspark.sql.DataFrame"

    def __init__(self, iceberg: IcebergResource, spark: IcebergSparkResource) -> None:
        self._iceberg, self._spark = iceberg, spark

    def accepts(self, data: Any) -> bool:
        """Whether it is a DataFrame of Spark."""
        return _is_frame(type(data))

    def write(self, data: Any, write: TableWrite) -> TableWriteResult:
        """Write a frame into its table, exactly once."""
        from floe_dagster_iceberg.spark.deposit import write_frame_once  # noqa: PLC0415 - brings PySpark along

        manager = self._iceberg.table_manager
        self._register_catalog(data.sparkSession)
        budget = CommitBudget.from_config(manager.config)
        return manager.with_metadata_repair(write.table, write_frame_once, manager.catalog, data, write, budget)

    def loads(self, annotation: Any) -> bool:
        """Whether the annotation names Spark's DataFrame."""
        return isinstance(annotation, type) and _is_frame(annotation)

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Open a frame on the rows; they are read when it is computed."""
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
        from floe_dagster_iceberg.spark.sessions import ensure_catalog  # noqa: PLC0415 - brings PySpark along

        ensure_catalog(session, self._iceberg.spark_conf())


class SparkOnlyEngine(SparkEngine):
    """Writes Spark's frames alone, and reads tables as whatever an input asks for; as a frame if it does not say."""

    loadable_types = f"{SparkEngine.loadable_types}, {ArrowEngine.loadable_types}"

    def loads(self, annotation: Any) -> bool:
        """Whether either engine can read it."""
        return super().loads(annotation) or self._arrow.loads(annotation)

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Read rows with the engine of the annotation."""
        if annotation is None or super().loads(annotation):
            return super().read(request, annotation)
        return self._arrow.read(request, annotation)

    @property
    def _arrow(self) -> ArrowEngine:
        return ArrowEngine(self._iceberg.table_manager)


def _is_frame(kind: type) -> bool:
    """By name, so that Spark is not loaded to find out; frames of Connect have the same ancestor."""
    return any((ancestor.__module__, ancestor.__name__) == _FRAME for ancestor in kind.__mro__)

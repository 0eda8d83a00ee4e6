"""Whether the key columns of a frame can identify its rows."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, functions as F, types as spark  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.spark.errors import NULL_IN_REQUIRED_COLUMN, SPARK_ERRORS
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.row_scope import OutsideCount, SparkPartitionCheck
from floe_dagster_iceberg.spark.statements import arrange
from floe_dagster_iceberg.spark.types import quote, to_arrow_schema, to_spark_type
from floe_dagster_iceberg.table.write.upsert import check_keys, null_keys_error, repeated_keys_error
from floe_dagster_iceberg.table.write.write import TableWrite


def check_frame_keys(table: str, frame: DataFrame, keys: Sequence[str]) -> None:
    """Refuse keys that are NULL or appear twice; one job.

    Raises:
        ValidationError: They do.
    """
    grouped = frame.groupBy(*(F.col(quote(key)).alias(f"key_{number}") for number, key in enumerate(keys)))
    nulls = [
        F.sum(F.when(F.col(f"key_{number}").isNull(), F.col("n")).otherwise(0)).alias(f"nulls_{number}")
        for number in range(len(keys))
    ]
    repeated = F.sum(F.col("n") - 1).alias("repeated")
    counted = grouped.agg(F.count(F.lit(1)).alias("n")).agg(repeated, *nulls)
    found = run_action(frame.sparkSession, counted.first)
    if found is None:
        return
    for number, key in enumerate(keys):
        if rows := found[f"nulls_{number}"]:
            raise null_keys_error(table, key, rows=rows)
    if rows := found["repeated"]:
        raise repeated_keys_error(table, keys, rows=rows)


# Any value that is not NULL; it is never reached.
_NEVER_USED: Final[Mapping[type[iceberg.IcebergType], Any]] = {
    iceberg.BooleanType: False,
    iceberg.IntegerType: 0,
    iceberg.LongType: 0,
    iceberg.FloatType: 0,
    iceberg.DoubleType: 0,
    iceberg.DecimalType: 0,
    iceberg.DateType: "1970-01-01",
    iceberg.TimestampType: "1970-01-01",
    iceberg.TimestamptzType: "1970-01-01",
    iceberg.StringType: "",
    iceberg.UUIDType: "",
    iceberg.BinaryType: "",
    iceberg.FixedType: "",
}


def conform(frame: DataFrame, schema: Schema) -> DataFrame:
    """The frame with exactly the columns of a schema; what it lacks is NULL, what is narrower is widened."""
    have = {field.name: field.dataType for field in frame.schema.fields}
    columns = [
        _conform(F.col(quote(field.name)), have.get(field.name), field.field_type).alias(field.name)
        for field in schema.fields
    ]
    return frame.select(*columns)


def refuse_nulls(frame: DataFrame, schema: Schema) -> DataFrame:
    """The frame, failing where a required column is NULL.

    Spark refuses a column that could be NULL, which without this nearly all of them could.
    """
    for field in nullable_but_required(frame, schema):
        column, kind = F.col(quote(field)), schema.find_type(field)
        failure = F.raise_error(F.lit(NULL_IN_REQUIRED_COLUMN)).cast(to_spark_type(kind))
        never = F.lit(_NEVER_USED[type(kind)]).cast(to_spark_type(kind))
        frame = frame.withColumn(field, F.coalesce(column, F.coalesce(failure, never)))
    return frame


def nullable_but_required(frame: DataFrame, schema: Schema) -> list[str]:
    """Columns of single values that the table requires and of which Spark does not know that they hold no NULL."""
    nullable = {field.name for field in frame.schema.fields if field.nullable}
    return [
        field.name
        for field in schema.fields
        if field.required and field.name in nullable and type(field.field_type) in _NEVER_USED
    ]


def _conform(column: Column, have: spark.DataType | None, want: iceberg.IcebergType) -> Column:
    if have is None or isinstance(have, spark.NullType):
        return F.lit(None).cast(to_spark_type(want))
    if _ddl(have.simpleString()) == _ddl(to_spark_type(want)):
        return column
    match have, want:
        case spark.StructType(), iceberg.StructType():
            return _conform_struct(column, have, want)
        case spark.ArrayType(), iceberg.ListType():
            return F.transform(column, lambda element: _conform(element, have.elementType, want.element_type))
        case spark.MapType(), iceberg.MapType():
            return F.transform_values(column, lambda _, value: _conform(value, have.valueType, want.value_type))
        case _:
            return column.cast(to_spark_type(want))


def _conform_struct(column: Column, have: spark.StructType, want: iceberg.StructType) -> Column:
    inner = {field.name: field.dataType for field in have.fields}
    fields = [
        _conform(column.getField(field.name), inner.get(field.name), field.field_type).alias(field.name)
        for field in want.fields
    ]
    # A struct that is NULL stays NULL, rather than becoming one of NULLs.
    return F.when(column.isNotNull(), F.struct(*fields))


def _ddl(text: str) -> str:
    return text.lower().replace(" ", "").replace("`", "")


# Partitions, so that `coalesce` leaves a frame of rows in memory as it is.
_MORE_THAN_ANY_FRAME_HAS: Final = 1_000_000


class FrameRows:
    """A frame that fits a schema, checked against the slice it is written to.

    Args:
        frame: The frame as the asset returned it.
        schema: Schema that the table has, or is about to get.
        write: Where the rows go.

    Raises:
        ValidationError: A column that the slice or an upsert needs is missing or of a wrong type.
        EngineCapabilityError: Spark cannot write one of the table's types.
    """

    def __init__(self, frame: DataFrame, schema: Schema, write: TableWrite) -> None:
        self._write, self._name, self._table_schema = write, str(write.table), schema
        self.where = write.scope.expression(schema)
        self.partition_check = SparkPartitionCheck(self._name, write.scope, schema)
        columns = to_arrow_schema(frame.schema, schema).empty_table()
        self.partition_check.check_columns(columns)
        self._schema = schema
        if write.mode is WriteMode.UPSERT:
            check_keys(self._name, schema, columns, write.keys)
            self._schema = Schema(*(field for field in schema.fields if field.name in frame.columns))
        self._rows = conform(_left_to_executors(frame), self._schema)
        self._kept: DataFrame | None = None
        self._outside: OutsideCount | None = None

    def fits(self, schema: Schema) -> bool:
        """Whether the rows were made for the same columns."""
        return schema.fields == self._table_schema.fields

    def check(self) -> None:
        """Find out everything that could be wrong with the rows, by jobs of their own.

        Raises:
            RowsOutsidePartitionError: Rows lie outside the partitions, and that is an error.
            ValidationError: Keys are NULL or appear twice.
        """
        if self._write.mode is WriteMode.UPSERT:
            # An upsert reads its rows several times: here twice, and again to match them.
            self._kept = self._rows = self._rows.persist()
        self._outside = self.partition_check.count(self._rows)
        rows = self.partition_check.filter_counted(self._rows, self._outside)
        if self._write.mode is WriteMode.UPSERT:
            check_frame_keys(self._name, rows, self._write.keys)

    def close(self) -> None:
        """Let go of rows that were kept."""
        # A Spark that has died keeps none.
        with suppress(*SPARK_ERRORS):
            if self._kept is not None:
                self._kept.unpersist()

    def passing(self, table: Table) -> DataFrame:
        """The rows for `append` and `replace`, failing or counted as they pass, arranged for the files."""
        rows = refuse_nulls(self.partition_check.filter(self._rows), self._schema)
        if not self._write.sort_by:
            return rows
        return arrange(rows, table, table.catalog.name, self._write.sort_by)

    def checked(self) -> DataFrame:
        """The rows for `merge`, after `check`."""
        rows = self.partition_check.filter_counted(self._rows, self._outside or OutsideCount())
        return refuse_nulls(rows, self._schema)

    def outside(self, *, rows_written: int) -> OutsideCount:
        """Rows outside the partitions, once the rows are written."""
        return self._outside or self.partition_check.counted(self._rows, rows_written=rows_written)

    def count_outside(self) -> OutsideCount:
        """Rows outside, for the message; at least the one that failed the job."""
        found = self.partition_check.count(self._rows)
        return replace(found, rows=max(found.rows, 1))

    def count_nulls(self) -> dict[str, int]:
        """NULLs in columns that the table requires."""
        columns = nullable_but_required(self._rows, self._schema)
        counted = self._rows.agg(*(F.count_if(F.col(quote(name)).isNull()) for name in columns))
        found = run_action(self._rows.sparkSession, counted.first)
        return {} if found is None else dict(zip(columns, found, strict=True))


def _left_to_executors(frame: DataFrame) -> DataFrame:
    """The frame, kept from being computed while Spark plans.

    Of rows in memory Spark's optimizer works out simple columns itself: row by row, on the driver, one core. The
    checks that are added here would be done that way. It does not look through a `coalesce`.
    """
    return frame.coalesce(_MORE_THAN_ANY_FRAME_HAS) if frame.isLocal() else frame

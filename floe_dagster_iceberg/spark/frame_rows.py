"""A DataFrame's rows as a table needs them: its columns and types, checked against partitions and keys."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, functions as F, types as spark  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.spark.errors import INEXACT_NUMBER, NULL_IN_REQUIRED_COLUMN, SPARK_ERRORS
from floe_dagster_iceberg.spark.filters import to_sql_literal
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.row_scope import OutsideCount, SparkPartitionCheck
from floe_dagster_iceberg.spark.statements import arrange
from floe_dagster_iceberg.spark.types import quote, to_arrow_schema, to_spark_type
from floe_dagster_iceberg.table.write.upsert import check_keys, null_keys_error, repeated_keys_error
from floe_dagster_iceberg.table.write.write import TableWrite


def _check_key_values(table: str, frame: DataFrame, keys: Sequence[str]) -> int:
    """Refuse keys that are NULL or appear twice, in one job; the number of rows."""
    grouped = frame.groupBy(*(F.col(quote(key)).alias(f"key_{number}") for number, key in enumerate(keys)))
    nulls = [
        F.sum(F.when(F.col(f"key_{number}").isNull(), F.col("n")).otherwise(0)).alias(f"nulls_{number}")
        for number in range(len(keys))
    ]
    repeated = F.sum(F.col("n") - 1).alias("repeated")
    counted = grouped.agg(F.count(F.lit(1)).alias("n")).agg(repeated, F.sum("n").alias("rows"), *nulls)
    found: Any = run_action(frame.sparkSession, counted.first)
    for number, key in enumerate(keys):
        if rows := found[f"nulls_{number}"]:
            raise null_keys_error(table, key, rows=rows)
    if rows := found["repeated"]:
        raise repeated_keys_error(table, keys, rows=rows)
    return int(found["rows"] or 0)


# Spark needs some value that is not NULL after `raise_error`.
_NEVER_USED: Final[Mapping[type[iceberg.IcebergType], Any]] = {
    iceberg.BooleanType: False,
    **dict.fromkeys((iceberg.IntegerType, iceberg.LongType), 0),
    **dict.fromkeys((iceberg.FloatType, iceberg.DoubleType, iceberg.DecimalType), 0),
    **dict.fromkeys((iceberg.DateType, iceberg.TimestampType, iceberg.TimestamptzType), "1970-01-01"),
    **dict.fromkeys((iceberg.StringType, iceberg.UUIDType, iceberg.BinaryType, iceberg.FixedType), ""),
}


def conform(frame: DataFrame, schema: Schema) -> DataFrame:
    """Select exactly the columns of a schema; missing ones have their default or NULL, narrower types are widened."""
    have = {field.name: field.dataType for field in frame.schema.fields}
    columns = [_column(field, have.get(field.name)).alias(field.name) for field in schema.fields]
    return frame.select(*columns)


def _column(field: iceberg.NestedField, have: spark.DataType | None) -> Column:
    if have is None and field.write_default is not None:
        return F.expr(to_sql_literal(field.write_default, field.field_type))
    converted = _conform(F.col(quote(field.name)), have, field.field_type)
    is_float = isinstance(field.field_type, iceberg.FloatType | iceberg.DoubleType)
    return _exact(field.name, converted) if is_float and isinstance(have, spark.IntegralType) else converted


def _exact(name: str, converted: Column) -> Column:
    """Fail the job where a float does not hold an integer exactly."""
    integer, failure = F.col(quote(name)), F.raise_error(F.lit(f"{INEXACT_NUMBER}{quote(name)}"))
    is_exact = integer.isNull() | (converted.try_cast("bigint") == integer)
    return F.when(is_exact, converted).otherwise(failure)


def _refuse_nulls(frame: DataFrame, schema: Schema) -> DataFrame:
    """Fail the job where a required column is NULL.

    Without this, Spark refuses every column that it does not know to be free of NULLs.
    """
    for field in _nullable_but_required(frame, schema):
        column, kind = F.col(quote(field)), schema.find_type(field)
        failure = F.raise_error(F.lit(NULL_IN_REQUIRED_COLUMN)).cast(to_spark_type(kind))
        never = F.lit(_NEVER_USED[type(kind)]).cast(to_spark_type(kind))
        frame = frame.withColumn(field, F.coalesce(column, F.coalesce(failure, never)))
    return frame


def _nullable_but_required(frame: DataFrame, schema: Schema) -> list[str]:
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
    # A NULL struct stays NULL, and does not become a struct of NULLs.
    return F.when(column.isNotNull(), F.struct(*fields))


def _ddl(text: str) -> str:
    return text.lower().replace(" ", "").replace("`", "")


# More partitions than any DataFrame in memory has, so that `coalesce` does not change it.
_MAX_PARTITIONS: Final = 1_000_000


class FrameRows:
    """A DataFrame that fits a schema, and is checked against the partitions that it is written to.

    Args:
        frame: The DataFrame that the asset returned.
        schema: The table's schema after the write.
        write: Where the rows go.

    Raises:
        ValidationError: A column of the partitions or keys is missing or of a wrong type.
        EngineCapabilityError: Spark cannot write one of the table's types.
    """

    def __init__(self, frame: DataFrame, schema: Schema, write: TableWrite) -> None:
        self._write, self._name, self._table_schema = write, str(write.table), schema
        self.where = write.scope.expression(schema)
        self.partition_check = SparkPartitionCheck(write.scope, self._name, schema)
        columns = pa.Table.from_batches([], to_arrow_schema(frame.schema, schema))
        self.partition_check.check_columns(columns)
        self._schema = schema
        if write.mode is WriteMode.UPSERT:
            check_keys(self._name, schema, columns, write.keys)
            self._schema = Schema(*(field for field in schema.fields if field.name in frame.columns))
        self._rows = conform(_computed_by_executors(frame), self._schema)
        self._cached: DataFrame | None = None
        self._outside: OutsideCount | None = None
        # Of an upsert, once it is checked.
        self.row_count = 0

    def fits(self, schema: Schema) -> bool:
        """Whether the rows have the columns of this schema, whatever ids Spark has given new ones."""
        return _shape(schema) == _shape(self._table_schema)

    def check(self) -> None:
        """Check the rows in separate jobs.

        Raises:
            RowsOutsidePartitionError: Rows lie outside the partitions, and that is an error.
            ValidationError: Keys are NULL or appear twice.
        """
        if self._write.mode is WriteMode.UPSERT:
            # An upsert reads its rows several times: twice here, and again to match them.
            self._cached = self._rows = self._rows.persist()
        self._outside = self.partition_check.count(self._rows)
        rows = self.partition_check.filter_counted(self._rows, self._outside)
        if self._write.mode is WriteMode.UPSERT:
            self.row_count = _check_key_values(self._name, rows, self._write.keys)

    def close(self) -> None:
        """Release cached rows."""
        # A Spark that has died has none.
        with suppress(*SPARK_ERRORS):
            if self._cached is not None:
                self._cached.unpersist()

    def arranged(self, table: Table) -> DataFrame:
        """The rows for `append` and `replace`, checked during the write, and sorted."""
        rows = _refuse_nulls(self.partition_check.filter(self._rows), self._schema)
        if not self._write.sort_by:
            return rows
        return arrange(rows, table, table.catalog.name, self._write.sort_by)

    def checked(self) -> DataFrame:
        """The rows for `merge`, after `check`."""
        rows = self.partition_check.filter_counted(self._rows, self._outside or OutsideCount())
        return _refuse_nulls(rows, self._schema)

    def outside(self, *, rows_written: int) -> OutsideCount:
        """Rows outside the partitions, after the write."""
        return self._outside or self.partition_check.counted(self._rows, rows_written=rows_written)

    def count_outside(self) -> OutsideCount:
        """Rows outside for the message: at least the one that failed the job."""
        found = self.partition_check.count(self._rows)
        return replace(found, rows=max(found.rows, 1))

    def count_nulls(self) -> dict[str, int]:
        """NULLs in columns that the table requires."""
        columns = _nullable_but_required(self._rows, self._schema)
        counted = self._rows.agg(*(F.count_if(F.col(quote(name)).isNull()) for name in columns))
        found = run_action(self._rows.sparkSession, counted.first)
        return {} if found is None else dict(zip(columns, found, strict=True))


def _shape(schema: Schema) -> list[tuple[str, str, bool]]:
    return [(field.name, to_spark_type(field.field_type), field.required) for field in schema.fields]


def _computed_by_executors(frame: DataFrame) -> DataFrame:
    """Keep Spark from computing the DataFrame while it plans.

    Spark's optimizer evaluates simple columns of local rows on the driver, row by row on one core; our checks
    would be evaluated that way. It does not look through a `coalesce`.
    """
    return frame.coalesce(_MAX_PARTITIONS) if frame.isLocal() else frame

"""A DataFrame's rows as a table needs them: its columns and types, checked against partitions and keys."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Window, functions as F, types as spark  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.models.writing import MergeRules
from floe_dagster_iceberg.spark.errors import INEXACT_NUMBER, NULL_IN_REQUIRED_COLUMN, SPARK_ERRORS
from floe_dagster_iceberg.spark.filters import to_condition, to_sql_literal
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.row_scope import OutsideCount, SparkPartitionCheck
from floe_dagster_iceberg.spark.statements import DELETES, arrange
from floe_dagster_iceberg.spark.types import quote, to_arrow_schema, to_spark_type
from floe_dagster_iceberg.table.write.merge_source import (
    check_columns,
    fit_delete_filter,
    null_keys_error,
    null_order_error,
    repeated_keys_error,
    tied_order_error,
    unstored_column,
)
from floe_dagster_iceberg.table.write.write import TableWrite

_PLACE: Final = "floe:place"
_COUNT: Final = "floe:count"


@dataclass(frozen=True)
class KeyCounts:
    """How many rows a merge has, and how many of them repeat the key of another."""

    rows: int = 0
    repeated: int = 0


def _check_key_values(table: str, frame: DataFrame, rules: MergeRules) -> KeyCounts:
    """Refuse keys that are NULL, and rows of one key that cannot be told apart, in one job."""
    keys = {f"key_{number}": key for number, key in enumerate(rules.keys)}
    order = {f"order_{number}": column for number, column in enumerate(rules.order_by)}
    named = [F.col(quote(column)).alias(name) for name, column in {**keys, **order}.items()]
    # One row for each key and order, then one for each key.
    counted = frame.groupBy(*named).agg(F.count(F.lit(1)).alias("n"))
    unordered = [_sum_where(_is_unordered(frame, column, name), name) for name, column in order.items()]
    newest = F.max_by("n", F.struct(*order)) if order else F.sum("n")
    per_key = counted.groupBy(*keys).agg(F.sum("n").alias("n"), newest.alias("newest"), *unordered)
    totals = [F.sum("n").alias("rows"), F.sum(F.col("n") - 1).alias("repeated")]
    ties = F.sum(F.col("newest") - 1).alias("ties")
    nulls = [_sum_where(F.col(name).isNull(), name) for name in keys]
    unordered = [F.sum(name).alias(name) for name in order]
    found: Any = run_action(frame.sparkSession, per_key.agg(*totals, ties, *nulls, *unordered).first)
    for name, key in keys.items():
        if rows := found[name]:
            raise null_keys_error(table, key, rows=rows)
    for name, column in order.items():
        if rows := found[name]:
            raise null_order_error(table, column, rows=rows)
    if rows := found["ties"]:
        raise tied_order_error(table, rules, rows=rows) if order else repeated_keys_error(table, rules.keys, rows=rows)
    return KeyCounts(int(found["rows"] or 0), int(found["repeated"] or 0))


def _sum_where(condition: Column, name: str) -> Column:
    return F.sum(F.when(condition, F.col("n")).otherwise(0)).alias(name)


def _is_unordered(frame: DataFrame, column: str, name: str) -> Column:
    is_float = isinstance(frame.schema[column].dataType, spark.FloatType | spark.DoubleType)
    return F.col(name).isNull() | (F.isnan(F.col(name)) if is_float else F.lit(False))  # noqa: FBT003 - a literal for Spark


def _find_missing(frame: DataFrame, present: DataFrame, rules: MergeRules) -> DataFrame:
    """Keys of the table that the rows lack, NULL included, with the number of their rows."""
    given, known = ([f"{kind}_{number}" for number in range(len(rules.keys))] for kind in ("given", "known"))
    ours = frame.select(*(F.col(quote(key)).alias(name) for key, name in zip(rules.keys, given, strict=True)))
    theirs = present.select(*(F.col(quote(key)).alias(name) for key, name in zip(rules.keys, known, strict=True)))
    equal = F.expr(" AND ".join(f"{name} = {other}" for name, other in zip(given, known, strict=True)))
    missing = theirs.join(ours, equal, "left_anti").groupBy(*known).agg(F.count(F.lit(1)).alias("n"))
    return missing.toDF(*rules.keys, _COUNT)


def _with_deletes(frame: DataFrame, missing: DataFrame, rules: MergeRules) -> DataFrame:
    """The rows, and one that deletes for each missing key."""
    if DELETES not in frame.columns:
        frame = frame.withColumn(DELETES, F.lit(False))  # noqa: FBT003 - a literal for Spark
    deletes = missing.withColumn(DELETES, F.lit(True))  # noqa: FBT003 - a literal for Spark
    columns = [
        F.col(quote(field.name)) if field.name in {*rules.keys, DELETES} else F.lit(None).cast(field.dataType)
        for field in frame.schema.fields
    ]
    return frame.union(deletes.select(*columns))


def _keep_newest(frame: DataFrame, rules: MergeRules) -> DataFrame:
    keys, order = ([F.col(quote(name)) for name in names] for names in (rules.keys, rules.order_by))
    place = F.row_number().over(Window.partitionBy(*keys).orderBy(*(column.desc() for column in order)))
    return frame.withColumn(_PLACE, place).where(F.col(quote(_PLACE)) == 1).drop(_PLACE)


# Spark needs some value that is not NULL after `raise_error`.
_NEVER_USED: Final[Mapping[type[iceberg.IcebergType], Any]] = {
    iceberg.BooleanType: False,
    **dict.fromkeys((iceberg.IntegerType, iceberg.LongType), 0),
    **dict.fromkeys((iceberg.FloatType, iceberg.DoubleType, iceberg.DecimalType), 0),
    **dict.fromkeys((iceberg.DateType, iceberg.TimestampType, iceberg.TimestamptzType), "1970-01-01"),
    **dict.fromkeys((iceberg.StringType, iceberg.UUIDType, iceberg.BinaryType, iceberg.FixedType), ""),
}


def conform(frame: DataFrame, schema: Schema, *more: Column) -> DataFrame:
    """Select the columns of a schema and more; missing ones have their default or NULL, narrower types are widened."""
    have = {field.name: field.dataType for field in frame.schema.fields}
    columns = [_column(field, have.get(field.name)).alias(field.name) for field in schema.fields]
    return frame.select(*columns, *more)


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

    Without this, Spark refuses every column that it does not know to be free of NULLs. Rows that delete are not stored.
    """
    for field in _nullable_but_required(frame, schema):
        column, kind = F.col(quote(field)), schema.find_type(field)
        failure = F.raise_error(F.lit(NULL_IN_REQUIRED_COLUMN)).cast(to_spark_type(kind))
        never = F.lit(_NEVER_USED[type(kind)]).cast(to_spark_type(kind))
        if DELETES in frame.columns:
            failure = F.when(~F.col(quote(DELETES)), failure)
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
        columns = to_arrow_schema(frame.schema, schema)
        self.partition_check.check_columns(pa.Table.from_batches([], columns))
        self._schema, deletes = schema, list[Column]()
        if write.mode is WriteMode.UPSERT:
            check_columns(self._name, schema, stored_columns(columns, write, schema), write.merge)
            self._schema = Schema(*(field for field in schema.fields if field.name in frame.columns))
            if write.merge.delete_when is not None:
                typed, where = fit_delete_filter(self._name, write.merge, columns, schema)
                found = F.expr(to_condition(where, typed))
                deletes = [F.coalesce(found, F.lit(False)).alias(DELETES)]  # noqa: FBT003 - a literal for Spark
        self._rows = conform(_computed_by_executors(frame), self._schema, *deletes)
        self._cached: list[DataFrame] = []
        self._outside: OutsideCount | None = None
        # Of an upsert, once it is checked.
        self.key_counts = KeyCounts()
        self.missing_rows = 0

    def fits(self, schema: Schema) -> bool:
        """Whether the rows have the columns of this schema, whatever ids Spark has given new ones."""
        return _shape(schema) == _shape(self._table_schema)

    def check(self) -> None:
        """Check the rows in separate jobs.

        Raises:
            RowsOutsidePartitionError: Rows lie outside the partitions, and that is an error.
            ValidationError: Keys are NULL, or rows of one key cannot be told apart.
        """
        if self._write.mode is WriteMode.UPSERT:
            # An upsert reads its rows several times: twice here, and again to match them.
            self._rows = self._rows.persist()
            self._cached.append(self._rows)
        self._outside = self.partition_check.count(self._rows)
        rows = self.partition_check.filter_counted(self._rows, self._outside)
        if self._write.mode is WriteMode.UPSERT:
            self.key_counts = _check_key_values(self._name, rows, self._write.merge)

    def close(self) -> None:
        """Release cached rows."""
        # A Spark that has died has none.
        with suppress(*SPARK_ERRORS):
            for frame in self._cached:
                frame.unpersist()

    def arranged(self, table: Table) -> DataFrame:
        """The rows for `append` and `replace`, checked during the write, and sorted."""
        rows = _refuse_nulls(self.partition_check.filter(self._rows), self._schema)
        if not self._write.sort_by:
            return rows
        return arrange(rows, table, table.catalog.name, self._write.sort_by)

    def checked(self, present: DataFrame | None) -> DataFrame:
        """The rows for `merge`, after `check`.

        Args:
            present: The rows of the table that the merge deletes where the DataFrame lacks their key.
        """
        rules = self._write.merge
        rows = self.partition_check.filter_counted(self._rows, self._outside or OutsideCount())
        if self.key_counts.repeated:
            rows = _keep_newest(rows, rules)
        if present is not None:
            # MERGE's own clause for such rows reads and rewrites the whole table, other partitions included.
            missing = _find_missing(rows, present, rules).persist()
            self._cached.append(missing)
            counted = run_action(missing.sparkSession, missing.agg(F.sum(_COUNT)).first)
            self.missing_rows = int((counted and counted[0]) or 0)
            rows = _with_deletes(rows, missing, rules) if self.missing_rows else rows
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
        stored = self._rows.where(~F.col(quote(DELETES))) if DELETES in self._rows.columns else self._rows
        counted = stored.agg(*(F.count_if(F.col(quote(name)).isNull()) for name in columns))
        found = run_action(self._rows.sparkSession, counted.first)
        return {} if found is None else dict(zip(columns, found, strict=True))


def stored_columns(columns: pa.Schema, write: TableWrite, schema: Schema | None) -> pa.Schema:
    """The columns of a DataFrame that a table gets; `schema` is that of the table, if it exists."""
    unstored = unstored_column(write.merge, columns.names, schema)
    return pa.schema([column for column in columns if column.name != unstored])


def _shape(schema: Schema) -> list[tuple[str, str, bool]]:
    return [(field.name, to_spark_type(field.field_type), field.required) for field in schema.fields]


def _computed_by_executors(frame: DataFrame) -> DataFrame:
    """Keep Spark from computing the DataFrame while it plans.

    Spark's optimizer evaluates simple columns of local rows on the driver, row by row on one core; our checks
    would be evaluated that way. It does not look through a `coalesce`.
    """
    return frame.coalesce(_MAX_PARTITIONS) if frame.isLocal() else frame

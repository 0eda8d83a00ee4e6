"""A frame's rows, made to fit a table: its columns, its types, its order."""

from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
    types as spark,
)

from floe_dagster_iceberg.spark.names import quote
from floe_dagster_iceberg.spark.schemas import to_spark_type

NULL_IN_REQUIRED_COLUMN: Final = "floe:null-in-required-column"
# Any value that is not NULL; it is never reached.
_NEVER_USED: Final[Mapping[type[IcebergType], Any]] = {
    BooleanType: False,
    IntegerType: 0,
    LongType: 0,
    FloatType: 0,
    DoubleType: 0,
    DecimalType: 0,
    DateType: "1970-01-01",
    TimestampType: "1970-01-01",
    TimestamptzType: "1970-01-01",
    StringType: "",
    UUIDType: "",
    BinaryType: "",
    FixedType: "",
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


def _conform(column: Column, have: spark.DataType | None, want: IcebergType) -> Column:
    if have is None or isinstance(have, spark.NullType):
        return F.lit(None).cast(to_spark_type(want))
    if _ddl(have.simpleString()) == _ddl(to_spark_type(want)):
        return column
    match have, want:
        case spark.StructType(), StructType():
            return _conform_struct(column, have, want)
        case spark.ArrayType(), ListType():
            return F.transform(column, lambda element: _conform(element, have.elementType, want.element_type))
        case spark.MapType(), MapType():
            return F.transform_values(column, lambda _, value: _conform(value, have.valueType, want.value_type))
        case _:
            return column.cast(to_spark_type(want))


def _conform_struct(column: Column, have: spark.StructType, want: StructType) -> Column:
    inner = {field.name: field.dataType for field in have.fields}
    fields = [
        _conform(column.getField(field.name), inner.get(field.name), field.field_type).alias(field.name)
        for field in want.fields
    ]
    # A struct that is NULL stays NULL, rather than becoming one of NULLs.
    return F.when(column.isNotNull(), F.struct(*fields))


def _ddl(text: str) -> str:
    return text.lower().replace(" ", "").replace("`", "")

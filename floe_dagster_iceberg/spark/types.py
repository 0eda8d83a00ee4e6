"""Names and types of Iceberg in Spark SQL, and Spark's types in Arrow."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table.refs import MAIN_BRANCH
from pyspark.sql import types as spark

from floe_dagster_iceberg._pyiceberg.foreign_types import VARIANT, ForeignArrowType, ForeignType
from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.table.arrow_input import to_storable_schema


def quote(*parts: str) -> str:
    """Quote the parts of a name and join them by dots.

    >>> quote("a.b", "c`d")
    '`a.b`.`c``d`'
    """
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def spark_table(catalog: str, table: TableIdentifier, branch: str = MAIN_BRANCH) -> str:
    """The name of a table, or of one of its branches, in Spark SQL."""
    selector = () if branch == MAIN_BRANCH else (f"branch_{branch}",)
    return quote(catalog, *table.as_tuple, *selector)


_TO_ARROW: Final[Mapping[type[spark.DataType], pa.DataType]] = {
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int32(),
    spark.ShortType: pa.int32(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.StringType: pa.string(),
    spark.CharType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.NullType: pa.null(),
}

_TO_SPARK: Final[Mapping[type[iceberg.IcebergType], str]] = {
    iceberg.BooleanType: "BOOLEAN",
    iceberg.IntegerType: "INT",
    iceberg.LongType: "BIGINT",
    iceberg.FloatType: "FLOAT",
    iceberg.DoubleType: "DOUBLE",
    iceberg.DateType: "DATE",
    iceberg.TimestampType: "TIMESTAMP_NTZ",
    iceberg.TimestamptzType: "TIMESTAMP",
    iceberg.StringType: "STRING",
    iceberg.UUIDType: "STRING",
    iceberg.BinaryType: "BINARY",
    iceberg.FixedType: "BINARY",
}


def to_arrow_schema(schema: spark.StructType, table: Schema | None = None) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows.

    Spark has no UUIDs and no binaries of fixed length; where the table that the rows go to has
    them, strings and binaries become those.

    Raises:
        ValidationError: A column appears twice, or has a type that Iceberg does not have.
    """
    names = [name.lower() for name in schema.names]
    if twice := sorted({name for name in schema.names if names.count(name.lower()) > 1}):
        raise ValidationError(f"Columns appear more than once: {', '.join(twice)}. Rename or drop one of each.")
    return to_storable_schema(pa.schema(_to_fields(schema, None if table is None else table.as_struct(), "")))


def _to_fields(schema: spark.StructType, like: iceberg.StructType | None, parent: str) -> list[pa.Field]:
    known = {} if like is None else {field.name: field.field_type for field in like.fields}
    fields = []
    for field in schema.fields:
        kind = _to_arrow(field.dataType, known.get(field.name), f"{parent}{field.name}")
        comment = field.metadata.get("comment")
        fields.append(pa.field(field.name, kind, metadata={"doc": comment} if comment else None))
    return fields


def _to_arrow(kind: spark.DataType, like: iceberg.IcebergType | None, path: str) -> pa.DataType:
    match kind, like:
        case spark.StringType(), iceberg.UUIDType():
            return pa.uuid()
        case spark.BinaryType(), iceberg.FixedType():
            return pa.binary(len(like))
        case spark.VariantType(), _ if "." not in path:
            return ForeignArrowType(VARIANT)
        case spark.DecimalType(), _:
            return pa.decimal128(kind.precision, kind.scale)
        case spark.StructType() | spark.ArrayType() | spark.MapType(), _:
            return _to_nested_arrow(kind, like, path)
    if (found := _TO_ARROW.get(type(kind))) is None:
        raise ValidationError(
            f"Column '{path}' is of Spark's type {kind.simpleString()}, which Iceberg does not have. Cast it."
        )
    return found


def _to_nested_arrow(
    kind: spark.StructType | spark.ArrayType | spark.MapType, like: iceberg.IcebergType | None, path: str
) -> pa.DataType:
    if isinstance(kind, spark.StructType):
        return pa.struct(_to_fields(kind, like if isinstance(like, iceberg.StructType) else None, f"{path}."))
    if isinstance(kind, spark.ArrayType):
        element = like.element_type if isinstance(like, iceberg.ListType) else None
        return pa.list_(_to_arrow(kind.elementType, element, f"{path}.element"))
    key, value = (like.key_type, like.value_type) if isinstance(like, iceberg.MapType) else (None, None)
    return pa.map_(_to_arrow(kind.keyType, key, f"{path}.key"), _to_arrow(kind.valueType, value, f"{path}.value"))


def to_spark_type(kind: iceberg.IcebergType) -> str:
    """Spark's type for an Iceberg type, as DDL.

    Raises:
        EngineCapabilityError: Spark does not support it.
    """
    match kind:
        case ForeignType() if str(kind) == VARIANT:
            return "VARIANT"
        case iceberg.DecimalType():
            return f"DECIMAL({kind.precision}, {kind.scale})"
        case iceberg.StructType():
            fields = (f"{quote(field.name)}: {to_spark_type(field.field_type)}" for field in kind.fields)
            return f"STRUCT<{', '.join(fields)}>"
        case iceberg.ListType():
            return f"ARRAY<{to_spark_type(kind.element_type)}>"
        case iceberg.MapType():
            return f"MAP<{to_spark_type(kind.key_type)}, {to_spark_type(kind.value_type)}>"
    if (found := _TO_SPARK.get(type(kind))) is None:
        raise EngineCapabilityError(
            f"Spark cannot read or write columns of type {kind}. Use the Arrow engine for this table.", engine="spark"
        )
    return found


def to_spark_schema(schema: Schema) -> str:
    """Spark's schema for an Iceberg schema, as DDL.

    Raises:
        EngineCapabilityError: Spark does not support one of the types.
    """
    return ", ".join(f"{quote(field.name)} {to_spark_type(field.field_type)}" for field in schema.fields)


def check_types(schema: Schema, table: object) -> None:
    """Check that Spark has the types of all columns; it loads no table that has another one.

    Raises:
        EngineCapabilityError: With the name of the column.
    """
    for field in schema.fields:
        try:
            to_spark_type(field.field_type)
        except EngineCapabilityError:
            kind = field.field_type
            raise EngineCapabilityError(
                f"Spark cannot read or write columns of type {kind}, such as '{field.name}' of '{table}'. Use Arrow, "
                "which reads the table, and writes format versions 1 and 2.",
                engine="spark",
                table=table,
                reason=f"column '{field.name}' is of type {kind}, which Spark does not have",
            ) from None

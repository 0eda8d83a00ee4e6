"""Columns of a table and their types."""

from enum import StrEnum
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator
from pyiceberg import types as iceberg

from floe_dagster_iceberg.models.base import FrozenModel, Items

MAX_DECIMAL_PRECISION: Final = 38


class FieldType(StrEnum):
    """The primitive types of an Iceberg table (format version 2)."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    STRING = "string"
    UUID = "uuid"
    FIXED = "fixed"
    BINARY = "binary"


# Decimal and fixed are absent: their PyIceberg types need arguments.
_PLAIN_TYPES: Final[dict[FieldType, iceberg.PrimitiveType]] = {
    FieldType.BOOLEAN: iceberg.BooleanType(),
    FieldType.INT: iceberg.IntegerType(),
    FieldType.LONG: iceberg.LongType(),
    FieldType.FLOAT: iceberg.FloatType(),
    FieldType.DOUBLE: iceberg.DoubleType(),
    FieldType.DATE: iceberg.DateType(),
    FieldType.TIME: iceberg.TimeType(),
    FieldType.TIMESTAMP: iceberg.TimestampType(),
    FieldType.TIMESTAMPTZ: iceberg.TimestamptzType(),
    FieldType.STRING: iceberg.StringType(),
    FieldType.UUID: iceberg.UUIDType(),
    FieldType.BINARY: iceberg.BinaryType(),
}
_NAMES_OF_PLAIN_TYPES: Final = {iceberg_type: name for name, iceberg_type in _PLAIN_TYPES.items()}


class DecimalOf(FrozenModel):
    """A decimal inside a list or map; a column of its own takes `FieldType.DECIMAL` with `precision`."""

    type: Literal["decimal"] = Field(default="decimal", description="Marks this type in JSON.")
    precision: int = Field(ge=1, le=MAX_DECIMAL_PRECISION, description="Digits in all.")
    scale: int = Field(default=0, ge=0, description="Digits after the point, at most the precision.")

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        self.to_pyiceberg_type()
        return self

    def to_pyiceberg_type(self) -> iceberg.DecimalType:
        """Convert to a PyIceberg type."""
        return _to_decimal(self.precision, self.scale)


class FixedOf(FrozenModel):
    """Bytes of one length inside a list or map; a column of its own takes `FieldType.FIXED` with `length`."""

    type: Literal["fixed"] = Field(default="fixed", description="Marks this type in JSON.")
    length: int = Field(ge=1, description="Length of every value in bytes.")

    def to_pyiceberg_type(self) -> iceberg.FixedType:
        """Convert to a PyIceberg type."""
        return _to_fixed(self.length)


class StructOf(FrozenModel):
    """A column made of named fields."""

    type: Literal["struct"] = Field(default="struct", description="Marks this type in JSON.")
    fields: Items["SchemaField"] = Field(min_length=1, description="The fields, in order.")

    def to_pyiceberg_type(self) -> iceberg.StructType:
        """Convert to a PyIceberg type."""
        return iceberg.StructType(*(field.to_pyiceberg_field() for field in self.fields))


class ListOf(FrozenModel):
    """A column that holds a list of values of one type."""

    type: Literal["list"] = Field(default="list", description="Marks this type in JSON.")
    element_id: int = Field(ge=1, description="Field id of the element, unique in the schema.")
    element: "ElementType" = Field(description="Type of the elements.")
    element_required: bool = Field(default=False, description="Whether an element may never be null.")

    def to_pyiceberg_type(self) -> iceberg.ListType:
        """Convert to a PyIceberg type."""
        return iceberg.ListType(
            element_id=self.element_id,
            element=to_pyiceberg_type(self.element),
            element_required=self.element_required,
        )


class MapOf(FrozenModel):
    """A column that maps keys of one type to values of another."""

    type: Literal["map"] = Field(default="map", description="Marks this type in JSON.")
    key_id: int = Field(ge=1, description="Field id of the key, unique in the schema.")
    key: "ElementType" = Field(description="Type of the keys, which are never null.")
    value_id: int = Field(ge=1, description="Field id of the value, unique in the schema.")
    value: "ElementType" = Field(description="Type of the values.")
    value_required: bool = Field(default=False, description="Whether a value may never be null.")

    def to_pyiceberg_type(self) -> iceberg.MapType:
        """Convert to a PyIceberg type."""
        return iceberg.MapType(
            key_id=self.key_id,
            key_type=to_pyiceberg_type(self.key),
            value_id=self.value_id,
            value_type=to_pyiceberg_type(self.value),
            value_required=self.value_required,
        )


NestedType: TypeAlias = StructOf | ListOf | MapOf


def _check_element(
    element: FieldType | DecimalOf | FixedOf | NestedType,
) -> FieldType | DecimalOf | FixedOf | NestedType:
    if element is FieldType.DECIMAL:
        raise ValueError("a decimal element needs its digits: write DecimalOf(precision=..., scale=...)")
    if element is FieldType.FIXED:
        raise ValueError("a fixed element needs its length: write FixedOf(length=...)")
    return element


ColumnType: TypeAlias = FieldType | Annotated[NestedType, Field(discriminator="type")]
"""Type of a column."""

ElementType: TypeAlias = Annotated[
    FieldType | Annotated[DecimalOf | FixedOf | NestedType, Field(discriminator="type")],
    AfterValidator(_check_element),
]
"""Type of an element, key or value, which has no field to hold the arguments of decimal and fixed."""


class SchemaField(FrozenModel):
    """One column, or one field of a struct."""

    field_id: int = Field(ge=1, description="Id that stays with the column when it is renamed; unique in the schema.")
    name: str = Field(min_length=1, description="Name, unique among its siblings.")
    field_type: ColumnType = Field(description="A primitive type, or StructOf, ListOf, MapOf.")
    required: bool = Field(default=False, description="Whether the value may never be null.")
    doc: str | None = Field(default=None, description="What the column means, kept in the table.")
    precision: int | None = Field(default=None, description="Digits of a decimal, 1 to 38; only for decimal.")
    scale: int | None = Field(
        default_factory=lambda data: 0 if data.get("field_type") is FieldType.DECIMAL else None,
        description="Digits after the point of a decimal, 0 unless given; only for decimal.",
    )
    length: int | None = Field(default=None, description="Length in bytes; only for fixed.")

    @model_validator(mode="after")
    def _check_type_arguments(self) -> Self:
        self.to_pyiceberg_field()
        return self

    def to_pyiceberg_field(self) -> iceberg.NestedField:
        """Convert to a PyIceberg field with the same id."""
        try:
            iceberg_type = to_pyiceberg_type(
                self.field_type, precision=self.precision, scale=self.scale, length=self.length
            )
        except ValueError as error:
            raise ValueError(f"column '{self.name}': {error}") from error
        return iceberg.NestedField(
            field_id=self.field_id, name=self.name, field_type=iceberg_type, required=self.required, doc=self.doc
        )

    @classmethod
    def from_pyiceberg_field(cls, field: iceberg.NestedField) -> Self:
        """Convert from a PyIceberg field with the same id.

        Raises:
            ValueError: The type is not supported.
        """
        field_type = _element_from_pyiceberg(field.field_type, column=field.name)
        arguments: dict[str, int] = {}
        match field_type:
            case DecimalOf(precision=precision, scale=scale):
                field_type, arguments = FieldType.DECIMAL, {"precision": precision, "scale": scale}
            case FixedOf(length=length):
                field_type, arguments = FieldType.FIXED, {"length": length}
        return cls(
            field_id=field.field_id,
            name=field.name,
            field_type=field_type,
            required=field.required,
            doc=field.doc,
            **arguments,
        )


def to_pyiceberg_type(
    field_type: ColumnType | ElementType,
    *,
    precision: int | None = None,
    scale: int | None = None,
    length: int | None = None,
) -> iceberg.IcebergType:
    """Convert to a PyIceberg type.

    Raises:
        ValueError: An argument is missing, out of bounds, or not one of the type's.
    """
    if field_type is not FieldType.DECIMAL and (precision is not None or scale is not None):
        raise ValueError("only decimal takes precision and scale; leave them out")
    if field_type is not FieldType.FIXED and length is not None:
        raise ValueError("only fixed takes a length; leave it out")
    match field_type:
        case FieldType.DECIMAL:
            return _to_decimal(precision, scale)
        case FieldType.FIXED:
            return _to_fixed(length)
        case FieldType():
            return _PLAIN_TYPES[field_type]
        case _:
            return field_type.to_pyiceberg_type()


def _to_decimal(precision: int | None, scale: int | None) -> iceberg.DecimalType:
    if precision is None or not 1 <= precision <= MAX_DECIMAL_PRECISION:
        raise ValueError(f"decimal needs a precision from 1 to {MAX_DECIMAL_PRECISION}, got {precision}")
    if scale is not None and not 0 <= scale <= precision:
        raise ValueError(f"the scale of decimal({precision}) must be from 0 to {precision}, got {scale}")
    return iceberg.DecimalType(precision, scale or 0)


def _to_fixed(length: int | None) -> iceberg.FixedType:
    if length is None or length < 1:
        raise ValueError(f"fixed needs a length of at least 1 byte, got {length}")
    return iceberg.FixedType(length)


def _element_from_pyiceberg(iceberg_type: iceberg.IcebergType, *, column: str) -> ElementType:
    match iceberg_type:
        case iceberg.DecimalType():
            return DecimalOf(precision=iceberg_type.precision, scale=iceberg_type.scale)
        case iceberg.FixedType():
            return FixedOf(length=len(iceberg_type))
        case iceberg.StructType():
            return StructOf(fields=[SchemaField.from_pyiceberg_field(field) for field in iceberg_type.fields])
        case iceberg.ListType():
            return ListOf(
                element_id=iceberg_type.element_id,
                element=_element_from_pyiceberg(iceberg_type.element_type, column=column),
                element_required=iceberg_type.element_required,
            )
        case iceberg.MapType():
            return MapOf(
                key_id=iceberg_type.key_id,
                key=_element_from_pyiceberg(iceberg_type.key_type, column=column),
                value_id=iceberg_type.value_id,
                value=_element_from_pyiceberg(iceberg_type.value_type, column=column),
                value_required=iceberg_type.value_required,
            )
        case iceberg.PrimitiveType() if iceberg_type in _NAMES_OF_PLAIN_TYPES:
            return _NAMES_OF_PLAIN_TYPES[iceberg_type]
        case _:
            raise ValueError(
                f"Column '{column}' has type {iceberg_type}, which this package does not write. "
                f"Use one of {', '.join(FieldType)}, struct, list or map."
            )

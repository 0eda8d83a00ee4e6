"""Columns, nested types and schemas."""

from typing import Any

import pytest
from pydantic import ValidationError
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from floe_dagster_iceberg.models import DecimalOf, FieldType, FixedOf, ListOf, MapOf, SchemaField, StructOf, TableSchema

pytestmark = pytest.mark.requirement("S1-T018/19")

ICEBERG_TYPES: dict[FieldType, tuple[dict[str, int], iceberg.IcebergType]] = {
    FieldType.BOOLEAN: ({}, iceberg.BooleanType()),
    FieldType.INT: ({}, iceberg.IntegerType()),
    FieldType.LONG: ({}, iceberg.LongType()),
    FieldType.FLOAT: ({}, iceberg.FloatType()),
    FieldType.DOUBLE: ({}, iceberg.DoubleType()),
    FieldType.DECIMAL: ({"precision": 9, "scale": 2}, iceberg.DecimalType(9, 2)),
    FieldType.DATE: ({}, iceberg.DateType()),
    FieldType.TIME: ({}, iceberg.TimeType()),
    FieldType.TIMESTAMP: ({}, iceberg.TimestampType()),
    FieldType.TIMESTAMPTZ: ({}, iceberg.TimestamptzType()),
    FieldType.STRING: ({}, iceberg.StringType()),
    FieldType.UUID: ({}, iceberg.UUIDType()),
    FieldType.FIXED: ({"length": 16}, iceberg.FixedType(16)),
    FieldType.BINARY: ({}, iceberg.BinaryType()),
}
NESTED = TableSchema(
    fields=[
        SchemaField(field_id=1, name="id", field_type=FieldType.LONG, required=True, doc="the key"),
        SchemaField(
            field_id=2,
            name="prices",
            field_type=MapOf(
                key_id=3,
                key=FixedOf(length=2),
                value_id=4,
                value=ListOf(element_id=5, element=DecimalOf(precision=9, scale=2), element_required=True),
                value_required=True,
            ),
        ),
        SchemaField(
            field_id=6,
            name="address",
            field_type=StructOf(fields=[SchemaField(field_id=7, name="city", field_type=FieldType.STRING)]),
        ),
    ],
    identifier_field_ids=[1],
    schema_id=3,
)


def field(field_type: Any = FieldType.STRING, *, field_id: int = 1, name: str = "c", **arguments: Any) -> SchemaField:
    return SchemaField(field_id=field_id, name=name, field_type=field_type, **arguments)


@pytest.mark.parametrize("field_type", FieldType)
def test_each_type_becomes_its_pyiceberg_type_and_comes_back(field_type: FieldType) -> None:
    arguments, expected = ICEBERG_TYPES[field_type]
    column = field(field_type, required=True, doc="why", **arguments)

    assert column.to_pyiceberg_field() == iceberg.NestedField(1, "c", expected, required=True, doc="why")
    assert SchemaField.from_pyiceberg_field(column.to_pyiceberg_field()) == column


def test_a_nested_schema_keeps_its_ids_both_ways() -> None:
    expected = Schema(
        iceberg.NestedField(1, "id", iceberg.LongType(), required=True, doc="the key"),
        iceberg.NestedField(
            2,
            "prices",
            iceberg.MapType(
                key_id=3,
                key_type=iceberg.FixedType(2),
                value_id=4,
                value_type=iceberg.ListType(element_id=5, element=iceberg.DecimalType(9, 2), element_required=True),
                value_required=True,
            ),
        ),
        iceberg.NestedField(
            6, "address", iceberg.StructType(iceberg.NestedField(7, "city", iceberg.StringType(), required=False))
        ),
        schema_id=3,
        identifier_field_ids=[1],
    )

    assert NESTED.to_pyiceberg_schema().model_dump() == expected.model_dump()
    assert TableSchema.from_pyiceberg_schema(expected) == NESTED
    assert NESTED.column_ids == {1, 2, 6, 7}


@pytest.mark.parametrize("precision", [1, 38])
@pytest.mark.parametrize("scale", [0, 1])
def test_a_decimal_takes_digits_within_its_bounds(precision: int, scale: int) -> None:
    expected = iceberg.DecimalType(precision, scale)

    assert field("decimal", precision=precision, scale=scale).to_pyiceberg_field().field_type == expected
    assert DecimalOf(precision=precision, scale=scale).to_pyiceberg_type() == expected


def test_a_decimal_without_a_scale_has_scale_0() -> None:
    assert field("decimal", precision=5).scale == 0
    assert field("decimal", precision=5, scale=None).to_pyiceberg_field().field_type == iceberg.DecimalType(5, 0)
    assert field("string").scale is None


@pytest.mark.parametrize(
    ("field_type", "arguments", "message"),
    [
        ("decimal", {}, "column 'c': decimal needs a precision from 1 to 38, got None"),
        ("decimal", {"precision": 0}, "from 1 to 38, got 0"),
        ("decimal", {"precision": 39}, "from 1 to 38, got 39"),
        ("decimal", {"precision": 5, "scale": 6}, "must be from 0 to 5, got 6"),
        ("decimal", {"precision": 5, "scale": -1}, "must be from 0 to 5, got -1"),
        ("decimal", {"precision": 5, "length": 1}, "only fixed takes a length"),
        ("fixed", {}, "fixed needs a length of at least 1 byte, got None"),
        ("fixed", {"length": 0}, "at least 1 byte, got 0"),
        ("fixed", {"length": 1, "precision": 5}, "only decimal takes precision"),
        ("string", {"scale": 0}, "only decimal takes precision and scale"),
        ("string", {"length": 5}, "only fixed takes a length"),
        ("varchar", {}, "field_type"),
        ("string", {"field_id": 0}, "field_id"),
        ("string", {"name": ""}, "name"),
    ],
)
def test_a_column_that_is_invalid_is_refused(field_type: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        field(field_type, **arguments)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DecimalOf(precision=39), "precision"),
        (lambda: DecimalOf(precision=2, scale=3), "must be from 0 to 2, got 3"),
        (lambda: FixedOf(length=0), "length"),
        (lambda: StructOf(fields=[]), "fields"),
        (lambda: ListOf(element_id=1, element=FieldType.DECIMAL), r"write DecimalOf\("),
        (lambda: MapOf(key_id=1, key="fixed", value_id=2, value="string"), r"write FixedOf\("),
    ],
)
def test_a_nested_type_that_is_invalid_is_refused(build: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "fields"),
        ([field(name="a"), field(name="b")], "field id 1 is used twice"),
        ([field(), field(ListOf(element_id=1, element="int"), field_id=2, name="l")], "field id 1 is used twice"),
        ([field(), field(field_id=2)], "column 'c' is there twice"),
        ([field(StructOf(fields=[field(field_id=2), field(field_id=3)]))], "column 'c.c' is there twice"),
        (
            [
                field(
                    ListOf(
                        element_id=2,
                        element=MapOf(
                            key_id=3,
                            key="string",
                            value_id=4,
                            value=StructOf(fields=[field(field_id=5), field(field_id=6)]),
                        ),
                    )
                )
            ],
            "column 'c.element.value.c' is there twice",
        ),
    ],
)
def test_ids_are_unique_in_a_schema_and_names_among_siblings(fields: list[SchemaField], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TableSchema(fields=fields)


def test_the_same_name_may_appear_on_two_levels() -> None:
    assert TableSchema(fields=[field(StructOf(fields=[field(field_id=2)]))])


@pytest.mark.parametrize(
    ("column", "ids", "message"),
    [
        (field(required=True), [2], r"identifier field id 2 is no top-level column: ids are \[1\]"),
        (field(), [1], "must be required"),
        (field("double", required=True), [1], "neither float nor double"),
        (field(ListOf(element_id=2, element="int"), required=True), [1], "primitive"),
    ],
)
def test_a_column_that_cannot_identify_a_row_is_refused(column: SchemaField, ids: list[int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TableSchema(fields=[column], identifier_field_ids=ids)


def test_a_type_of_a_later_format_version_is_refused_with_column_and_choices() -> None:
    schema = Schema(iceberg.NestedField(1, "at", iceberg.TimestampNanoType(), required=False))

    with pytest.raises(ValueError, match=r"Column 'at' has type timestamp_ns.*Use one of boolean, int,"):
        TableSchema.from_pyiceberg_schema(schema)

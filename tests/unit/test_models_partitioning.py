"""Partition specs, and tables that have one."""

from typing import Any

import pytest
from pydantic import ValidationError
from pyiceberg import transforms

from floe_dagster_iceberg.models import (
    ListOf,
    PartitionField,
    PartitionSpec,
    PartitionTransform,
    SchemaField,
    StructOf,
    TableConfig,
    TableIdentifier,
    TableSchema,
)

TRANSFORMS: dict[PartitionTransform, tuple[dict[str, int], transforms.Transform[Any, Any]]] = {
    PartitionTransform.IDENTITY: ({}, transforms.IdentityTransform()),
    PartitionTransform.YEAR: ({}, transforms.YearTransform()),
    PartitionTransform.MONTH: ({}, transforms.MonthTransform()),
    PartitionTransform.DAY: ({}, transforms.DayTransform()),
    PartitionTransform.HOUR: ({}, transforms.HourTransform()),
    PartitionTransform.BUCKET: ({"num_buckets": 16}, transforms.BucketTransform(16)),
    PartitionTransform.TRUNCATE: ({"width": 4}, transforms.TruncateTransform(4)),
}
SCHEMA = TableSchema(
    fields=[
        SchemaField(field_id=1, name="id", field_type="long"),
        SchemaField(field_id=2, name="ts", field_type="timestamptz"),
        SchemaField(
            field_id=3,
            name="address",
            field_type=StructOf(fields=[SchemaField(field_id=4, name="city", field_type="string")]),
        ),
        SchemaField(field_id=5, name="tags", field_type=ListOf(element_id=6, element="string")),
    ]
)


def field(transform: str = "identity", *, source: int = 1, field_id: int = 1000, **arguments: Any) -> PartitionField:
    name = arguments.pop("name", f"part_{source}_{transform}")
    return PartitionField(
        source_field_id=source, partition_field_id=field_id, name=name, transform=transform, **arguments
    )


def config(*fields: PartitionField) -> TableConfig:
    return TableConfig(
        namespace="bronze.raw", table_name="events", table_schema=SCHEMA, partition_spec=PartitionSpec(fields=fields)
    )


@pytest.mark.requirement("S1-T020/21/67")
@pytest.mark.parametrize("transform", PartitionTransform)
def test_each_transform_becomes_its_pyiceberg_transform(transform: PartitionTransform) -> None:
    arguments, expected = TRANSFORMS[transform]

    (converted,) = PartitionSpec(fields=[field(transform, name="p", **arguments)], spec_id=2).to_pyiceberg_spec().fields

    assert (converted.source_id, converted.field_id, converted.name) == (1, 1000, "p")
    assert converted.transform == expected


@pytest.mark.requirement("S1-T020/21/67")
@pytest.mark.parametrize(
    ("transform", "arguments", "message"),
    [
        ("bucket", {}, "bucket needs num_buckets"),
        ("bucket", {"num_buckets": 0}, "num_buckets"),
        ("bucket", {"num_buckets": 4, "width": 4}, "bucket takes no width"),
        ("truncate", {}, "truncate needs width"),
        ("truncate", {"width": 0}, "width"),
        ("truncate", {"width": 4, "num_buckets": 4}, "truncate takes no num_buckets"),
        ("day", {"num_buckets": 4}, "day takes no num_buckets; leave it out"),
        ("identity", {"width": 4}, "identity takes no width"),
        ("void", {}, "transform"),
        ("day", {"field_id": 999}, "partition_field_id"),
        ("day", {"source": 0}, "source_field_id"),
        ("day", {"name": ""}, "name"),
    ],
)
def test_a_partition_field_that_is_invalid_is_refused(transform: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        field(transform, **arguments)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (field("day", source=2, field_id=1001, name="part_1_identity"), "name 'part_1_identity' is used twice"),
        (field("day", source=2), "id 1000 is used twice"),
        (field(field_id=1001, name="again"), "identity of field id 1 is there twice"),
    ],
)
def test_the_fields_of_a_spec_differ(second: PartitionField, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PartitionSpec(fields=[field(), second])


def test_an_empty_spec_is_refused() -> None:
    with pytest.raises(ValidationError, match="fields"):
        PartitionSpec(fields=[])


@pytest.mark.requirement("S1-T022/31/68")
def test_a_table_config_knows_its_identifier() -> None:
    assert config(field()).identifier == TableIdentifier(namespace="bronze.raw", name="events")


@pytest.mark.requirement("S1-T022/31/68")
def test_a_nested_field_may_be_the_source_of_a_partition() -> None:
    assert config(field("truncate", source=4, width=2)).partition_spec is not None


@pytest.mark.requirement("S1-T022/31/68")
@pytest.mark.parametrize(
    ("partition_field", "message"),
    [
        (field(source=9), r"reads field id 9, which is no column with one value per row: ids are \[1, 2, 3, 4, 5\]"),
        (field(source=6), "reads field id 6, which is no column with one value per row"),
        (field("day", source=1), "day cannot be applied to 'id' of type long"),
        (field("identity", source=3), "identity cannot be applied to 'address'"),
        (field("bucket", source=2, num_buckets=4, name="id"), "named like the column 'id'"),
        (field("identity", source=4, name="id"), "named like the column 'id'"),
    ],
)
def test_a_spec_that_does_not_fit_the_schema_is_refused(partition_field: PartitionField, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(partition_field)


def test_an_identity_field_may_be_named_like_its_own_column() -> None:
    assert config(field(source=1, name="id")).partition_spec is not None


@pytest.mark.parametrize(
    "bad", [{"namespace": "a..b"}, {"table_name": "a.b"}, {"location": ""}, {"properties": {"a": 1}}]
)
def test_a_table_config_that_is_invalid_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        TableConfig(**{"namespace": "ns", "table_name": "t", "table_schema": SCHEMA, **bad})

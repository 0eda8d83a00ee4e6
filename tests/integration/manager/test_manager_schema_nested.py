"""`evolve_schema` inside structs, lists and maps, and on names that only look nested."""

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType
from support.lake import Lake
from support.schema_cases import T, change, forced

from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError, SchemaEvolutionError
from floe_dagster_iceberg.models import FieldType, SchemaChange, SchemaField, StructOf
from floe_dagster_iceberg.table.manager import IcebergTableManager

CUSTOMER = StructType(
    NestedField(3, "name", StringType(), required=False), NestedField(4, "age", IntegerType(), required=False)
)
LINE = StructType(NestedField(7, "sku", StringType(), required=False))
TAG = StructType(NestedField(11, "group", StringType(), required=True))
NESTED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "customer", CUSTOMER, required=False),
    NestedField(5, "lines", ListType(6, LINE, element_required=False), required=False),
    NestedField(8, "tags", MapType(9, TAG, 10, IntegerType(), value_required=False), required=False),
)


@pytest.fixture
def nested(manager: IcebergTableManager) -> Table:
    return manager.create_table(T, NESTED)


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-017")
def test_fields_of_structs_in_lists_and_maps_evolve(manager: IcebergTableManager, lake: Lake, nested: Table) -> None:
    address = StructOf(fields=[SchemaField(field_id=1, name="city", field_type=FieldType.STRING, required=True)])
    name_id = nested.schema().find_field("customer.name").field_id

    manager.evolve_schema(
        T,
        [
            change("add_column", "customer.address", new_type=address),
            change("add_column", "customer.address.zip", new_type=FieldType.STRING),
            change("add_column", "lines.price", new_type=FieldType.DOUBLE),
            change("rename_column", "customer.name", new_name="full_name"),
            change("widen_type", "customer.age", new_type=FieldType.LONG),
            change("widen_type", "tags.value", new_type=FieldType.LONG),
        ],
    )

    schema = lake.table(T).schema()
    assert schema.find_type("customer.age") == schema.find_type("tags.value") == LongType()
    assert schema.find_field("customer.full_name").field_id == name_id
    assert schema.find_field("customer.address.city").field_id == 13
    assert schema.find_field("customer.address.zip").optional
    assert schema.find_field("lines.element.price").optional
    assert sorted(schema.field_ids) == list(range(1, 16))


@pytest.mark.requirement("S2-US3.1")
def test_old_rows_read_null_in_an_added_field_of_a_struct(
    manager: IcebergTableManager, lake: Lake, nested: Table
) -> None:
    customer = pa.struct([("name", pa.string()), ("age", pa.int32())])
    manager.append(nested, pa.table({"customer": pa.array([{"name": "a", "age": 1}], customer)}))

    manager.evolve_schema(T, [change("add_column", "customer.city", new_type=FieldType.STRING)])

    assert lake.table(T).scan().to_arrow()["customer"].to_pylist() == [{"name": "a", "age": 1, "city": None}]


@pytest.mark.parametrize(
    "refused",
    [
        change("add_column", "id.part", new_type=FieldType.STRING),
        change("add_column", "tags.key.part", new_type=FieldType.STRING),
        change("rename_column", "tags.key.group", new_name="family"),
        change("rename_column", "lines.element", new_name="line"),
        change("update_doc", "tags.value", new_doc="count"),
        change("widen_type", "customer", new_type=FieldType.STRING),
    ],
    ids=lambda refused: f"{refused.change_type} {refused.column_name}",
)
def test_what_has_no_name_or_is_a_key_does_not_change(
    manager: IcebergTableManager, nested: Table, refused: SchemaChange
) -> None:
    with pytest.raises(IncompatibleSchemaChangeError):
        manager.evolve_schema(nested, [refused])


def test_the_last_field_of_a_struct_stays(manager: IcebergTableManager, nested: Table) -> None:
    with pytest.raises(IncompatibleSchemaChangeError, match="last one"):
        manager.evolve_schema(nested, forced(change("delete_column", "lines.sku")))


@pytest.mark.requirement("S2-E3")
@pytest.mark.usefixtures("nested")
def test_a_null_struct_is_no_null_of_its_fields(manager: IcebergTableManager, lake: Lake) -> None:
    customer = pa.struct([("name", pa.string()), ("age", pa.int32())])
    manager.append(T, pa.table({"customer": pa.array([{"name": "a", "age": None}, None], customer)}))

    manager.evolve_schema(T, forced(change("make_required", "customer.name")))
    for column in ("customer.age", "customer"):
        with pytest.raises(IncompatibleSchemaChangeError, match=f"'{column}'"):
            manager.evolve_schema(T, forced(change("make_required", column)))

    assert lake.table(T).schema().find_field("customer.name").required


@pytest.mark.requirement("S2-E3")
@pytest.mark.usefixtures("nested")
def test_nulls_are_found_in_lists_and_maps(manager: IcebergTableManager, lake: Lake) -> None:
    lines = pa.list_(pa.struct([("sku", pa.string())]))
    tags = pa.map_(pa.struct([pa.field("group", pa.string(), nullable=False)]), pa.int32())
    rows = {
        "lines": pa.array([[{"sku": "a"}, {"sku": None}], None, []], lines),
        "tags": pa.array([[({"group": "g"}, 1)], None, [({"group": "h"}, 2)]], tags),
    }
    manager.append(T, pa.table(rows))

    with pytest.raises(IncompatibleSchemaChangeError, match="NULL"):
        manager.evolve_schema(T, forced(change("make_required", "lines.element.sku")))
    manager.evolve_schema(T, forced(change("make_required", "lines.element"), change("make_required", "tags.value")))

    assert lake.table(T).schema().find_field("lines.element").required
    assert lake.table(T).schema().find_field("tags.value").required


def test_a_dot_in_a_columns_own_name_is_part_of_it(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_table(T, pa.schema([("utm.source", pa.string()), ("id", pa.int32())]))
    manager.append(T, pa.table({"utm.source": ["mail"], "id": pa.array([1], pa.int32())}))

    with pytest.raises(SchemaEvolutionError, match="already has it"):
        manager.evolve_schema(T, [change("add_column", "utm.source", new_type=FieldType.STRING)])
    manager.evolve_schema(T, [change("rename_column", "utm.source", new_name="utm_source")])

    assert lake.rows(T) == [("mail", 1)]
    assert lake.table(T).schema().column_names == ["utm_source", "id"]

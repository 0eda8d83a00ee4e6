"""`evolve_schema` against what stands on the columns: rows, partitions, sort order, other writers."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField
from support.lake import Lake
from support.racing_catalog import QUICK, racing_manager
from support.schema_cases import T, change, forced

from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError, SchemaEvolutionError
from floe_dagster_iceberg.models import FieldType
from floe_dagster_iceberg.table.manager import IcebergTableManager

NOTES = pa.schema([("note", pa.string())])


def notes(*values: str | None) -> pa.Table:
    return pa.table({"note": values}, schema=NOTES)


@pytest.mark.requirement("S2-E3")
@pytest.mark.parametrize("metrics", ["truncate(16)", "none"])
def test_nulls_stop_a_column_from_becoming_required(manager: IcebergTableManager, lake: Lake, metrics: str) -> None:
    manager.create_table(T, NOTES, properties={"write.metadata.metrics.default": metrics})
    manager.append(T, notes("a", "b"))
    manager.append(T, notes("c", None))

    with pytest.raises(SchemaEvolutionError, match="NULL"):
        manager.evolve_schema(T, forced(change("make_required", "note")))

    assert lake.table(T).schema().find_field("note").optional


@pytest.mark.requirement("S2-E3")
@pytest.mark.parametrize("metrics", ["truncate(16)", "none"])
def test_a_column_becomes_required_once_its_nulls_are_gone(
    manager: IcebergTableManager, lake: Lake, metrics: str
) -> None:
    manager.create_table(T, NOTES, properties={"write.metadata.metrics.default": metrics})
    manager.append(T, notes("a", None))
    manager.delete(T, "note is null")

    manager.evolve_schema(T, forced(change("make_required", "note")))

    assert lake.table(T).schema().find_field("note").required
    assert lake.rows(T) == [("a",)]


@pytest.mark.requirement("S2-E3")
def test_nulls_do_not_matter_to_a_column_that_ends_optional_or_deleted(
    manager: IcebergTableManager, lake: Lake
) -> None:
    manager.create_table(T, NOTES)
    manager.append(T, notes("a", None))
    add, require = change("add_column", "x", new_type=FieldType.STRING), change("make_required", "note")

    manager.evolve_schema(T, forced(require, change("make_optional", "note"), add))
    manager.evolve_schema(T, forced(require, change("delete_column", "note")))

    assert lake.table(T).schema().column_names == ["x"]


@pytest.mark.requirement("S2-E3")
def test_nulls_of_another_branch_count_too(manager: IcebergTableManager) -> None:
    manager.create_table(T, NOTES)
    manager.append(T, notes("a"))
    manager.append(T, notes(None), branch="audit")

    with pytest.raises(SchemaEvolutionError, match="NULL"):
        manager.evolve_schema(T, forced(change("make_required", "note")))


@pytest.mark.requirement("S2-US3.4")
def test_columns_that_partitions_come_from_stay(manager: IcebergTableManager, lake: Lake, orders: pa.Schema) -> None:
    manager.create_table(T, orders)
    manager.evolve_partition_spec(T, add=["region", "month(day)"])
    manager.evolve_partition_spec(T, remove=["region"])

    for column in ("day", "region"):
        with pytest.raises(IncompatibleSchemaChangeError, match="partition field"):
            manager.evolve_schema(T, forced(change("delete_column", column)))
    with pytest.raises(IncompatibleSchemaChangeError, match="named 'day_month'"):
        manager.evolve_schema(T, [change("add_column", "day_month", new_type=FieldType.STRING)])
    manager.evolve_schema(T, [change("rename_column", "day", new_name="ordered_on")])

    assert [field.name for field in lake.table(T).spec().fields] == ["day_month"]


@pytest.mark.lakes
def test_a_column_that_the_table_is_sorted_by_stays(manager: IcebergTableManager, lake: Lake) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", LongType()))
    lake.catalog.create_table(T, schema, sort_order=SortOrder(SortField(2, IdentityTransform())))

    with pytest.raises(IncompatibleSchemaChangeError, match="sorted by it"):
        manager.evolve_schema(T, forced(change("delete_column", "at")))


def test_a_widened_partition_source_keeps_its_rows_findable(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_table(T, pa.schema([("id", pa.int32()), ("n", pa.int32())]))
    manager.evolve_partition_spec(T, add=["id", "bucket(4, n)"])
    manager.append(T, pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([10, 20], pa.int32())}))

    manager.evolve_schema(T, [change("widen_type", name, new_type=FieldType.LONG) for name in ("id", "n")])
    manager.append(T, pa.table({"id": [2**40], "n": [2**41]}))

    assert lake.rows(T) == [(1, 10), (2**40, 2**41), (2, 20)]
    assert manager.scan(T, row_filter="n = 20").to_pylist() == [{"id": 2, "n": 20}]
    assert manager.scan(T, row_filter="id = 1").num_rows == 1


@pytest.mark.lakes
def test_a_name_mapping_keeps_in_step(manager: IcebergTableManager, lake: Lake) -> None:
    table = manager.create_table(T, NOTES)
    mapping = create_mapping_from_schema(table.schema()).model_dump_json()
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": mapping})

    manager.evolve_schema(
        T, [change("rename_column", "note", new_name="remark"), change("add_column", "x", new_type=FieldType.STRING)]
    )

    assert {field.field_id: field.names for field in lake.table(T).name_mapping()} == {1: ["note", "remark"], 2: ["x"]}


@pytest.mark.lakes
@pytest.mark.requirement("S2-E5")
def test_a_stale_handle_evolves_the_schema_that_is_there_now(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_table(T, NOTES)
    stale = lake.connect().load_table(T)
    manager.evolve_schema(T, [change("add_column", "a", new_type=FieldType.STRING)])

    evolved = manager.evolve_schema(stale, [change("add_column", "b", new_type=FieldType.STRING)])

    assert evolved is stale
    assert lake.table(T).schema().column_names == ["note", "a", "b"]
    assert lake.table(T).schema().find_field("b").field_id == 3


@pytest.mark.lakes
@pytest.mark.requirement("S2-E5")
def test_a_change_lands_after_another_writers_change(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_table(T, NOTES)
    first = [change("add_column", "a", new_type=FieldType.STRING)]

    second = racing_manager(lake.place, lambda: manager.evolve_schema(T, first))
    second.evolve_schema(T, [change("add_column", "b", new_type=FieldType.STRING)])

    assert lake.table(T).schema().column_names == ["note", "a", "b"]
    assert lake.metadata_versions(T) == 3


@pytest.mark.lakes
@pytest.mark.requirement("S2-E5")
def test_a_schema_that_changes_before_the_commit_is_checked_again(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_table(T, NOTES)
    add = [change("add_column", "a", new_type=FieldType.STRING)]
    second = racing_manager(lake.place, lambda: manager.evolve_schema(T, add))

    with pytest.raises(SchemaEvolutionError, match="already has it"):
        second.evolve_schema(T, add)

    assert len(lake.table(T).schemas()) == 2


@pytest.mark.lakes
@pytest.mark.requirement("S2-E5", "S2-E3")
@pytest.mark.parametrize("rows_before", [(), ("a",)])
def test_nulls_written_before_the_commit_are_seen(
    manager: IcebergTableManager, lake: Lake, rows_before: tuple[str, ...]
) -> None:
    manager.create_table(T, NOTES)
    if rows_before:
        manager.append(T, notes(*rows_before))
    second = racing_manager(lake.place, lambda: manager.append(T, notes(None)))

    with pytest.raises(SchemaEvolutionError, match="NULL"):
        second.evolve_schema(T, forced(change("make_required", "note")))

    assert lake.table(T).schema().find_field("note").optional


@pytest.mark.lakes
@pytest.mark.requirement("S2-E5")
def test_eight_clients_add_a_column_each_at_once(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_table(T, NOTES)

    def add(number: int) -> None:
        client = IcebergTableManager(lake.connect(), config=QUICK)
        client.evolve_schema(T, [change("add_column", f"c{number}", new_type=FieldType.STRING)])

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(add, range(8)))

    schema = lake.table(T).schema()
    assert set(schema.column_names) == {"note"} | {f"c{number}" for number in range(8)}
    assert sorted(schema.field_ids) == list(range(1, 10))

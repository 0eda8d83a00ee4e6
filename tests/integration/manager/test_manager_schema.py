"""`evolve_schema` on a real catalog: what changes, what is refused, what stays."""

from decimal import Decimal

import pyarrow as pa
import pytest
from pydantic import ValidationError as ModelError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType, NestedField, StringType
from support.lake import Lake
from support.schema_cases import T, change, forced

from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError, SchemaEvolutionError, ValidationError
from floe_dagster_iceberg.models import FieldType, SchemaChange
from floe_dagster_iceberg.table.manager import IcebergTableManager

NUMBERS = Schema(
    NestedField(1, "id", IntegerType(), required=True),
    NestedField(2, "ratio", FloatType(), required=False),
    NestedField(3, "price", DecimalType(9, 2), required=False),
    NestedField(4, "note", StringType(), required=False, doc="free text"),
    schema_id=0,
    identifier_field_ids=[1],
)
NUMBER_ROWS = pa.table(
    {"id": [1, 2], "ratio": [0.5, None], "price": [Decimal("1.50"), None], "note": ["a", None]},
    schema=pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            ("ratio", pa.float32()),
            ("price", pa.decimal128(9, 2)),
            ("note", pa.string()),
        ]
    ),
)


@pytest.fixture
def numbers(manager: IcebergTableManager) -> Table:
    table = manager.create_table(T, NUMBERS)
    manager.append(T, NUMBER_ROWS)
    return table.refresh()


@pytest.mark.requirement("S2-US3.1", "S2-FR-017", "S2-FR-002", "S2-FR-021")
def test_old_rows_read_null_in_an_added_column(manager: IcebergTableManager, lake: Lake, numbers: Table) -> None:
    before = numbers.current_snapshot()

    evolved = manager.evolve_schema(T, [change("add_column", "country", new_type=FieldType.STRING, new_doc="ISO code")])
    manager.append(T, NUMBER_ROWS.slice(0, 1).append_column("country", pa.array(["DE"])))

    added = lake.table(T).schema().find_field("country")
    assert (added.required, added.doc, added.field_id) == (False, "ISO code", 5)
    assert evolved.schema() == lake.table(T).schema()
    assert [snapshot.schema_id for snapshot in lake.table(T).snapshots()] == [0, 1]
    assert sorted(row[4] or "" for row in lake.rows(T)) == ["", "", "DE"]
    assert "country" not in manager.scan(T, snapshot_id=before.snapshot_id).column_names


@pytest.mark.requirement("S2-US3.2", "S2-FR-018")
def test_an_int_that_became_long_keeps_its_rows_and_takes_wide_ones(
    manager: IcebergTableManager, lake: Lake, numbers: Table
) -> None:
    manager.evolve_schema(numbers, [change("widen_type", "id", new_type=FieldType.LONG)])
    wide = NUMBER_ROWS.slice(0, 1).set_column(0, pa.field("id", pa.int64(), nullable=False), [[2**40]])
    manager.append(T, wide)

    assert sorted(row[0] for row in lake.rows(T)) == [1, 2, 2**40]
    assert lake.table(T).schema().find_type("id") == LongType()


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-018", "S0-W3")
@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize(
    ("widen", "expected"),
    [
        (change("widen_type", "id", new_type=FieldType.LONG), LongType()),
        (change("widen_type", "ratio", new_type=FieldType.DOUBLE), DoubleType()),
        (change("widen_type", "price", new_type=FieldType.DECIMAL, precision=20, scale=2), DecimalType(20, 2)),
    ],
    ids=["int", "float", "decimal"],
)
def test_types_widen(manager: IcebergTableManager, lake: Lake, widen: SchemaChange, expected: object) -> None:
    manager.evolve_schema(T, [widen])

    assert lake.table(T).schema().find_type(widen.column_name) == expected
    assert lake.table(T).scan().to_arrow().num_rows == 2


@pytest.mark.lakes
@pytest.mark.requirement("S2-US3.3", "S2-FR-019")
@pytest.mark.usefixtures("numbers")
def test_a_rename_writes_no_data_file(manager: IcebergTableManager, lake: Lake) -> None:
    files, versions = lake.data_files(), lake.metadata_versions(T)

    manager.evolve_schema(T, [change("rename_column", "note", new_name="remark")])

    assert lake.data_files() == files
    assert lake.metadata_versions(T) == versions + 1
    assert lake.table(T).scan(selected_fields=("remark",)).to_arrow()["remark"].to_pylist() == ["a", None]


@pytest.mark.lakes
@pytest.mark.requirement("S0-W3", "S2-FR-021", "S1-T032/33/39-44")
@pytest.mark.usefixtures("numbers")
def test_all_kinds_of_change_go_into_one_schema_in_one_commit(manager: IcebergTableManager, lake: Lake) -> None:
    versions = lake.metadata_versions(T)

    manager.evolve_schema(
        T,
        forced(
            change("rename_column", "note", new_name="remark"),
            change("update_doc", "remark", new_doc=""),
            change("add_column", "note", new_type=FieldType.INT),
            change("widen_type", "ratio", new_type=FieldType.DOUBLE),
            change("delete_column", "price"),
        ),
    )

    table = lake.table(T)
    assert lake.metadata_versions(T) == versions + 1
    assert sorted(table.schemas()) == [0, 1]
    assert table.current_snapshot().schema_id == 0
    assert [(field.field_id, field.name, field.doc) for field in table.schema().fields] == [
        (1, "id", None),
        (2, "ratio", None),
        (4, "remark", None),
        (5, "note", None),
    ]
    assert table.scan().to_arrow()["remark"].to_pylist() == ["a", None]


@pytest.mark.lakes
@pytest.mark.usefixtures("numbers")
def test_a_deleted_name_can_be_taken_again_and_old_values_do_not_come_back(
    manager: IcebergTableManager, lake: Lake
) -> None:
    manager.evolve_schema(
        T, forced(change("delete_column", "note"), change("add_column", "note", new_type=FieldType.STRING))
    )

    assert lake.table(T).scan().to_arrow()["note"].to_pylist() == [None, None]


@pytest.mark.lakes
@pytest.mark.usefixtures("numbers")
def test_changing_back_uses_the_schema_that_was_there(manager: IcebergTableManager, lake: Lake) -> None:
    manager.evolve_schema(T, [change("rename_column", "note", new_name="remark")])
    manager.evolve_schema(T, [change("rename_column", "remark", new_name="note")])

    assert lake.table(T).metadata.current_schema_id == 0
    assert len(lake.table(T).schemas()) == 2


@pytest.mark.lakes
@pytest.mark.usefixtures("numbers")
def test_a_change_that_is_there_already_commits_nothing(manager: IcebergTableManager, lake: Lake) -> None:
    versions = lake.metadata_versions(T)

    manager.evolve_schema(T, [change("widen_type", "id", new_type=FieldType.INT), change("make_optional", "note")])

    assert lake.metadata_versions(T) == versions


@pytest.mark.lakes
@pytest.mark.requirement("S0-W3")
def test_a_required_column_becomes_optional(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_table(T, pa.schema([pa.field("id", pa.int64(), nullable=False)]))

    manager.evolve_schema(T, [change("make_optional", "id")])

    assert lake.table(T).schema().find_field("id").optional


REFUSED = {
    "drop without the flag": ([change("delete_column", "note")], "note"),
    "require without the flag": ([change("make_required", "note")], "note"),
    "float to int": ([change("widen_type", "ratio", new_type=FieldType.INT)], "ratio"),
    "string to int": ([change("widen_type", "note", new_type=FieldType.INT)], "note"),
    "string to binary": ([change("widen_type", "note", new_type=FieldType.BINARY)], "note"),
    "other scale": ([change("widen_type", "price", new_type=FieldType.DECIMAL, precision=12, scale=4)], "price"),
    "fewer digits": ([change("widen_type", "price", new_type=FieldType.DECIMAL, precision=5, scale=2)], "price"),
    "identifier optional": ([change("make_optional", "id")], "id"),
    "identifier deleted": (forced(change("delete_column", "id")), "id"),
}


@pytest.mark.requirement("S2-US3.4", "S2-FR-020", "S0-W3", "S2-E3")
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("numbers")
def test_a_breaking_change_is_refused_and_names_the_column(manager: IcebergTableManager, lake: Lake, case: str) -> None:
    changes, column = REFUSED[case]

    with pytest.raises(IncompatibleSchemaChangeError, match=f"'{column}'") as refusal:
        manager.evolve_schema(T, changes)

    assert (refusal.value.column, refusal.value.table) == (column, T)
    assert lake.table(T).metadata.current_schema_id == 0
    assert lake.metadata_versions(T) == 2


@pytest.mark.requirement("S2-FR-020")
@pytest.mark.usefixtures("numbers")
def test_a_required_column_cannot_be_added(manager: IcebergTableManager, lake: Lake) -> None:
    with pytest.raises(ModelError, match="required"):
        change("add_column", "country", new_type=FieldType.STRING, required=True)

    added = change("add_column", "country", new_type=FieldType.STRING)
    with pytest.raises(IncompatibleSchemaChangeError, match="before it was added"):
        manager.evolve_schema(T, forced(added, change("make_required", "country")))

    assert lake.table(T).metadata.current_schema_id == 0


IMPOSSIBLE = {
    "unknown column": (change("rename_column", "nope", new_name="x"), "It has: id, ratio, price, note"),
    "taken by add": (change("add_column", "note", new_type=FieldType.STRING), "already has it"),
    "taken by rename": (change("rename_column", "ratio", new_name="note"), "already has it"),
    "add differs by case": (change("add_column", "Note", new_type=FieldType.STRING), "has 'note', which differs only"),
    "rename differs by case": (change("rename_column", "ratio", new_name="NOTE"), "has 'note', which differs only"),
    "dot in a new name": (change("rename_column", "ratio", new_name="a.b"), "a dot would make it"),
    "unknown parent": (change("add_column", "address.city", new_type=FieldType.STRING), "no column 'address'"),
    "empty part": (change("add_column", ".city", new_type=FieldType.STRING), "a part of it is empty"),
}


@pytest.mark.requirement("S2-FR-020")
@pytest.mark.parametrize("case", IMPOSSIBLE)
@pytest.mark.usefixtures("numbers")
def test_an_impossible_change_says_why(manager: IcebergTableManager, lake: Lake, case: str) -> None:
    impossible, fact = IMPOSSIBLE[case]

    with pytest.raises(SchemaEvolutionError, match=fact):
        manager.evolve_schema(T, [impossible])

    assert lake.metadata_versions(T) == 2


def test_a_column_may_change_the_case_of_its_own_name(manager: IcebergTableManager, numbers: Table) -> None:
    evolved = manager.evolve_schema(numbers, [change("rename_column", "note", new_name="NOTE")])

    assert evolved.schema().column_names == ["id", "ratio", "price", "NOTE"]


@pytest.mark.lakes
@pytest.mark.requirement("S1-T032/33/39-44")
@pytest.mark.usefixtures("numbers")
def test_one_bad_change_and_none_is_made(manager: IcebergTableManager, lake: Lake) -> None:
    good = change("add_column", "country", new_type=FieldType.STRING)

    with pytest.raises(SchemaEvolutionError):
        manager.evolve_schema(T, [good, change("update_doc", "nope", new_doc="x")])

    assert "country" not in lake.table(T).schema().column_names


def test_no_change_at_all_is_refused(manager: IcebergTableManager, numbers: Table) -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        manager.evolve_schema(numbers, [])


@pytest.mark.requirement("S2-SC-004")
@pytest.mark.usefixtures("numbers")
def test_fifty_changes_are_one_commit(manager: IcebergTableManager, lake: Lake) -> None:
    versions = lake.metadata_versions(T)

    manager.evolve_schema(T, [change("add_column", f"c{number}", new_type=FieldType.STRING) for number in range(50)])

    assert lake.metadata_versions(T) == versions + 1

"""Updating and inserting by key: matched rows change, equal ones keep their files, bad keys change nothing."""

import datetime as dt
import decimal
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import StringType
from support.lake import Lake
from support.rival_writer import rival_writer
from support.table_facts import live_files, reachable_files, recounted_totals, summary_totals

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import OperationType, WriteConfig, WriteMode
from floe_dagster_iceberg.table.manager import IcebergTableManager

PEOPLE = pa.table({"id": [1, 2, 3, 4], "name": ["a", "b", "c", None], "age": [10, 20, 30, 40]})


@pytest.fixture
def people(manager: IcebergTableManager) -> str:
    manager.create_table("bronze.people", PEOPLE.schema)
    manager.append("bronze.people", PEOPLE)
    return "bronze.people"


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-005", "S2-C6")
def test_two_rows_are_updated_one_is_inserted_and_the_rest_is_kept(
    lake: Lake, manager: IcebergTableManager, people: str
) -> None:
    snapshot = manager.upsert(people, pa.table({"id": [2, 4, 9], "name": ["B", "D", "I"], "age": [21, 41, 90]}), ["id"])

    table = lake.table(people)
    assert lake.rows(people) == [(1, "a", 10), (2, "B", 21), (3, "c", 30), (4, "D", 41), (9, "I", 90)]
    assert snapshot.operation is OperationType.OVERWRITE
    assert (len(table.metadata.snapshots), lake.metadata_versions(people)) == (2, 3)
    assert summary_totals(table.current_snapshot()) == recounted_totals(table)


@pytest.mark.requirement("S2-C6")
def test_files_without_a_changed_row_are_left_alone(lake: Lake, manager: IcebergTableManager, people: str) -> None:
    manager.append(people, pa.table({"id": [5], "name": ["e"], "age": [50]}))
    before = live_files(lake.table(people)).keys()

    manager.upsert(people, PEOPLE, ["id"])
    assert live_files(lake.table(people)).keys() == before

    manager.upsert(people, pa.table({"id": [1, 5], "age": [10, 51]}), ["id"])
    kept = before & live_files(lake.table(people)).keys()
    assert len(kept) == 1
    assert lake.rows(people)[-1] == (5, "e", 51)


def test_columns_that_the_rows_lack_keep_their_values(lake: Lake, manager: IcebergTableManager, people: str) -> None:
    manager.upsert(people, pa.table({"age": [11, 99], "id": [1, 9]}), ["id"])

    assert lake.rows(people)[0] == (1, "a", 11)
    assert lake.rows(people)[-1] == (9, None, 99)


def test_null_replaces_a_value_even_when_the_column_has_no_type(
    lake: Lake, manager: IcebergTableManager, people: str
) -> None:
    manager.upsert(
        people, pa.table({"id": [1, 2], "name": pa.nulls(2), "age": pa.array([None, 20], pa.int64())}), ["id"]
    )

    assert lake.rows(people)[:2] == [(1, None, None), (2, None, 20)]


@pytest.mark.requirement("S1-T054/61b/c", "S2-C6")
@pytest.mark.parametrize(
    ("rows", "keys", "words"),
    [
        ({"id": [1, 1], "age": [1, 2]}, ["id"], r"1 row .* repeats a key of \(id\)"),
        ({"id": [1, None], "age": [1, 2]}, ["id"], "1 row .* has NULL in join column 'id'"),
        ({"id": pa.nulls(2), "age": [1, 2]}, ["id"], "2 rows .* have NULL in join column 'id'"),
        ({"age": [1]}, ["id"], "'id' is not in the rows"),
        ({"id": [1], "nick": ["x"]}, ["surname"], "'surname' is not in the table"),
        ({"id": [1]}, [], "upsert needs join_columns"),
        ({"id": [1]}, ["id", "id"], "named twice"),
        ({"id": [1]}, "id", "join_columns"),
    ],
)
def test_keys_that_identify_no_row_are_refused_and_nothing_changes(
    lake: Lake, manager: IcebergTableManager, people: str, *, rows: dict[str, list[int]], keys: list[str], words: str
) -> None:
    files = lake.files()

    with pytest.raises(ValidationError, match=words):
        manager.upsert(people, pa.table(rows), keys)

    assert lake.files() == files
    assert lake.table(people).schema().column_names == ["id", "name", "age"]


def test_a_nested_column_is_no_key(manager: IcebergTableManager) -> None:
    rows = pa.table({"key": [{"a": 1}], "v": [1]})
    manager.create_table("bronze.nested", rows.schema)

    with pytest.raises(ValidationError, match="cannot be compared"):
        manager.upsert("bronze.nested", rows, ["key"])


KEYS: dict[str, pa.Array] = {
    "int": pa.array([1, 2, 3], pa.int32()),
    "text": pa.array(["", "a'b", "ü"]),
    "decimal": pa.array(
        [decimal.Decimal("1.50"), decimal.Decimal("-2.50"), decimal.Decimal("0.00")], pa.decimal128(9, 2)
    ),
    "date": pa.array([dt.date(1960, 1, 1), dt.date(2020, 1, 2), dt.date(2020, 1, 3)]),
    "timestamp": pa.array([0, 1, -1], pa.timestamp("us")),
    "timestamptz": pa.array([0, 1, -1], pa.timestamp("us", "UTC")),
    "time": pa.array([dt.time(1), dt.time(2), dt.time(3, 0, 0, 1)], pa.time64("us")),
    "uuid": pa.array([uuid.UUID(int=n).bytes for n in (1, 2, 2**100)], pa.uuid()),
    "binary": pa.array([b"", b"\xff", b"a"]),
    "fixed": pa.array([b"aa", b"\xff\x00", b"zz"], pa.binary(2)),
    "boolean": pa.array([True, False]),
    "double": pa.array([0.5, float("nan"), -0.5]),
}


@pytest.mark.requirement("S2-C6")
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_every_single_valued_type_is_a_key_and_a_value(
    lake: Lake, manager: IcebergTableManager, keys: pa.Array
) -> None:
    first = pa.table({"key": keys, "value": keys, "n": [0] * len(keys)})
    manager.create_table("bronze.keys", first.schema)
    manager.append("bronze.keys", first)
    files = live_files(lake.table("bronze.keys")).keys()

    manager.upsert("bronze.keys", first, ["key"])
    assert live_files(lake.table("bronze.keys")).keys() == files

    backwards = keys.take(list(reversed(range(len(keys)))))
    manager.upsert("bronze.keys", pa.table({"key": keys, "value": backwards}), ["key"])
    found = lake.table("bronze.keys").scan().to_arrow()
    assert found.num_rows == len(keys)
    assert {repr(row["key"]): repr(row["value"]) for row in found.to_pylist()} == dict(
        zip(map(repr, keys.to_pylist()), map(repr, backwards.to_pylist()), strict=True)
    )


def test_many_keys_match_across_partitions_of_null_and_bucket(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table({"id": range(1000), "part": [n % 3 or None for n in range(1000)], "v": [0] * 1000})
    spec = PartitionSpec(
        PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"),
        PartitionField(source_id=1, field_id=1001, transform=BucketTransform(2), name="bucket"),
    )
    manager.create_table("bronze.many", rows.schema, spec)
    manager.append("bronze.many", rows)

    manager.upsert("bronze.many", pa.table({"id": range(500, 1500), "v": [1] * 1000}), ["id"])

    found = lake.table("bronze.many").scan().to_arrow()
    assert found.num_rows == 1500
    assert sum(found.column("v").to_pylist()) == 1000
    assert sum(part is None for part in found.column("part").to_pylist()) == 334 + 500


def test_a_row_moves_to_another_partition(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table({"id": [1, 2], "region": ["EU", "US"]})
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))
    manager.create_table("bronze.moves", rows.schema, spec)
    manager.append("bronze.moves", rows)

    manager.upsert("bronze.moves", pa.table({"id": [1], "region": ["US"]}), ["id"])

    assert lake.rows("bronze.moves") == [(1, "US"), (2, "US")]
    assert {file.partition[0] for file in live_files(lake.table("bronze.moves")).values()} == {"US"}


def test_several_columns_make_a_key_together(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [0, 0, 0]})
    manager.create_table("bronze.pairs", rows.schema)
    manager.append("bronze.pairs", rows)

    manager.upsert("bronze.pairs", pa.table({"a": [1, 2], "b": ["y", "y"], "v": [7, 8]}), ["a", "b"])

    assert lake.rows("bronze.pairs") == [(1, "x", 0), (1, "y", 7), (2, "x", 0), (2, "y", 8)]


def test_rows_that_share_a_key_in_the_table_are_all_updated(
    lake: Lake, manager: IcebergTableManager, people: str
) -> None:
    manager.append(people, pa.table({"id": [1], "name": ["again"], "age": [0]}))

    manager.upsert(people, pa.table({"id": [1], "age": [77]}), ["id"])

    assert lake.rows(people)[:2] == [(1, "a", 77), (1, "again", 77)]


def test_null_keys_in_the_table_match_nothing(lake: Lake, manager: IcebergTableManager, people: str) -> None:
    manager.append(people, pa.table({"id": pa.array([None], pa.int64()), "name": ["nobody"], "age": [0]}))

    manager.upsert(people, pa.table({"id": [1], "age": [77]}), ["id"])

    assert (None, "nobody", 0) in lake.rows(people)


@pytest.mark.requirement("S2-C6")
def test_an_upsert_right_after_a_new_column_and_with_one_of_its_own(
    lake: Lake, manager: IcebergTableManager, people: str
) -> None:
    with lake.table(people).update_schema() as update:
        update.add_column("city", StringType())

    manager.upsert(people, pa.table({"id": [1, 9], "city": ["Rome", "Oslo"]}), ["id"])
    manager.upsert(people, pa.table({"id": [2], "tags": [["x"]]}), ["id"])

    assert lake.rows(people)[0] == (1, "a", 10, "Rome", None)
    assert lake.rows(people)[1] == (2, "b", 20, None, ["x"])
    assert lake.rows(people)[-1] == (9, None, None, "Oslo", None)


def test_an_upsert_widens_a_type_and_changes_the_rows_in_one_version(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.small", pa.schema([("id", pa.int32()), ("n", pa.int32())]))
    manager.append("bronze.small", pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([1, 2], pa.int32())}))
    versions = lake.metadata_versions("bronze.small")

    manager.upsert("bronze.small", pa.table({"id": [2, 2**40], "n": [2**40, 3]}), ["id"])

    assert lake.rows("bronze.small") == [(1, 1), (1099511627776, 3), (2, 1099511627776)]
    assert lake.metadata_versions("bronze.small") == versions + 1


def test_an_empty_table_takes_an_upsert_and_a_table_takes_an_empty_one(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table("bronze.empty", PEOPLE.schema)

    manager.upsert("bronze.empty", PEOPLE, ["id"])
    before = live_files(lake.table("bronze.empty")).keys()
    snapshot = manager.upsert("bronze.empty", PEOPLE.slice(0, 0), ["id"])

    assert live_files(lake.table("bronze.empty")).keys() == before
    assert (snapshot.added_files, snapshot.deleted_files) == (0, 0)
    assert len(lake.rows("bronze.empty")) == 4


def test_a_stream_can_be_upserted(lake: Lake, manager: IcebergTableManager, people: str) -> None:
    manager.upsert(people, pa.table({"id": [1, 9], "age": [0, 0]}).to_reader(), ["id"])

    assert len(lake.rows(people)) == 5


MERGE: dict[str, Any] = {
    "join_columns": ["id"],
    "delete_when": "name is null",
    "order_by": ["age"],
    "update_columns": ["age", "name"],
    "on_missing": "delete",
}


@pytest.mark.parametrize("config", [None, WriteConfig(mode=WriteMode.UPSERT, **MERGE)], ids=["arguments", "config"])
def test_a_merge_updates_inserts_and_deletes_in_one_version(
    lake: Lake, manager: IcebergTableManager, people: str, config: WriteConfig | None
) -> None:
    rows = pa.table({"id": [1, 2, 3, 9], "name": ["A", None, "C", "I"], "age": [11, 21, 29, 90], "note": ["new"] * 4})

    snapshot = manager.merge(people, rows, **MERGE) if config is None else manager.write_data(people, rows, config)

    assert lake.rows(people) == [(1, "A", 11, None), (3, "c", 30, None), (9, "I", 90, "new")]
    assert (snapshot.operation, lake.metadata_versions(people)) == (OperationType.OVERWRITE, 3)
    assert summary_totals(lake.table(people).current_snapshot()) == recounted_totals(lake.table(people))


def test_a_merge_without_options_is_an_upsert(lake: Lake, manager: IcebergTableManager, people: str) -> None:
    manager.merge(people, pa.table({"id": [2, 9], "age": [21, 90]}).to_reader(), ["id"])

    assert lake.rows(people)[1] == (2, "b", 21)
    assert len(lake.rows(people)) == 5


@pytest.mark.lakes
@pytest.mark.requirement("S2-C6")
def test_two_upserts_of_one_new_key_at_the_same_time_make_one_row(lake: Lake, people: str) -> None:
    def upsert(age: int) -> None:
        with rival_writer(lake) as rival:
            rival.upsert(people, pa.table({"id": [9], "name": ["I"], "age": [age]}), ["id"])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(upsert, range(4)))

    assert [row[0] for row in lake.rows(people)] == [1, 2, 3, 4, 9]


@pytest.mark.lakes
@pytest.mark.requirement("S2-C6")
def test_an_upsert_that_comes_second_updates_what_the_first_inserted(
    lake: Lake, manager: IcebergTableManager, people: str
) -> None:
    stale = lake.table(people)
    with rival_writer(lake) as rival:
        rival.upsert(people, pa.table({"id": [9], "name": ["I"], "age": [1]}), ["id"])

    manager.upsert(stale, pa.table({"id": [9], "age": [2]}), ["id"])

    assert lake.rows(people)[-1] == (9, "I", 2)
    assert lake.files("**/*.parquet") | lake.files("**/*.avro") <= reachable_files(lake.table(people))

"""Upserts with rules: deletes, an order, partial updates, whole snapshots. The table is in docs/write-modes.md."""

from typing import Any

import pyarrow as pa
import pytest
from dagster import StaticPartitionsDefinition, asset
from support.io_results import failure_of, shown
from support.table_facts import live_files
from support.warehouse import Warehouse, frames_asset

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-C6")
NAN = float("nan")
FIRST = {"id": [1, 2, 3], "name": ["ann", "bob", "cid"], "at": [1, 1, 1]}


def counts_of(result: Any) -> tuple[int, int, int, int]:
    """Rows that were inserted, updated, deleted, and that changed nothing."""
    metadata = shown(result, "items")
    names = ("inserted", "updated", "deleted", "unchanged")
    inserted, updated, deleted, unchanged = (metadata.get(f"iceberg/rows_{name}", 0) for name in names)
    return inserted, updated, deleted, unchanged


def merged(warehouse: Warehouse, *runs: dict[str, Any], **settings: Any) -> tuple[int, int, int, int]:
    """Merge the rows of each run, then those of the last one again; the counts of the last run."""
    items = frames_asset(*map(warehouse.frame, [*runs, runs[-1]]), upsert_keys="id", **settings)
    for _ in runs:
        result = warehouse.run(items)
    counts, rows = counts_of(result), warehouse.rows("items")
    again = counts_of(warehouse.run(items))
    assert (again[:3], warehouse.rows("items")) == ((0, 0, 0), rows)
    return counts


@pytest.mark.lakes
@pytest.mark.parametrize("delete_when", ["op = 'D'", "op in ('D', 'X') and at > 1"])
def test_rows_that_a_filter_names_delete_the_row_of_their_key(warehouse: Warehouse, delete_when: str) -> None:
    first = {**FIRST, "op": ["I", None, "I"]}
    then = {"id": [2, 3, 4, 5], "name": ["bob", "CID", "dan", "eve"], "at": [2] * 4, "op": ["D", "U", "I", "D"]}

    counts = merged(warehouse, first, then, delete_when=delete_when)

    assert warehouse.rows("items") == [(1, "ann", 1, "I"), (3, "CID", 2, "U"), (4, "dan", 2, "I")]
    # There is no row 5 to delete.
    assert counts == (1, 1, 1, 1)


def test_a_column_that_only_says_which_rows_delete_is_not_stored(warehouse: Warehouse) -> None:
    first = {**FIRST, "gone": [False, None, True]}
    then = {"id": [1, 2, 4], "name": ["ann", "BOB", "dan"], "at": [1, 1, 1], "gone": [True, None, False]}

    counts = merged(warehouse, first, then, delete_when="gone")

    assert warehouse.rows("items") == [(2, "BOB", 1), (4, "dan", 1)]
    assert counts == (1, 1, 1, 0)


def test_it_is_stored_if_the_table_has_it(warehouse: Warehouse) -> None:
    warehouse.run(frames_asset(warehouse.frame({"id": [1, 2], "gone": [True, False]}), write_mode="append"))

    warehouse.run(
        frames_asset(warehouse.frame({"id": [1, 2], "gone": [False, True]}), upsert_keys="id", delete_when="gone")
    )

    assert warehouse.rows("items") == [(1, False)]


def test_a_deleting_row_may_have_null_where_the_table_has_none(warehouse: Warehouse) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)])
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.items", schema)
    warehouse.manager.append("public.items", pa.table({"id": [1, 2], "name": ["ann", "bob"]}, schema))

    counts = merged(warehouse, {"id": [1, 2], "name": [None, "BOB"], "gone": [True, False]}, delete_when="gone")

    assert warehouse.rows("items") == [(2, "BOB")]
    assert warehouse.table("items").schema().find_field("name").required
    assert counts == (0, 1, 1, 0)


def test_of_several_rows_with_a_key_the_newest_counts_if_the_table_has_no_newer_one(warehouse: Warehouse) -> None:
    then = {
        "id": [1, 1, 1, 2, 3, 4, 4],
        "name": ["old", "new", "older", "late", "same", "first", "second"],
        "at": [2, 3, 0, 0, 1, 8, 9],
    }

    counts = merged(warehouse, FIRST, then, order_by="at")

    assert warehouse.rows("items") == [(1, "new", 3), (2, "bob", 1), (3, "same", 1), (4, "second", 9)]
    assert counts == (1, 2, 0, 4)


def test_a_first_write_has_the_newest_rows_that_do_not_delete(warehouse: Warehouse) -> None:
    rows = {"id": [1, 1, 2, 2], "name": ["a", "b", "c", "d"], "at": [1, 2, 2, 1], "gone": [False, False, True, False]}

    result = warehouse.run(
        frames_asset(warehouse.frame(rows), upsert_keys="id", order_by="at", delete_when="gone", sort_by="name")
    )

    assert warehouse.rows("items") == [(1, "b", 2)]
    assert counts_of(result) == (1, 0, 0, 3)


def test_null_and_nan_of_the_table_are_older_than_anything(warehouse: Warehouse) -> None:
    first = {"id": [1, 2, 3, 4], "at": [None, NAN, 0.0, 7.0], "n": pa.array([None, 1, 5, 1], pa.int32())}
    warehouse.run(frames_asset(warehouse.frame(first), write_mode="append"))

    merged(warehouse, {"id": [1, 2, 3, 4], "at": [-9.0, -9.0, -0.0, 6.0], "n": [0, 0, 4, 9]}, order_by=["at", "n"])

    # The zeros are equal, so that `n` decides.
    assert warehouse.rows("items") == [(1, -9.0, 0), (2, -9.0, 0), (3, 0.0, 5), (4, 7.0, 1)]


def test_known_rows_may_be_left_alone(warehouse: Warehouse) -> None:
    counts = merged(warehouse, FIRST, {"id": [3, 4], "name": ["CID", "dan"], "at": [2, 2]}, on_match="ignore")

    assert warehouse.rows("items") == [(1, "ann", 1), (2, "bob", 1), (3, "cid", 1), (4, "dan", 2)]
    assert counts == (1, 0, 0, 1)


def test_an_update_may_be_limited_to_some_columns(warehouse: Warehouse) -> None:
    then = {"id": [2, 3, 4], "name": ["BOB", "cid", "dan"], "at": [2, 2, 2]}

    counts = merged(warehouse, FIRST, then, update_columns="name")

    assert warehouse.rows("items") == [(1, "ann", 1), (2, "BOB", 1), (3, "cid", 1), (4, "dan", 2)]
    assert counts == (1, 1, 0, 1)


def test_rows_that_are_missing_in_a_whole_snapshot_go(warehouse: Warehouse) -> None:
    """NULL is no key, so that the snapshot cannot have such a row."""
    first = {"id": [1, 2, None], "name": ["ann", "bob", "cid"], "at": [1, 1, 1]}
    warehouse.run(frames_asset(warehouse.frame(first), write_mode="append"))

    counts = merged(warehouse, {"id": [1, 4], "name": ["ann", "dan"], "at": [1, 1]}, on_missing="delete")

    assert warehouse.rows("items") == [(1, "ann", 1), (4, "dan", 1)]
    assert counts == (1, 0, 2, 1)


def test_an_empty_snapshot_of_a_partition_empties_that_partition_alone(warehouse: Warehouse) -> None:
    regions = StaticPartitionsDefinition(["eu", "us"])
    no_rows = pa.table({"region": pa.array([], pa.string()), "id": pa.array([], pa.int64())})
    frames = iter([{"region": ["eu"] * 2, "id": [1, 2]}, {"region": ["us"], "id": [1]}, {"region": ["eu"], "id": [2]}])

    @asset(
        partitions_def=regions,
        metadata=iceberg_settings(partition_expr="region", partition_spec=[], upsert_keys="id", on_missing="delete"),
    )
    def items() -> Any:
        return warehouse.frame(next(frames, no_rows))

    for region in ("eu", "us", "eu"):
        result = warehouse.run(items, region)
    assert warehouse.rows("items") == [("eu", 2), ("us", 1)]
    assert counts_of(result) == (0, 0, 1, 1)

    assert counts_of(warehouse.run(items, "eu")) == (0, 0, 1, 0)
    assert warehouse.rows("items") == [("us", 1)]
    unpartitioned = warehouse.run(items, raise_on_error=False)
    assert "this run has no partition" in failure_of(unpartitioned, "items")
    assert warehouse.rows("items") == [("us", 1)]


def test_a_snapshot_of_a_partition_leaves_the_files_of_others_alone(warehouse: Warehouse) -> None:
    frames = iter([("eu", [1, 2]), ("us", [1]), ("eu", [2, 3])])

    @asset(
        partitions_def=StaticPartitionsDefinition(["eu", "us"]),
        metadata=iceberg_settings(partition_expr="region", upsert_keys="id", on_missing="delete"),
    )
    def items() -> Any:
        region, ids = next(frames)
        return warehouse.frame({"region": [region] * len(ids), "id": ids})

    warehouse.run(items, "eu")
    warehouse.run(items, "us")
    (elsewhere,) = (path for path, file in live_files(warehouse.table("items")).items() if file.partition[0] == "us")
    warehouse.run(items, "eu")

    assert elsewhere in live_files(warehouse.table("items"))
    assert warehouse.rows("items") == [("eu", 2), ("eu", 3), ("us", 1)]


def test_columns_are_added_and_widened_with_the_rows(warehouse: Warehouse) -> None:
    first = {"id": pa.array([1, 2], pa.int32()), "n": pa.array([1, 2], pa.int32())}
    then = {"id": [2, 2**40], "n": [2**40, 3], "at": [5, 5], "gone": [False, False]}

    warehouse.run(frames_asset(warehouse.frame(first), write_mode="append"))

    counts = merged(warehouse, then, delete_when="gone", order_by="at", on_missing="delete")

    assert warehouse.rows("items") == [(2**40, 3, 5), (2, 2**40, 5)]
    assert counts == (1, 1, 1, 0)


def test_a_merge_stays_on_its_branch(warehouse: Warehouse) -> None:
    warehouse.run(frames_asset(warehouse.frame(FIRST), write_mode="append"))
    then = warehouse.frame({"id": [2, 4], "name": ["bob", "dan"], "at": [1, 1], "gone": [True, False]})

    warehouse.run(frames_asset(then, upsert_keys="id", delete_when="gone", branch="audit"))

    assert len(warehouse.rows("items")) == 3
    snapshot = warehouse.table("items").snapshot_by_name("audit")
    assert snapshot is not None
    audited = warehouse.table("items").scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    assert sorted(audited["id"].to_pylist()) == [1, 3, 4]


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"order_by": "at"}, {"id": [4, 4, 4], "at": [5, 5, 1]}, "1 row .* the key (id) and the order (at) of another"),
    ({"order_by": "at"}, {"id": [4, 5], "at": [None, 1]}, "1 row .* has NULL or NaN in column 'at'"),
    ({"order_by": "x"}, {"id": [4], "x": [NAN]}, "1 row .* has NULL or NaN in column 'x'"),
    ({"order_by": "seq"}, {"id": [4]}, "Column 'seq' of 'order_by' is not in the rows"),
    ({"order_by": "tags"}, {"id": [4], "tags": [["x"]]}, "which has no order"),
    ({"update_columns": "nick"}, {"id": [4]}, "Column 'nick' of 'update_columns' is not in the rows"),
    ({"delete_when": "gone"}, {"id": [4]}, "'delete_when' .* names column 'gone', which the rows do not have"),
    ({"delete_when": "name"}, {"id": [4], "name": ["x"]}, "names column 'name', which is of type"),
    ({"delete_when": "gone = 'D'"}, {"id": [4]}, "filter 'delete_when' .* names a column that does not exist"),
    ({"delete_when": "id = 'secret'"}, {"id": [4]}, "compares column 'id' of type long"),
    ({"delete_when": "id = = 'secret'"}, {"id": [4]}, "cannot be parsed at character"),
    ({"upsert_keys": "ID"}, {"id": [4]}, "Join column 'ID' is not in the table"),
]


def test_what_cannot_be_merged_changes_nothing(warehouse: Warehouse) -> None:
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.items", pa.table(FIRST).schema)
    before = warehouse.table("items").metadata_location

    for settings, rows, words in REFUSED:
        frame = warehouse.frame({**rows, "new": [1] * len(rows["id"])})
        result = warehouse.run(frames_asset(frame, **{"upsert_keys": "id", **settings}), raise_on_error=False)

        message = failure_of(result, "items")
        assert [part for part in words.split(" .* ") if part not in message] == []
        assert "secret" not in message
        assert warehouse.table("items").metadata_location == before

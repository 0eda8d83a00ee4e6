"""What a frame that differs from its table does to the schema, and what it never does."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetsDefinition, ExecuteInProcessResult, asset
from support.io_results import failure_of, shown
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S3-4", "S4-handle_output")


def frames_asset(warehouse: Warehouse, frames: Sequence[pa.Table], **settings: Any) -> AssetsDefinition:
    """An asset that returns one frame after the other."""
    left = iter(frames)

    @asset(metadata=iceberg_settings(**settings))
    def items() -> Any:
        return warehouse.frame(next(left))

    return items


def run_all(warehouse: Warehouse, frames: Sequence[pa.Table], **settings: Any) -> ExecuteInProcessResult:
    """All frames but the last must be stored; returns the run of the last."""
    items = frames_asset(warehouse, frames, **settings)
    for _ in frames[:-1]:
        warehouse.run(items)
    return warehouse.run(items, raise_on_error=False)


def make_table(warehouse: Warehouse, *columns: pa.Field) -> None:
    """The table as another program made it, with columns that may be required."""
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.items", pa.schema(columns))


REQUIRED_ID = pa.field("id", pa.int64(), nullable=False)


def columns(warehouse: Warehouse) -> dict[str, str]:
    return {field.name: str(field.field_type) for field in warehouse.table("items").schema().fields}


def changes(result: ExecuteInProcessResult) -> Any:
    metadata = shown(result, "items")
    assert metadata["iceberg/schema_evolved"] is ("iceberg/schema_changes" in metadata)
    return metadata.get("iceberg/schema_changes", [])


def ints(**values: list[int | None]) -> pa.Table:
    return pa.table({name: pa.array(column, pa.int32()) for name, column in values.items()})


def longs(**values: list[int | None]) -> pa.Table:
    return pa.table({name: pa.array(column, pa.int64()) for name, column in values.items()})


def test_nothing_evolves_when_frames_are_alike(warehouse: Warehouse) -> None:
    assert changes(run_all(warehouse, [ints(id=[1]), ints(id=[2])])) == []


@pytest.mark.lakes
def test_a_new_column_is_added_and_old_rows_hold_null(warehouse: Warehouse) -> None:
    result = run_all(warehouse, [ints(id=[1]), ints(id=[2], size=[7])])

    assert warehouse.rows("items") == [(1, None), (2, 7)]
    assert changes(result) == ["add size int"]


def test_a_type_is_widened_and_old_rows_stay_readable(warehouse: Warehouse) -> None:
    result = run_all(warehouse, [ints(id=[1]), longs(id=[2**40])])

    assert sorted(warehouse.rows("items")) == [(1,), (2**40,)]
    assert changes(result) == ["widen id int to long"]


def test_a_frame_without_a_column_drops_nothing(warehouse: Warehouse) -> None:
    result = run_all(warehouse, [ints(id=[1], size=[7]), ints(id=[2])])

    assert warehouse.rows("items") == [(1, 7), (2, None)]
    assert changes(result) == []


def test_columns_are_matched_by_name(warehouse: Warehouse) -> None:
    run_all(warehouse, [ints(id=[1], size=[7]), ints(size=[8], id=[2])])

    assert warehouse.rows("items") == [(1, 7), (2, 8)]


def test_a_narrower_frame_fits_as_it_is(warehouse: Warehouse) -> None:
    tiny = pa.table({"id": pa.array([3], pa.int8())})

    result = run_all(warehouse, [longs(id=[1]), ints(id=[2]), tiny])

    assert columns(warehouse) == {"id": "long"}
    assert changes(result) == []
    assert warehouse.rows("items") == [(1,), (2,), (3,)]


def test_a_required_column_becomes_optional_when_null_comes(warehouse: Warehouse) -> None:
    make_table(warehouse, REQUIRED_ID)

    result = run_all(warehouse, [longs(id=[1]), longs(id=[None])])

    assert changes(result) == ["make id optional"]
    assert warehouse.table("items").schema().find_field("id").optional
    assert warehouse.rows("items") == [(1,), (None,)]


def test_a_required_column_stays_required_while_no_null_comes(warehouse: Warehouse) -> None:
    make_table(warehouse, REQUIRED_ID)

    run_all(warehouse, [longs(id=[1]), longs(id=[2])])

    assert warehouse.table("items").schema().find_field("id").required
    assert warehouse.rows("items") == [(1,), (2,)]


def test_a_frame_without_a_required_column_is_refused(warehouse: Warehouse) -> None:
    make_table(warehouse, REQUIRED_ID, pa.field("size", pa.int64()))

    result = run_all(warehouse, [longs(id=[1], size=[1]), longs(size=[2])])

    assert "The rows lack column 'id', which 'public.items' requires" in failure_of(result, "items")


def test_a_field_is_added_inside_a_struct(warehouse: Warehouse) -> None:
    first = pa.table({"item": [{"id": 1}]})
    second = pa.table({"item": [{"id": 2, "size": 7}]})

    result = run_all(warehouse, [first, second])

    assert warehouse.rows("items") == [({"id": 1, "size": None},), ({"id": 2, "size": 7},)]
    assert changes(result) == ["add item.size long"]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (pa.table({"id": [1]}), pa.table({"id": ["one"]}), "it is long and the rows have string"),
        (pa.table({"id": ["one"]}), pa.table({"id": [1]}), "it is string and the rows have long"),
        (pa.table({"id": [1]}), pa.table({"id": [[1]]}), "cannot be converted"),
        (pa.table({"id": [1]}), pa.table({"ID": [1]}), "differs only in case"),
    ],
    ids=["string for long", "long for string", "list for long", "names that differ in case"],
)
def test_what_cannot_be_converted_is_refused_and_changes_nothing(
    warehouse: Warehouse, first: pa.Table, second: pa.Table, reason: str
) -> None:
    result = run_all(warehouse, [first, second])

    assert reason in failure_of(result, "items")
    assert len(warehouse.table("items").metadata.snapshots) == len(warehouse.table("items").schemas()) == 1


@pytest.mark.parametrize(
    ("allowed", "frame", "stored"),
    [
        ("none", ints(id=[2], size=[7]), False),
        ("none", longs(id=[2]), False),
        ("none", ints(id=[2]), True),
        ("add", ints(id=[2], size=[7]), True),
        ("add", longs(id=[2]), False),
        ("widen", longs(id=[2], size=[7]), True),
    ],
)
def test_an_asset_says_which_changes_its_frames_may_bring(
    warehouse: Warehouse, allowed: str, frame: pa.Table, *, stored: bool
) -> None:
    assert run_all(warehouse, [ints(id=[1]), frame], schema_evolution=allowed).success is stored


def test_the_io_manager_may_forbid_evolution_for_all(warehouse: Warehouse) -> None:
    strict = warehouse.with_settings(schema_evolution_enabled=False)

    result = run_all(strict, [ints(id=[1]), ints(id=[2], size=[7])])

    assert "Column 'size' of 'public.items' is not in the table" in failure_of(result, "items")


def test_a_column_of_nothing_but_null_needs_no_type_once_the_table_has_one(warehouse: Warehouse) -> None:
    run_all(warehouse, [ints(id=[1], size=[7]), pa.table({"id": [2], "size": pa.nulls(1)})])

    assert warehouse.rows("items") == [(1, 7), (2, None)]

"""What happens to the rows that are there already: append, overwrite, upsert."""

from collections.abc import Sequence
from typing import Any

import pytest
from dagster import AssetExecutionContext, AssetsDefinition, Output, StaticPartitionsDefinition, asset
from support.io_results import failure_of, shown
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.models import WriteMode

pytestmark = pytest.mark.requirement("S2-US8.3", "S2-FR-038", "S4-handle_output")

REGIONS = StaticPartitionsDefinition(["eu", "us"])
Rows = Sequence[tuple[int, str]]


def people(warehouse: Warehouse, runs: Sequence[Rows], **settings: Any) -> AssetsDefinition:
    """An asset that returns the rows of each run in turn."""
    left = iter(runs)

    @asset(metadata=iceberg_settings(**settings))
    def people() -> Any:
        ids, names = zip(*next(left), strict=True)
        return warehouse.frame({"id": ids, "name": names})

    return people


TWO_RUNS: Sequence[Rows] = ([(1, "ann"), (2, "bob"), (3, "cid")], [(2, "BOB"), (4, "dan")])
AFTER = {
    "append": [(1, "ann"), (2, "BOB"), (2, "bob"), (3, "cid"), (4, "dan")],
    "overwrite": [(2, "BOB"), (4, "dan")],
    "upsert": [(1, "ann"), (2, "BOB"), (3, "cid"), (4, "dan")],
}


@pytest.mark.lakes
@pytest.mark.parametrize("mode", AFTER)
def test_an_asset_names_its_mode(warehouse: Warehouse, mode: str) -> None:
    keys = {"upsert_keys": "id"} if mode == "upsert" else {}
    table = people(warehouse, TWO_RUNS, write_mode=mode, **keys)

    for _ in TWO_RUNS:
        result = warehouse.run(table)

    assert warehouse.rows("people") == AFTER[mode]
    assert shown(result, "people")["iceberg/write_mode"] == mode


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_io_manager_decides_for_assets_that_name_none(warehouse: Warehouse, mode: str) -> None:
    other = warehouse.with_settings(write_mode=mode)
    table = people(warehouse, TWO_RUNS)

    for _ in TWO_RUNS:
        other.run(table)

    assert warehouse.rows("people") == AFTER[mode]


def test_upsert_keys_alone_mean_upsert(warehouse: Warehouse) -> None:
    table = people(warehouse, TWO_RUNS, upsert_keys=["id"])

    for _ in TWO_RUNS:
        warehouse.run(table)

    assert warehouse.rows("people") == AFTER["upsert"]


def test_an_io_manager_that_upserts_needs_keys_from_the_asset(warehouse: Warehouse) -> None:
    upserting = warehouse.with_settings(write_mode=WriteMode.UPSERT)

    result = upserting.run(people(warehouse, TWO_RUNS), raise_on_error=False)

    assert "asset 'people' names no columns that identify a row" in failure_of(result, "people")


def test_each_output_may_name_its_own_mode(warehouse: Warehouse) -> None:
    modes = iter(["append", "overwrite", "append"])

    @asset
    def numbers() -> Output[Any]:
        return Output(warehouse.frame({"id": [1]}), metadata=iceberg_settings(write_mode=next(modes)))

    for _ in range(3):
        warehouse.run(numbers)

    assert warehouse.rows("numbers") == [(1,), (1,)]


def regional(warehouse: Warehouse, runs: Sequence[Rows], **settings: Any) -> AssetsDefinition:
    left = iter(runs)

    @asset(partitions_def=REGIONS, metadata=iceberg_settings(partition_expr="region", **settings))
    def people(context: AssetExecutionContext) -> Any:
        ids, names = zip(*next(left), strict=True)
        return warehouse.frame({"region": [context.partition_key] * len(ids), "id": ids, "name": names})

    return people


def test_a_partition_is_replaced_unless_the_asset_names_a_mode(warehouse: Warehouse) -> None:
    table = regional(warehouse, ([(1, "ann")], [(1, "bob")]))

    for _ in range(2):
        warehouse.run(table, "eu")

    assert warehouse.rows("people") == [("eu", 1, "bob")]


def test_a_partition_is_appended_to_when_the_asset_says_so(warehouse: Warehouse) -> None:
    table = regional(warehouse, ([(1, "ann")], [(1, "bob")]), write_mode="append")

    for _ in range(2):
        warehouse.run(table, "eu")

    assert warehouse.rows("people") == [("eu", 1, "ann"), ("eu", 1, "bob")]


def test_an_upsert_stays_within_its_partition(warehouse: Warehouse) -> None:
    """The same key in another partition is another row."""
    runs: Sequence[Rows] = ([(1, "ann"), (2, "bob")], [(1, "ANN")], [(1, "Ann"), (3, "cid")])
    table = regional(warehouse, runs, upsert_keys="id")

    for key in ("eu", "us", "eu"):
        warehouse.run(table, key)

    assert warehouse.rows("people") == [("eu", 1, "Ann"), ("eu", 2, "bob"), ("eu", 3, "cid"), ("us", 1, "ANN")]


def test_rows_of_an_upsert_that_share_a_key_are_refused(warehouse: Warehouse) -> None:
    table = people(warehouse, [[(1, "ann"), (1, "bob")]], upsert_keys="id")

    result = warehouse.run(table, raise_on_error=False)

    assert "1 row for 'public.people' repeats a key of (id)" in failure_of(result, "people")
    assert not warehouse.exists("people")

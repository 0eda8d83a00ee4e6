"""Which keys of an upsert are equal: as in SQL, and the same on both engines. The table is in docs/write-modes.md."""

import math
import unicodedata
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetsDefinition, asset
from support.io_results import failure_of
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

NAN = float("nan")
# The same number with other bits.
OTHER_NAN = -NAN


def prices(frames: list[Any], *keys: str, **settings: Any) -> AssetsDefinition:
    """An asset that upserts one frame after the other."""
    left = iter(frames)

    @asset(metadata=iceberg_settings(upsert_keys=list(keys), **settings))
    def prices() -> Any:
        return next(left)

    return prices


def signs(values: list[float]) -> list[float]:
    return [math.copysign(1, value) for value in values]


@pytest.mark.requirement("S2-C6")
def test_zeros_of_either_sign_are_one_key_and_so_is_every_nan(warehouse: Warehouse) -> None:
    schema = pa.schema([("k", pa.float64()), ("narrow", pa.float32()), ("day", pa.int64()), ("v", pa.string())])
    first = {"k": [0.0, -0.0, NAN, 1.5], "narrow": [-0.0, 0.0, NAN, 0.0], "day": [1, 2, 3, 4], "v": ["a"] * 4}
    then = {"k": [-0.0, 0.0, OTHER_NAN, 1.5], "narrow": [0.0, -0.0, NAN, -0.0], "day": [1, 2, 3, 5], "v": ["b"] * 4}

    for frame in (warehouse.frame(first, schema), warehouse.frame(then, schema)):
        warehouse.run(prices([frame], "k", "narrow", "day"))

    found = warehouse.table("prices").scan().to_arrow().sort_by("day").to_pydict()
    assert found["day"] == [1, 2, 3, 4, 5]
    assert found["v"] == ["b", "b", "b", "a", "b"]
    # A key that is there already stays as it is written.
    assert signs(found["k"][:2]) == [1, -1]
    assert signs(found["narrow"][:2]) == [-1, 1]
    assert math.isnan(found["k"][2])


@pytest.mark.parametrize("repeated", [[0.0, -0.0], [NAN, OTHER_NAN]], ids=["zero", "NaN"])
def test_rows_with_equal_keys_are_refused(warehouse: Warehouse, repeated: list[float]) -> None:
    warehouse.run(prices([warehouse.frame({"k": [2.5], "v": ["a"]})], "k"))

    result = warehouse.run(prices([warehouse.frame({"k": repeated, "v": ["b", "c"]})], "k"), raise_on_error=False)

    assert "1 row for 'public.prices' repeats a key of (k)." in failure_of(result, "prices")
    assert warehouse.rows("prices") == [(2.5, "a")]


def test_null_is_no_key(warehouse: Warehouse) -> None:
    rows = warehouse.frame({"k": pa.array([None, 1.5], pa.float64()), "v": ["a", "b"]})

    result = warehouse.run(prices([rows], "k"), raise_on_error=False)

    assert "1 row for 'public.prices' has NULL in join column 'k'" in failure_of(result, "prices")
    assert not warehouse.exists("prices")


def test_rows_of_the_table_that_share_a_key_are_all_updated_and_null_matches_nothing(warehouse: Warehouse) -> None:
    @asset(name="prices", metadata=iceberg_settings(write_mode="append"))
    def appended() -> Any:
        return warehouse.frame({"k": pa.array([1.5, 1.5, None, 2.5], pa.float64()), "v": ["a", "b", "c", "d"]})

    warehouse.run(appended)
    warehouse.run(prices([warehouse.frame({"k": [1.5, 3.5], "v": ["e", "f"]})], "k"))

    found = warehouse.table("prices").scan().to_arrow().sort_by([("k", "ascending"), ("v", "ascending")]).to_pydict()
    assert found == {"k": [1.5, 1.5, 2.5, 3.5, None], "v": ["e", "e", "d", "f", "c"]}


def test_texts_are_equal_only_if_their_code_points_are(warehouse: Warehouse) -> None:
    composed, decomposed = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    frames = [warehouse.frame({"k": [text], "v": [number]}) for number, text in enumerate([composed, decomposed, "É"])]
    upserts = prices([*frames, warehouse.frame({"k": [composed + " "], "v": [3]})], "k")

    for _ in range(4):
        warehouse.run(upserts)

    assert sorted(v for _, v in warehouse.rows("prices")) == [0, 1, 2, 3]


def test_decimals_and_timestamps_are_keys_of_their_own_type_only(warehouse: Warehouse) -> None:
    instant = pa.array([0], pa.timestamp("us", "UTC"))
    columns = {"k": pa.array([Decimal("1.50")], pa.decimal128(9, 2)), "at": instant, "v": ["a"]}
    warehouse.run(prices([warehouse.frame(columns)], "k", "at"))
    wider = {"k": pa.array([Decimal("1.50")], pa.decimal128(12, 2)), "at": instant, "v": ["b"]}
    warehouse.run(prices([warehouse.frame(wider)], "k", "at"))

    other_scale = {"k": pa.array([Decimal("1.500")], pa.decimal128(12, 3))}
    without_zone = {"at": pa.array([0], pa.timestamp("us"))}
    for other in (other_scale, without_zone):
        result = warehouse.run(
            prices([warehouse.frame({**wider, **other, "v": ["c"]})], "k", "at"), raise_on_error=False
        )
        assert "cannot be converted; cast the rows" in failure_of(result, "prices")

    assert warehouse.rows("prices", "k", "v") == [(Decimal("1.50"), "b")]


def test_a_value_that_differs_only_in_the_sign_of_zero_is_replaced(warehouse: Warehouse) -> None:
    values = {"id": [1, 2], "v": [0.0, NAN], "nested": [[0.0], [NAN]]}
    changed = {"id": [1, 2], "v": [-0.0, NAN], "nested": [[-0.0], [NAN]]}
    upserts = prices([warehouse.frame(values), warehouse.frame(changed)], "id")

    for _ in range(2):
        warehouse.run(upserts)

    found = warehouse.table("prices").scan().to_arrow().sort_by("id").to_pydict()
    assert signs([found["v"][0], found["nested"][0][0]]) == [-1, -1]
    assert math.isnan(found["v"][1])


def test_zero_is_found_in_a_partition_of_the_other_zero(warehouse: Warehouse) -> None:
    columns = {"k": [0.0, -0.0, 1.5], "day": [1, 2, 3], "v": ["a"] * 3}
    upserts = prices(
        [warehouse.frame(columns), warehouse.frame({"k": [-0.0, 0.0], "day": [1, 2], "v": ["b"] * 2})],
        "k",
        "day",
        partition_spec=["k"],
    )

    for _ in range(2):
        warehouse.run(upserts)

    assert sorted(row[1:] for row in warehouse.rows("prices")) == [(1, "b"), (2, "b"), (3, "a")]

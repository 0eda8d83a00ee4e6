"""Columns get a dictionary when their values come again, judged by a sample."""

import random
import uuid
from typing import Any

import pyarrow as pa
import pytest

from floe_dagster_iceberg.table.write.rolling_files import FEWEST_ROWS, unrepeated_columns

ROWS = 100_000


def drawn(different: int, rows: int = ROWS) -> list[int]:
    numbers = random.Random(7)  # noqa: S311 - rows, not secrets
    return [numbers.randrange(different) for _ in range(rows)]


@pytest.mark.parametrize(
    ("values", "repeat"),
    [
        (range(ROWS), False),
        ([f"order {number}" for number in range(ROWS)], False),
        ([number / 7 for number in range(ROWS)], False),
        (drawn(10 * ROWS), False),
        (drawn(ROWS // 4), True),
        (drawn(100), True),
        ([number // 10 for number in range(ROWS)], True),
        ([number % 1000 for number in range(ROWS)], True),
        (["same"] * ROWS, True),
    ],
    ids=["ids", "texts", "amounts", "drawn from many", "four each", "few", "in order", "in turns", "one"],
)
def test_values_that_come_again_get_a_dictionary(values: Any, *, repeat: bool) -> None:
    assert unrepeated_columns(pa.table({"x": values})) == (set() if repeat else {"x"})


def test_a_column_that_is_mostly_null_is_judged_by_its_values() -> None:
    ids = [number if number % 10 == 0 else None for number in range(ROWS)]
    codes = [number % 50 if number % 10 == 0 else None for number in range(ROWS)]

    assert unrepeated_columns(pa.table({"ids": ids, "codes": codes, "nothing": pa.nulls(ROWS, pa.int64())})) == {"ids"}


def test_uuids_are_reported_apart() -> None:
    values = pa.array([uuid.UUID(int=number).bytes for number in range(ROWS)], pa.binary(16))

    assert unrepeated_columns(pa.table({"x": pa.ExtensionArray.from_storage(pa.uuid(), values)})) == {"x"}


def test_columns_with_parts_and_small_tables_are_left_as_they_are() -> None:
    nested = pa.table({"x": [{"y": number} for number in range(ROWS)], "z": [True] * ROWS})

    assert unrepeated_columns(nested) == set()
    assert unrepeated_columns(pa.table({"x": range(FEWEST_ROWS - 1)})) == set()
    assert unrepeated_columns(pa.table({"x": range(FEWEST_ROWS)})) == {"x"}

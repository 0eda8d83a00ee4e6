"""The difference of two sets of rows, in memory and in parts."""

import random
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from floe_dagster_iceberg.table.changes.row_difference import RowDifference

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.large_string()),
        ("price", pa.decimal128(9, 2)),
        ("ratio", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("done", pa.bool_()),
        ("code", pa.uuid()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32())])),
    ]
)


def table(*ids: int | None) -> pa.Table:
    """A row per id; all of its values follow from the id, and some are NULL."""

    def values(number: int | None) -> tuple[Any, ...]:
        if number is None:
            return (None,) * len(SCHEMA)
        return (
            number,
            f"row {number}",
            Decimal(number) / 4,
            float("nan") if number % 3 == 0 else number / 3,
            date.fromordinal(730_000 + number),
            datetime.fromtimestamp(number, UTC),
            number % 2 == 0,
            number.to_bytes(16, "big"),
            None if number % 5 == 0 else [str(number)] * (number % 3),
            {"x": number},
        )

    columns = zip(*map(values, ids), strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


@pytest.mark.parametrize("rows_in_memory", [1_000_000, 40, 7])
def test_the_difference_is_that_of_bags(rows_in_memory: int) -> None:
    numbers = random.Random(7)  # noqa: S311 - repeatable
    removed, added = ([numbers.choice([None, *range(150)]) for _ in range(300)] for _ in range(2))
    expected = Counter(added)
    expected.subtract(removed)

    with RowDifference(600, SCHEMA.names, rows_in_memory=rows_in_memory) as difference:
        for ids, sign in ((removed, -1), (added, 1)):
            for start in range(0, 300, 50):
                difference.add(table(*ids[start : start + 50]), sign)
        found: Counter[int | None] = Counter()
        for sign, rows in difference.rows():
            assert rows.schema == SCHEMA
            for number in rows["id"].to_pylist():
                found[number] += sign

    assert found == Counter({number: count for number, count in expected.items() if count})


def test_other_columns_are_carried_along() -> None:
    with RowDifference(3, ["id"]) as difference:
        for sign, note in ((1, "first"), (-1, "second"), (1, "third")):
            difference.add(pa.table({"id": [1], "note": [note]}), sign)
        ((sign, rows),) = difference.rows()

    assert (sign, rows.to_pylist()) == (1, [{"id": 1, "note": "third"}])

"""Merges leave the rows that Spark's own MERGE INTO leaves, in 500 random cases per flavour.

The cases share one table and one merge: the number of the case is part of the key.
"""

import math
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from dagster import StaticPartitionsDefinition, asset
from support.spark_session import spark_resource, to_frame
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

CASES = 500
NAN = float("nan")
# Some are equal to each other, as SQL compares keys.
KEYS = [0.0, -0.0, NAN, -NAN, 1.5, 2.5, -1.5]
TEXTS = ["a", "b", "A", "", None]
VALUES = [0.0, -0.0, NAN, 1.0, None]
ROWS = pa.schema(
    [
        ("region", pa.string()),
        ("number", pa.int64()),
        ("k", pa.float64()),
        ("at", pa.int64()),
        ("part", pa.float64()),
        ("op", pa.string()),
        ("a", pa.string()),
        ("b", pa.float64()),
    ]
)
SLICE = "t.region = 'eu'"
ORDER = "(s.at < t.at OR (s.at = t.at AND s.part < t.part AND NOT isnan(t.part)))"
NOT_OLDER = f"NOT coalesce({ORDER}, FALSE)"
ASSIGN_ALL = ", ".join(f"{column} = s.{column}" for column in ("at", "part", "op", "a", "b"))
INSERT = f"INSERT ({', '.join(ROWS.names)}) VALUES ({', '.join(f's.{column}' for column in ROWS.names)})"  # noqa: S608 - constants
FLAVOURS: dict[str, tuple[Mapping[str, Any], list[str]]] = {
    "upsert": ({}, [f"WHEN MATCHED THEN UPDATE SET {ASSIGN_ALL}", f"WHEN NOT MATCHED THEN {INSERT}"]),
    "delete_when": (
        {"delete_when": "op = 'D'"},
        [
            "WHEN MATCHED AND s.op = 'D' THEN DELETE",
            f"WHEN MATCHED THEN UPDATE SET {ASSIGN_ALL}",
            f"WHEN NOT MATCHED AND (s.op IS NULL OR s.op <> 'D') THEN {INSERT}",
        ],
    ),
    "order_by": (
        {"order_by": ["at", "part"]},
        [f"WHEN MATCHED AND {NOT_OLDER} THEN UPDATE SET {ASSIGN_ALL}", f"WHEN NOT MATCHED THEN {INSERT}"],
    ),
    "ignore": ({"on_match": "ignore"}, [f"WHEN NOT MATCHED THEN {INSERT}"]),
    "update_columns": (
        {"update_columns": ["b"]},
        ["WHEN MATCHED THEN UPDATE SET b = s.b", f"WHEN NOT MATCHED THEN {INSERT}"],
    ),
    "on_missing": (
        {"on_missing": "delete"},
        [
            f"WHEN MATCHED THEN UPDATE SET {ASSIGN_ALL}",
            f"WHEN NOT MATCHED THEN {INSERT}",
            f"WHEN NOT MATCHED BY SOURCE AND {SLICE} THEN DELETE",
        ],
    ),
    "all": (
        {
            "delete_when": "op = 'D'",
            "order_by": ["at", "part"],
            "update_columns": ["at", "part", "a"],
            "on_missing": "delete",
        },
        [
            f"WHEN MATCHED AND s.op = 'D' AND {NOT_OLDER} THEN DELETE",
            f"WHEN MATCHED AND {NOT_OLDER} THEN UPDATE SET at = s.at, part = s.part, a = s.a",
            f"WHEN NOT MATCHED AND (s.op IS NULL OR s.op <> 'D') THEN {INSERT}",
            f"WHEN NOT MATCHED BY SOURCE AND {SLICE} THEN DELETE",
        ],
    ),
}


def key_of(k: float) -> str:
    """The same for keys that are equal."""
    return "NaN" if math.isnan(k) else repr(k + 0.0)


def rows_of_table(draw: Random, number: int) -> Iterator[tuple[Any, ...]]:
    """Some share a key, and some have none."""
    for _ in range(draw.randrange(7)):
        order = (draw.choice([0, 1, 2, None]), draw.choice([0.0, -0.0, 1.0, NAN, None]))
        values = (draw.choice(["I", "D", None]), draw.choice(TEXTS), draw.choice(VALUES))
        yield (draw.choice(["eu", "eu", "us"]), number, draw.choice([*KEYS, None]), *order, *values)


def rows_of_source(draw: Random, number: int, *, in_order: bool) -> Iterator[tuple[Any, ...]]:
    """One row per key; with an order several, of which one is the newest."""
    for k in {key_of(k): k for k in draw.sample(KEYS, draw.randrange(len(KEYS)))}.values():
        orders = [(at, part) for at in range(3) for part in (0.0, 1.0)]
        for order in draw.sample(orders, draw.choice([1, 1, 2, 3]) if in_order else 1):
            values = (draw.choice(["I", "D", None]), draw.choice(TEXTS), draw.choice(VALUES))
            yield ("eu", number, k, *order, *values)


def to_table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table(
        [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), ROWS.types, strict=True)], ROWS
    )


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_merge_leaves_what_merge_into_leaves(warehouse: Warehouse, flavour: str) -> None:
    settings, clauses = FLAVOURS[flavour]
    draw = Random(flavour)  # noqa: S311 - the same cases each time
    files = [to_table([row for number in range(CASES) for row in rows_of_table(draw, number)]) for _ in range(2)]
    source = to_table(
        [row for number in range(CASES) for row in rows_of_source(draw, number, in_order="order_by" in settings)]
    )
    session = spark_resource(warehouse.iceberg).spark_session

    @asset(
        partitions_def=StaticPartitionsDefinition(["eu", "us"]),
        metadata=iceberg_settings(partition_expr="region", upsert_keys=["number", "k"], **settings),
    )
    def items() -> Any:
        return warehouse.frame(source)

    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.items", ROWS)
    for rows in files:
        warehouse.manager.append("public.items", rows)
    session.sql("CREATE TABLE floe.public.expected USING iceberg AS SELECT * FROM floe.public.items")
    warehouse.run(items, "eu")

    newest = "PARTITION BY number, k ORDER BY at DESC, part DESC"
    to_frame(session, source).createOrReplaceTempView("source")
    session.sql(
        "MERGE INTO floe.public.expected t "  # noqa: S608 - constants
        f"USING (SELECT * FROM (SELECT *, row_number() OVER ({newest}) place FROM source) WHERE place = 1) s "
        f"ON t.number = s.number AND t.k = s.k AND {SLICE} {' '.join(clauses)}"
    )
    # As texts, in which NaN equals NaN and 0.0 differs from -0.0.
    found, expected = (list(map(repr, warehouse.rows(name))) for name in ("items", "expected"))
    assert found == expected
    assert len(found) > CASES

"""The column that holds a partition may be of any type that can distinguish partitions."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DailyPartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
)
from support.io_results import failure_of
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-040", "S2-US8.4", "D4")

IDS = ("0e4a8bb8-7a2e-4f3a-9d6b-2f0f5c6b1a11", "7f1c2d3e-1111-4222-8333-944445555666")
# Arrow type of the column, Iceberg's, two keys, and the value each key means.
KEYED = {
    "string": (pa.string(), "string", ("eu", "us"), ("eu", "us")),
    "large string": (pa.large_string(), "string", ("eu", "us"), ("eu", "us")),
    "int": (pa.int32(), "int", ("1", "10"), (1, 10)),
    "long": (pa.int64(), "long", ("1", "-4000000000"), (1, -4_000_000_000)),
    "boolean": (pa.bool_(), "boolean", ("true", "false"), (True, False)),
    "decimal": (pa.decimal128(9, 2), "decimal(9, 2)", ("1.5", "15"), (Decimal("1.50"), Decimal("15.00"))),
    "date": (pa.date32(), "date", ("2024-01-01", "2024-01-02"), (date(2024, 1, 1), date(2024, 1, 2))),
}


def keyed_asset(warehouse: Warehouse, arrow_type: pa.DataType, values: dict[str, Any]) -> AssetsDefinition:
    runs = iter(range(10))

    @asset(partitions_def=StaticPartitionsDefinition(list(values)), metadata={"partition_expr": "by"})
    def events(context: AssetExecutionContext) -> Any:
        schema = pa.schema([("by", arrow_type), ("run", pa.int64())])
        return warehouse.frame({"by": [values[context.partition_key]], "run": [next(runs)]}, schema)

    return events


@pytest.mark.parametrize(("arrow_type", "iceberg_type", "keys", "values"), KEYED.values(), ids=KEYED.keys())
def test_a_key_selects_the_value_it_spells(
    warehouse: Warehouse, arrow_type: pa.DataType, iceberg_type: str, keys: Sequence[str], values: Sequence[Any]
) -> None:
    events = keyed_asset(warehouse, arrow_type, dict(zip(keys, values, strict=True)))

    for key in (keys[0], keys[1], keys[0]):
        warehouse.run(events, key)

    assert str(warehouse.table("events").schema().find_type("by")) == iceberg_type
    assert dict(warehouse.rows("events")) == {values[0]: 2, values[1]: 1}


def test_a_key_selects_the_uuid_it_spells(warehouse: Warehouse) -> None:
    """In a table that has such a column; docs/engines.md says which engine makes one."""
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.events", pa.schema([("by", pa.uuid()), ("run", pa.int64())]))
    first, second = map(UUID, IDS)
    events = keyed_asset(warehouse, pa.uuid(), {IDS[0]: first, IDS[1]: second})

    for key in (IDS[0], IDS[1], IDS[0]):
        warehouse.run(events, key)

    assert dict(warehouse.rows("events")) == {first: 2, second: 1}


def test_uuids_of_one_file_are_replaced_one_by_one(warehouse: Warehouse) -> None:
    """Iceberg's Java, which skips files for Spark, takes the first bit of a UUID for a sign."""
    keys = ["00000000-0000-4000-8000-000000000001", "80000000-0000-4000-8000-000000000001", UUID(int=2**128 - 1).hex]
    keys = sorted(str(UUID(key)) for key in keys)
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.events", pa.schema([("by", pa.uuid()), ("run", pa.int64())]))
    runs = iter(range(10))

    @asset(partitions_def=StaticPartitionsDefinition(keys), metadata={"partition_expr": "by"})
    def events(context: AssetExecutionContext) -> Any:
        schema = pa.schema([("by", pa.uuid()), ("run", pa.int64())])
        values = list(map(UUID, context.partition_keys))
        return warehouse.frame({"by": values, "run": [next(runs)] * len(values)}, schema)

    warehouse.run(events, key_range=(keys[0], keys[-1]))
    for key in keys:
        warehouse.run(events, key)

    assert warehouse.rows("events") == [(UUID(key), run) for run, key in enumerate(keys, start=1)]


TIMESTAMPS = {
    "date": (pa.date32(), [date(2024, 1, 2)]),
    "timestamp": (pa.timestamp("us"), [datetime(2024, 1, 2), datetime(2024, 1, 2, 23, 59, 59, 999999)]),  # noqa: DTZ001
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        [datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 2, 23, 59, 59, 999999, tzinfo=UTC)],
    ),
    "nanoseconds": (pa.timestamp("ns"), [datetime(2024, 1, 2, 12)]),  # noqa: DTZ001
    "seconds": (pa.timestamp("s", "Europe/Berlin"), [datetime(2024, 1, 2, 23, 30, tzinfo=UTC)]),
    "the key as text": (pa.string(), ["2024-01-02"]),
}


@pytest.mark.parametrize(("arrow_type", "timestamps"), TIMESTAMPS.values(), ids=TIMESTAMPS.keys())
def test_a_day_selects_the_timestamps_within_it(
    warehouse: Warehouse, arrow_type: pa.DataType, timestamps: Sequence[Any]
) -> None:
    runs = iter(range(10))

    @asset(partitions_def=DailyPartitionsDefinition("2024-01-01"), metadata={"partition_expr": "at"})
    def events() -> Any:
        schema = pa.schema([("at", arrow_type), ("run", pa.int64())])
        return warehouse.frame({"at": timestamps, "run": [next(runs)] * len(timestamps)}, schema)

    for _ in range(2):
        warehouse.run(events, "2024-01-02")

    assert [run for _, run in warehouse.rows("events")] == [1] * len(timestamps)
    assert not warehouse.run(events, "2024-01-03", raise_on_error=False).success


def test_timestamps_without_a_zone_are_in_the_zone_that_the_asset_names(warehouse: Warehouse) -> None:
    @asset(
        partitions_def=DailyPartitionsDefinition("2024-07-01", timezone="America/New_York"),
        metadata=iceberg_settings(partition_expr="at", naive_timezone="America/New_York"),
    )
    def events(context: AssetExecutionContext) -> Any:
        day = datetime.fromisoformat(context.partition_key)
        return warehouse.frame({"at": [day, day.replace(hour=23)]})

    for key in ("2024-07-01", "2024-07-02", "2024-07-01"):
        warehouse.run(events, key)

    assert len(warehouse.rows("events")) == 4


def test_a_column_inside_a_struct_may_hold_the_partition(warehouse: Warehouse) -> None:
    schema = pa.schema([("payload", pa.struct([("region", pa.string())])), ("run", pa.int64())])
    runs = iter(range(10))

    @asset(partitions_def=StaticPartitionsDefinition(["eu", "us"]), metadata={"partition_expr": "payload.region"})
    def events(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"payload": [{"region": context.partition_key}], "run": [next(runs)]}, schema)

    for key in ("eu", "us", "eu"):
        warehouse.run(events, key)

    assert warehouse.rows("events") == [({"region": "eu"}, 2), ({"region": "us"}, 1)]


def test_a_key_that_the_column_cannot_hold_is_refused(warehouse: Warehouse) -> None:
    events = keyed_asset(warehouse, pa.int32(), {"eu": 1})

    result = warehouse.run(events, "eu", raise_on_error=False)

    assert "Partition key 'eu' is not a valid int" in failure_of(result, "events")
    assert not warehouse.exists("events")

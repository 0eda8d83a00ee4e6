"""Random partitions, rows and runs, against a model that is a plain list of rows."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
    asset,
    materialize,
)
from hypothesis import HealthCheck, given, settings, strategies as st

from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource

pytestmark = pytest.mark.requirement("S2-FR-040", "S2-US8.4", "S2-US5.2", "D4")

Row = tuple[Any, ...]
MICROSECOND = timedelta(microseconds=1)
REGIONS = StaticPartitionsDefinition(["eu", "o'brien", "us"])
ZONES = ("UTC", "America/New_York", "Asia/Kathmandu")


def _time_windows(zone: str) -> list[TimeWindowPartitionsDefinition]:
    """Definitions whose windows lie around the day on which New York sets its clocks back."""
    days = {"start_date": "2024-11-02", "end_date": "2024-11-05", "timezone": zone}
    hours = {"start_date": "2024-11-03-00:00", "end_date": "2024-11-03-03:00", "timezone": zone}
    return [
        DailyPartitionsDefinition(**days),
        DailyPartitionsDefinition(**days, hour_offset=6),
        HourlyPartitionsDefinition(**hours),
        WeeklyPartitionsDefinition("2024-10-27", end_date="2024-11-17", timezone=zone),
        MonthlyPartitionsDefinition("2024-10-01", end_date="2025-01-01", timezone=zone),
    ]


DEFINITIONS: list[PartitionsDefinition] = [
    REGIONS,
    *(definition for zone in ZONES for definition in _time_windows(zone)),
    *(MultiPartitionsDefinition({"at": _time_windows(zone)[0], "region": REGIONS}) for zone in ZONES),
]


@dataclass
class Pipeline:
    """A partitioned asset with a table of its own, and the rows that the table should hold."""

    partitions_def: PartitionsDefinition
    spec: list[str] | None
    folder: Path
    instance: DagsterInstance
    expected: list[Row] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        return ["at", "region"] if isinstance(self.partitions_def, MultiPartitionsDefinition) else [self._only]

    @property
    def _only(self) -> str:
        return "at" if isinstance(self.partitions_def, TimeWindowPartitionsDefinition) else "region"

    def key_of(self, row: Row) -> str | None:
        """The key that a row belongs to, found by looking at every key."""
        return next((key for key in self.partitions_def.get_partition_keys() if self._holds(key, row)), None)

    def run(self, first: str, last: str, rows: Sequence[Row]) -> None:
        keys = self.partitions_def.get_partition_keys()
        chosen = set(self.keys_between(first, last, keys))
        result = materialize(
            [self._asset(rows)],
            instance=self.instance,
            partition_key=first if first == last else None,
            tags={} if first == last else _range(first, last),
            resources={"io_manager": self.io_manager},
        )
        kept = [row for row in self.expected if self.key_of(row) not in chosen]
        added = [row for row in rows if self.key_of(row) in chosen]
        self.expected = kept + added
        metadata = result.asset_materializations_for_node("events")[0].metadata
        dropped = metadata["iceberg/rows_dropped"].value if "iceberg/rows_dropped" in metadata else 0
        assert dropped == len(rows) - len(added)

    def keys_between(self, first: str, last: str, keys: Sequence[str]) -> Iterator[str]:
        if not isinstance(self.partitions_def, MultiPartitionsDefinition):
            yield from keys[keys.index(first) : keys.index(last) + 1]
            return
        low, high = (self.partitions_def.get_partition_key_from_str(key).keys_by_dimension for key in (first, last))
        for key in keys:
            parts = self.partitions_def.get_partition_key_from_str(key).keys_by_dimension
            if all(low[name] <= parts[name] <= high[name] for name in parts):
                yield key

    @property
    def io_manager(self) -> ArrowIcebergIOManager:
        location = {"catalog_uri": f"sqlite:///{self.folder}/c.db", "warehouse": f"file://{self.folder}/w"}
        return ArrowIcebergIOManager(iceberg=IcebergResource(**location), rows_outside_partition="drop")

    def rows(self) -> list[Row]:
        manager = self.io_manager.table_manager
        if not manager.table_exists("public.events"):
            return []
        found = manager.scan("public.events", columns=[*self.columns, "number"]).to_pylist()
        return sorted((tuple(row[name] for name in (*self.columns, "number")) for row in found), key=repr)

    def compact(self) -> None:
        manager = self.io_manager.table_manager
        if manager.table_exists("public.events"):
            manager.compact_table("public.events")

    def _asset(self, rows: Sequence[Row]) -> AssetsDefinition:
        types = {"at": pa.timestamp("us", "UTC"), "region": pa.string(), "number": pa.int64()}
        names = [*self.columns, "number"]
        frame = pa.table(
            {name: pa.array([row[at] for row in rows], types[name]) for at, name in enumerate(names)},
        )
        expr = {name: name for name in self.columns} if len(self.columns) > 1 else self._only
        metadata: dict[str, Any] = {"partition_expr": expr}
        if self.spec is not None:
            metadata["iceberg/partition_spec"] = self.spec

        @asset(partitions_def=self.partitions_def, metadata=metadata)
        def events() -> pa.Table:
            return frame

        return events

    def _holds(self, key: str, row: Row) -> bool:
        if not isinstance(self.partitions_def, MultiPartitionsDefinition):
            return _belongs(self.partitions_def, key, row[0])
        parts = self.partitions_def.get_partition_key_from_str(key).keys_by_dimension
        return all(
            _belongs(self.partitions_def.get_partitions_def_for_dimension(name), parts[name], value)
            for name, value in zip(self.columns, row, strict=False)
        )


def _belongs(partitions_def: PartitionsDefinition, key: str, value: Any) -> bool:
    if value is None or not isinstance(partitions_def, TimeWindowPartitionsDefinition):
        return bool(value == key)
    window = partitions_def.time_window_for_partition_key(key)
    return window.start.timestamp() <= value.timestamp() < window.end.timestamp()


def _range(first: str, last: str) -> Mapping[str, str]:
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def _value(draw: Any, partitions_def: PartitionsDefinition, key: str) -> Any:
    """What a row of that key may hold, and now and then what only its neighbor may."""
    luck = draw(st.integers(0, 11))
    if luck == 0:
        return None
    if not isinstance(partitions_def, TimeWindowPartitionsDefinition):
        return "elsewhere" if luck == 1 else key
    window = partitions_def.time_window_for_partition_key(key)
    first, after = window.start.astimezone(UTC), window.end.astimezone(UTC)
    within = [first, first + timedelta(minutes=30), after - MICROSECOND]
    return draw(st.sampled_from([first - MICROSECOND, after] if luck == 1 else within))


def _rows(draw: Any, partitions_def: PartitionsDefinition, keys: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for number in range(draw(st.integers(0, 5))):
        key = draw(st.sampled_from(keys))
        if isinstance(partitions_def, MultiPartitionsDefinition):
            parts = partitions_def.get_partition_key_from_str(key).keys_by_dimension
            dimensions = [(partitions_def.get_partitions_def_for_dimension(name), parts[name]) for name in parts]
        else:
            dimensions = [(partitions_def, key)]
        rows.append((*(_value(draw, dimension, part) for dimension, part in dimensions), number))
    return rows


def run_like_the_model(data: st.DataObject, runs: int) -> None:
    draw = data.draw
    partitions_def = draw(st.sampled_from(DEFINITIONS))
    spec = draw(st.sampled_from([None, None, [], ["bucket(2, number)"]]))
    with tempfile.TemporaryDirectory() as folder, DagsterInstance.ephemeral() as instance:
        pipeline = Pipeline(partitions_def, spec, Path(folder), instance)
        keys = partitions_def.get_partition_keys()
        for _ in range(draw(st.integers(2, runs))):
            first = draw(st.integers(0, len(keys) - 1))
            last = draw(st.sampled_from([first, first, len(keys) - 1]))
            chosen = list(pipeline.keys_between(keys[first], keys[last], keys))
            pipeline.run(keys[first], keys[last], _rows(draw, partitions_def, chosen))
            if draw(st.integers(0, 3)) == 0:
                pipeline.compact()
        assert pipeline.rows() == sorted(pipeline.expected, key=repr)


@settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@pytest.mark.slow
@given(st.data())
def test_a_table_holds_what_the_model_holds(data: st.DataObject) -> None:
    run_like_the_model(data, runs=6)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_a_table_holds_what_the_model_holds_after_many_runs(data: st.DataObject) -> None:
    run_like_the_model(data, runs=8)

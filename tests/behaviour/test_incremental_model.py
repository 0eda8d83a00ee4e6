"""A changelog upserted into a target equals a full rebuild, whatever happens to the source, the target and the runs."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetIn, AssetOut, AssetsDefinition, Output, RetryRequested, asset, multi_asset
from support.change_history import (
    CHANGE_COLUMNS,
    TABLE,
    KeyedHistory,
    Row,
    create_orders,
    expire_all_but_the_newest,
    orders,
)
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.models import Cursor

COPY = "public.copy"
CURSOR = f"floe.cursor.{TABLE}"
FATES = {
    "nothing": 5,
    "retry after reading": 2,
    "fail after reading": 2,
    "retry after the commit": 2,
    "fail after the commit": 2,
    "full refresh": 1,
}


@asset(key="orders")
def source() -> None:
    """Written by the history."""


def last_states(changes: pa.Table) -> pa.Table:
    """The last change of each id, as a row that says whether the id is gone."""
    inserts = {"INSERT", "UPDATE_AFTER"}
    in_order = sorted(changes.to_pylist(), key=lambda row: (row["_change_ordinal"], row["_change_type"] in inserts))
    found = {row["id"]: {**row, "deleted": row["_change_type"] not in inserts} for row in in_order}
    kept = [field for field in changes.schema if field.name not in CHANGE_COLUMNS]
    return pa.Table.from_pylist([*found.values()], pa.schema([*kept, pa.field("deleted", pa.bool_())]))


class Target:
    """An asset that follows the source, and what befalls its runs."""

    def __init__(self, warehouse: Warehouse, seed: int) -> None:
        self._warehouse, self._random = warehouse, random.Random(seed)  # noqa: S311 - repeatable
        self._history, self._fate = KeyedHistory(warehouse, seed), "nothing"
        self._oldest = 0
        self.fates: list[str] = []

    def step(self) -> None:
        for _ in range(self._random.randrange(3)):
            self._history.step()
        if self._random.random() < 0.15:
            self._roll_back()
        self._fate = self._random.choices(list(FATES), list(FATES.values()))[0]
        self.fates.append(self._fate)
        tags = {"iceberg/full_refresh": "true"} if self._fate == "full refresh" else {}
        fails = self._fate.startswith("fail")
        result = self._run(tags=tags, raise_on_error=not fails)
        assert result.success is not fails
        self.assert_equals_a_rebuild()
        if self._random.random() < 0.1 and not fails:
            self.run_once()
            expire_all_but_the_newest(self._warehouse)
            self._oldest = len(self._snapshots())

    def run_once(self) -> None:
        self._fate = "nothing"
        self._run()

    def assert_equals_a_rebuild(self) -> None:
        """The target holds the rows that the source had at the snapshot that the target's own commit names."""
        if not self._warehouse.exists("copy"):
            return
        columns = self._warehouse.table(TABLE).schema().column_names
        rows = self._warehouse.manager.scan(COPY, row_filter="deleted = false")
        expected = self._warehouse.manager.scan(TABLE, snapshot_id=self.position)
        assert _bag(rows, columns) == _bag(expected, columns), (self.fates, self._history.kinds)

    @property
    def position(self) -> int:
        text = self._warehouse.table(COPY).current_snapshot().summary.additional_properties[CURSOR]
        return Cursor.parse(text).snapshot_id

    def _snapshots(self) -> list[Any]:
        return list(self._warehouse.manager.list_snapshots(COPY))[::-1] if self._warehouse.exists("copy") else []

    def _roll_back(self) -> None:
        table = self._warehouse.table(COPY) if self._warehouse.exists("copy") else None
        head = None if table is None else table.current_snapshot()
        if head is None or len(self._snapshots()) <= self._oldest or head.parent_snapshot_id is None:
            return
        self._warehouse.manager.rollback_to_snapshot(COPY, head.parent_snapshot_id)
        self.fates.append("roll back")

    def _run(self, **options: Any) -> Any:
        return self._warehouse.run([source, self._asset()], selection=["copy"], **options)

    def _asset(self) -> AssetsDefinition:
        attempts = iter([self._fate])

        @multi_asset(
            outs={"copy": AssetOut(is_required=False, metadata=iceberg_settings(upsert_keys=["id"]))},
            ins={"orders": AssetIn(metadata=iceberg_settings(changes="changelog"))},
        )
        def follower(orders: self._warehouse.frame_type) -> Iterator[Any]:
            fate = next(attempts, "nothing")
            changes = self._warehouse.to_arrow(orders)
            for when in ("reading", "the commit"):
                if when == "the commit":
                    yield Output(self._warehouse.frame(last_states(changes)), "copy")
                if fate.endswith(f"after {when}"):
                    # The next attempt could read more.
                    self._history.step()
                    raise RetryRequested(max_retries=1) if fate.startswith("retry") else RuntimeError(fate)

        return follower


def _bag(rows: pa.Table, columns: list[str]) -> Counter[Row]:
    return Counter(tuple(row.get(column) for column in columns) for row in rows.to_pylist())


def _follow(warehouse: Warehouse, *, seed: int, runs: int) -> None:
    create_orders(warehouse, partitioned=seed % 2 == 0)
    warehouse.manager.append(TABLE, orders((1, 0, 1), (2, 1, 1)))
    target = Target(warehouse, seed)
    for _ in range(runs):
        target.step()
    target.run_once()
    target.assert_equals_a_rebuild()
    assert target.position == warehouse.table(TABLE).metadata.current_snapshot_id


def test_an_upserted_changelog_equals_a_full_rebuild(warehouse: Warehouse) -> None:
    _follow(warehouse, seed=2, runs=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13, 14])
def test_an_upserted_changelog_equals_a_full_rebuild_after_two_hundred_runs(warehouse: Warehouse, seed: int) -> None:
    _follow(warehouse, seed=seed, runs=50)

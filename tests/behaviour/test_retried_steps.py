"""A step that failed after one of its outputs was stored is run again, and that output is stored once."""

from collections.abc import Iterator
from typing import Any

import pytest
from dagster import AssetsDefinition, AssetSpec, MaterializeResult, RetryRequested, multi_asset
from support.process_numbers import process_numbers
from support.span_tree import SpanRecorder
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-022", "S2-FR-026", "S4-handle_output")


def two_tables(warehouse: Warehouse, attempts: list[int], **settings: Any) -> AssetsDefinition:
    """Two outputs of one step, which breaks between them the first time."""
    specs = [AssetSpec(name, skippable=True, metadata=iceberg_settings(**settings)) for name in ("left", "right")]

    @multi_asset(specs=[spec.with_io_manager_key("io_manager") for spec in specs])
    def both() -> Iterator[Any]:
        attempts.append(len(attempts))
        for name in ("left", "right"):
            yield MaterializeResult(asset_key=name, value=warehouse.frame({"id": [1], "attempt": [attempts[-1]]}))
            if len(attempts) == 1:
                raise RetryRequested(max_retries=1)

    return both


@pytest.mark.lakes
@pytest.mark.parametrize(
    "settings",
    [
        {"write_mode": "append"},
        {"upsert_keys": "id"},
        {"upsert_keys": "id", "order_by": "attempt", "delete_when": "attempt > 7", "on_missing": "delete"},
    ],
    ids=["append", "upsert", "merge"],
)
def test_what_is_stored_already_is_not_stored_again(warehouse: Warehouse, settings: Any) -> None:
    attempts: list[int] = []

    result = warehouse.run(two_tables(warehouse, attempts, **settings))

    assert attempts == [0, 1]
    assert warehouse.rows("left") == [(1, 0)]
    assert warehouse.rows("right") == [(1, 1)]
    assert len(warehouse.table("left").metadata.snapshots) == 1
    again = result.asset_materializations_for_node("both")[-2]
    assert again.metadata["iceberg/deduplicated"].value is True
    assert again.metadata["iceberg/snapshot_id"].value == str(warehouse.table("left").metadata.current_snapshot_id)


@pytest.mark.requirement("S2-US7.1", "S2-US7.2")
def test_a_retry_is_another_trace_and_finds_the_snapshot_of_the_first(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, numbers = SpanRecorder.of_everything(monkeypatch), process_numbers()
    numbers.reset()

    warehouse.run(two_tables(warehouse, [], write_mode="append"))

    spans = [tree.attributes for tree in recorder.named("iceberg.handle_output")]
    assert [(span["dagster.asset_key"], span["deduplicated"]) for span in spans] == [
        ("left", False),
        ("left", True),
        ("right", False),
    ]
    assert spans[0]["snapshot.id"] == spans[1]["snapshot.id"]
    assert numbers.changed("iceberg.writes.deduplicated") == {(warehouse.engine, "public.left"): 1}
    assert len(recorder.trace_ids()) == 3


def test_another_run_is_other_work(warehouse: Warehouse) -> None:
    for _ in range(2):
        warehouse.run(two_tables(warehouse, [], write_mode="append"))

    assert warehouse.rows("left") == [(1, 0), (1, 0)]
    assert warehouse.rows("right") == [(1, 1), (1, 1)]

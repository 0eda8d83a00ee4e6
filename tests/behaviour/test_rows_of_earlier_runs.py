"""An asset without partitions appends by default, and says so from its second run on."""

from collections.abc import Iterator
from typing import Any

import pytest
from dagster import AssetsDefinition, DagsterInstance, asset
from support.io_results import shown
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-021")

KEYS = {"iceberg/rows_before", "iceberg/hint"}


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def items(warehouse: Warehouse, **settings: Any) -> AssetsDefinition:
    @asset(metadata=iceberg_settings(**settings))
    def items() -> Any:
        return warehouse.frame({"id": [1, 2]})

    return items


def test_the_second_run_says_how_many_rows_were_there_and_what_replaces_them(
    warehouse: Warehouse, instance: DagsterInstance
) -> None:
    first = shown(warehouse.run(items(warehouse), instance=instance), "items")

    result = warehouse.run(items(warehouse), instance=instance)

    second = shown(result, "items")
    assert not KEYS & first.keys()
    assert second["iceberg/rows_before"] == 2
    assert '"iceberg/write_mode" to "overwrite"' in second["iceberg/hint"]
    logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("'public.items' had 2 rows before this run, which appended 2" in message for message in logged)
    assert warehouse.rows("items") == [(1,), (1,), (2,), (2,)]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_an_asset_with_a_write_mode_of_its_own_shows_no_hint(warehouse: Warehouse, mode: str) -> None:
    for _ in range(2):
        result = warehouse.run(items(warehouse, write_mode=mode))

    assert not KEYS & shown(result, "items").keys()

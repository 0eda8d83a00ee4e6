"""Compaction while others write: their version wins, or both land."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.lake import Lake
from support.maintenance_tables import EAGER, ORDERS, checksum, content, make_orders, rows_of
from support.racing_catalog import racing_manager

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceOperation, MaintenanceStatus
from floe_dagster_iceberg.table.manager import IcebergTableManager

COMPACTION = MaintenanceOperation.COMPACTION


def _meanwhile(manager: IcebergTableManager) -> dict[str, Callable[[], object]]:
    first_day = rows_of(7, days=1)
    return {
        "append": lambda: manager.append(ORDERS, rows_of(8)),
        "overwrite of a partition": lambda: manager.overwrite(ORDERS, first_day, overwrite_filter="day = '2024-01-01'"),
        "other partitioning": lambda: manager.load_table(ORDERS).update_spec().add_identity("region").commit(),
    }


@pytest.mark.parametrize("event", ["append", "overwrite of a partition", "other partitioning"])
def test_what_another_writer_does_meanwhile_lands_and_so_does_the_rewrite(
    manager: IcebergTableManager, tmp_path: Path, event: str
) -> None:
    make_orders(manager, batches=3, days=3)
    slow = racing_manager(tmp_path, _meanwhile(manager)[event])

    result = TableMaintenance(slow).execute(COMPACTION, ORDERS, EAGER)

    assert result.status is MaintenanceStatus.DONE
    expected = [rows_of(batch, days=3) for batch in range(3)]
    if event == "append":
        expected.append(rows_of(8))
    if event == "overwrite of a partition":
        expected = [batch.filter(pc.field("day") != date(2024, 1, 1)) for batch in expected]
        expected.append(rows_of(7, days=1))
    assert content(manager) == checksum(pa.concat_tables(expected))


def test_a_race_that_is_lost_for_good_is_left_for_the_next_run(manager: IcebergTableManager, tmp_path: Path) -> None:
    make_orders(manager, batches=2, days=1)
    replace_all = [lambda: manager.overwrite(ORDERS, rows_of(5, days=1))] * 20
    manager.append(ORDERS, rows_of(6, days=1))

    result = TableMaintenance(racing_manager(tmp_path, *replace_all)).execute(COMPACTION, ORDERS, EAGER)

    assert result.status is MaintenanceStatus.SKIPPED
    assert result.error is None
    assert "Left for the next run" in result.plan.summary
    assert content(manager) == checksum(rows_of(5, days=1))


def test_a_lost_rewrite_leaves_no_file_behind(lake: Lake, manager: IcebergTableManager, tmp_path: Path) -> None:
    make_orders(manager, batches=2, days=1)
    replace_all = [lambda: manager.overwrite(ORDERS, rows_of(5, days=1))] * 20

    TableMaintenance(racing_manager(tmp_path, *replace_all)).execute(COMPACTION, ORDERS, EAGER)

    table = manager.load_table(ORDERS)
    written = {entry["file_path"] for entry in table.inspect.all_files().to_pylist()}
    assert {f"file://{path}" for path in lake.data_files()} == written

"""Orphan files: into quarantine, back from it, or gone; never a file that is in use."""

import json
from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from pyiceberg.io.fsspec import FsspecFileIO
from support.lake import Lake
from support.maintenance_orphans import ORPHANS, all_old, clean, leave_orphan, policy, statistics_at
from support.maintenance_tables import (
    DAY,
    EAGER,
    ORDERS,
    content,
    everything_in,
    make_older,
    make_orders,
    rows_of,
    to_path,
)

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceStatus, PlanReason
from floe_dagster_iceberg.table.maintenance import orphan_files as orphans
from floe_dagster_iceberg.table.maintenance.orphan_files import load_quarantines
from floe_dagster_iceberg.table.manager import IcebergTableManager


def test_an_orphan_is_moved_to_quarantine_with_a_list_and_deleted_after_the_grace_time(
    manager: IcebergTableManager,
) -> None:
    make_orders(manager, batches=2)
    orphan = leave_orphan(manager)

    moved = clean(manager)
    waiting = clean(manager, after=6 * DAY)
    purged = clean(manager, after=8 * DAY)

    assert (moved.status, moved.files_removed, moved.bytes_removed) == (MaintenanceStatus.DONE, 1, 48)
    assert moved.plan.files == (f"file://{orphan}",)
    assert (waiting.status, waiting.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BELOW_THRESHOLD)
    assert (purged.status, purged.files_removed, purged.bytes_removed) == (MaintenanceStatus.DONE, 1, 48)
    assert not list(to_path(manager.load_table(ORDERS).location()).rglob("left-behind.parquet"))


def test_the_list_says_where_each_file_was(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=1)
    orphan = leave_orphan(manager)
    written_at = orphan.stat().st_mtime

    clean(manager)

    [listed] = to_path(table.location()).glob("_floe_quarantine/*/list.json")
    [file] = json.loads(listed.read_text())["files"]
    assert (file["location"], file["size_bytes"]) == (f"file://{orphan}", 48)
    assert to_path(file["quarantined_at"]).stat().st_mtime == written_at
    assert to_path(file["quarantined_at"]).is_relative_to(listed.parent)


@pytest.mark.requirement("S2-E2")
def test_a_restore_is_byte_identical(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=2)
    for number in range(3):
        leave_orphan(manager, f"data/deep/er/{number}.parquet")
    before = everything_in(to_path(table.location()))
    clean(manager)

    restored = TableMaintenance(manager).restore_orphans(ORDERS)

    assert restored == 3
    assert everything_in(to_path(table.location())) == before
    assert TableMaintenance(manager).restore_orphans(ORDERS) == 0


def test_one_quarantine_of_several_can_be_restored(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=3)
    first = leave_orphan(manager, "data/first.parquet")
    clean(manager)
    second = leave_orphan(manager, "data/second.parquet")
    clean(manager, after=timedelta(seconds=1))
    quarantine_id = load_quarantines(table)[0].quarantine_id

    restored = TableMaintenance(manager).restore_orphans(ORDERS, quarantine_id)

    assert (restored, first.exists(), second.exists()) == (1, True, False)
    with pytest.raises(ValidationError, match=f"has no quarantine '{quarantine_id}'. It has: 2"):
        TableMaintenance(manager).restore_orphans(ORDERS, quarantine_id)


def test_a_quarantine_that_was_interrupted_can_be_restored(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=2)
    left = [leave_orphan(manager, f"data/{number}.parquet") for number in range(2)]
    clean(manager)
    [quarantine] = load_quarantines(table)
    # As if the run had been killed before the second file was moved.
    to_path(quarantine.files[1].quarantined_at).rename(to_path(quarantine.files[1].location))

    assert TableMaintenance(manager).restore_orphans(ORDERS) == 1
    assert all(orphan.exists() for orphan in left)


def test_files_of_running_writers_are_left_alone(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=1)
    in_flight = leave_orphan(manager, age=6 * DAY)

    assert clean(manager).plan.reason is PlanReason.BELOW_THRESHOLD
    assert in_flight.exists()


def test_nothing_that_the_table_needs_is_an_orphan_however_old(manager: IcebergTableManager) -> None:
    """Files of old specs, of branches, tags and earlier snapshots, statistics, metadata of the log."""
    table = make_orders(manager, batches=2)
    manager.create_tag(ORDERS, "tag")
    manager.create_branch(ORDERS, "audit")
    manager.append(ORDERS, rows_of(5), branch="audit")
    with table.refresh().update_spec() as update:
        update.add_identity("region")
    manager.overwrite(ORDERS, rows_of(6))
    statistics = leave_orphan(manager, "metadata/of-columns.stats")
    with manager.load_table(ORDERS).update_statistics() as update:
        update.set_statistics(statistics_at(manager, statistics))
    all_old(manager)

    result = clean(manager)

    assert (result.status, result.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BELOW_THRESHOLD)
    assert "None of" in result.plan.summary


def test_hidden_files_and_folders_are_left_alone(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=1)
    hidden = [leave_orphan(manager, name) for name in ("_temporary/0/part.parquet", "metadata/.v1.crc", ".hidden")]

    assert clean(manager).status is MaintenanceStatus.SKIPPED
    assert all(path.exists() for path in hidden)


def test_a_partition_column_that_begins_with_an_underscore_hides_nothing(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2)
    orphan = leave_orphan(manager, "data/_day=1/left.parquet")

    assert clean(manager).plan.files == (f"file://{orphan}",)


def test_what_is_left_of_failed_commits_is_found(lake: Lake, manager: IcebergTableManager) -> None:
    make_orders(manager, batches=1)
    names = ("metadata/0b1c-m0.avro", "metadata/snap-1-0-0b1c.avro")
    left = {leave_orphan(manager, name) for name in names}

    clean(manager)

    assert not left & lake.files()


def test_a_broken_table_stops_no_other(lake: Lake, manager: IcebergTableManager) -> None:
    make_orders(manager, batches=1)
    orphan = leave_orphan(manager)
    broken = make_orders(manager, batches=1, name="bronze.broken")
    to_path(broken.metadata_location).unlink()

    assert clean(manager).status is MaintenanceStatus.DONE
    assert orphan not in lake.files()
    assert TableMaintenance(manager).execute(ORPHANS, "bronze.broken", EAGER).status is MaintenanceStatus.FAILED


def test_a_file_that_becomes_part_of_the_table_before_the_purge_comes_back(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=4, days=1)
    table = manager.load_table(ORDERS)
    used = to_path(next(iter(table.scan().plan_files())).file.file_path)
    rows = content(manager)
    # Quarantined by mistake, as after a register of older metadata: the list names a file that the table needs.
    orphan = leave_orphan(manager)
    clean(manager)
    [listed] = to_path(table.location()).glob("_floe_quarantine/*/list.json")
    listed.write_text(listed.read_text().replace(f'"file://{orphan}"', f'"file://{used}"'))
    used.rename(to_path(json.loads(listed.read_text())["files"][0]["quarantined_at"]))

    clean(manager, after=8 * DAY)

    assert used.exists()
    assert content(manager) == rows


def test_every_batch_of_moves_looks_at_the_newest_metadata_first(
    manager: IcebergTableManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "MOVE_BATCH", 1)
    table = make_orders(manager, batches=3, days=1)
    found = {leave_orphan(manager, f"data/{number}.parquet") for number in range(2)}
    for path in found:
        pq.write_table(rows_of(9, days=1), path)
        make_older(path, 10 * DAY)

    left: list[str] = []

    def add_what_is_left(_: str) -> None:
        if not left:
            left.extend(f"file://{path}" for path in found if path.exists())
            table.refresh().add_files(left)

    result = TableMaintenance(manager, progress=add_what_is_left).execute(ORPHANS, ORDERS, EAGER)

    assert (result.status, result.files_removed) == (MaintenanceStatus.DONE, 1)
    assert manager.scan(ORDERS).num_rows == 4 * rows_of(0, days=1).num_rows


def test_the_time_of_the_last_run_is_that_of_the_last_quarantine(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2)
    leave_orphan(manager)
    weekly = policy(min_interval=3 * DAY)
    clean(manager, weekly)
    leave_orphan(manager, "data/second.parquet")

    assert clean(manager, weekly, after=2 * DAY).plan.reason is PlanReason.MIN_INTERVAL
    assert clean(manager, weekly, after=4 * DAY).status is MaintenanceStatus.DONE


def test_storage_that_is_reached_through_fsspec_works_the_same(lake: Lake, manager: IcebergTableManager) -> None:
    lake.catalog.properties["py-io-impl"] = f"{FsspecFileIO.__module__}.{FsspecFileIO.__name__}"
    table = make_orders(manager, batches=2)
    assert isinstance(table.io, FsspecFileIO)
    orphan = leave_orphan(manager)
    before = orphan.read_bytes()

    moved = clean(manager)
    gone = not orphan.exists()
    TableMaintenance(manager).restore_orphans(ORDERS)

    assert (moved.status, moved.files_removed, gone) == (MaintenanceStatus.DONE, 1, True)
    assert orphan.read_bytes() == before

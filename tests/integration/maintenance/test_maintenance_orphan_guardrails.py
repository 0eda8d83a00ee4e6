"""When the search for orphans is refused: the location is not the table's own, or the result looks like a mistake."""

import pytest
from support.lake import Lake
from support.maintenance_orphans import ORPHANS, all_old, clean, leave_orphan, plan, policy, statistics_at
from support.maintenance_tables import EAGER, ORDERS, make_orders, paths_of, rows_of

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceStatus, PlanReason
from floe_dagster_iceberg.table.manager import IcebergTableManager


def test_a_location_below_another_tables_is_refused(lake: Lake, manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=2)
    inner = f"{table.location()}/inner"
    manager.create_table("bronze.inner", rows_of(0).schema, location=inner)
    manager.append("bronze.inner", rows_of(0))
    all_old(manager)
    before = lake.files()

    outer = plan(manager)
    refused = TableMaintenance(manager).plan(ORPHANS, "bronze.inner", EAGER)

    assert "refused by 'shared_location'" in outer.blocked_by
    assert "overlaps with that of 'bronze.inner'" in outer.blocked_by
    assert "overlaps with that of 'bronze.orders'" in refused.blocked_by
    assert clean(manager).status is MaintenanceStatus.SKIPPED
    assert lake.files() == before


def test_a_table_whose_location_only_begins_the_same_does_not_overlap(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=1)
    make_orders(manager, batches=1, name="bronze.orders_2")

    assert plan(manager).reason is PlanReason.BELOW_THRESHOLD


def test_a_table_that_no_catalog_lists_is_seen_by_its_metadata_files(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=3)
    manager.create_table("bronze.inner", rows_of(0).schema, location=f"{table.location()}/inner")
    manager.drop_table("bronze.inner")

    refused = plan(manager)

    assert "refused by 'shared_location'" in refused.blocked_by
    assert "the metadata of another table" in refused.blocked_by


def test_files_of_a_dropped_table_of_the_same_name_are_not_taken_for_orphans(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=1)
    all_old(manager)
    manager.drop_table(ORDERS)
    make_orders(manager, batches=5)

    refused = plan(manager)
    allowed = plan(manager, policy(overrides=["shared_location", "orphan_share"], max_share=1))

    assert "the metadata of another table" in refused.blocked_by
    assert allowed.reason is PlanReason.RECOMMENDED


@pytest.mark.parametrize("prefix", ["s3://bucket", "file://host"])
def test_metadata_that_spells_its_files_differently_is_refused(
    lake: Lake, manager: IcebergTableManager, prefix: str
) -> None:
    table = make_orders(manager, batches=1)
    statistics = leave_orphan(manager, "metadata/of-columns.stats")
    elsewhere = statistics_at(manager, statistics).model_copy(update={"statistics_path": f"{prefix}{statistics}"})
    with table.refresh().update_statistics() as update:
        update.set_statistics(elsewhere)

    result = clean(manager)

    assert "refused by 'location_mismatch'" in result.plan.blocked_by
    assert statistics in lake.files()


def test_overriding_the_mismatch_still_takes_no_file_that_is_spelled_differently(
    manager: IcebergTableManager,
) -> None:
    table = make_orders(manager, batches=1)
    statistics, orphan = leave_orphan(manager, "metadata/of-columns.stats"), leave_orphan(manager)
    elsewhere = statistics_at(manager, statistics).model_copy(update={"statistics_path": f"s3://bucket{statistics}"})
    with table.refresh().update_statistics() as update:
        update.set_statistics(elsewhere)

    result = clean(manager, policy(overrides=["location_mismatch"]))

    assert (result.status, result.overrides) == (MaintenanceStatus.DONE, ("location_mismatch",))
    assert (statistics.exists(), orphan.exists()) == (True, False)


def test_more_than_a_fifth_of_a_tables_files_is_refused(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=1)
    files = len(paths_of(table))
    for number in range(files // 3):
        leave_orphan(manager, f"data/{number}.parquet")

    refused = plan(manager)
    allowed = plan(manager, policy(overrides=["orphan_share"], max_share=0.5))

    assert "refused by 'orphan_share'" in refused.blocked_by
    assert "more than 20%" in refused.blocked_by
    assert allowed.reason is PlanReason.RECOMMENDED


def test_a_table_without_garbage_collection_is_refused(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=1)
    leave_orphan(manager)
    table.transaction().set_properties({"gc.enabled": "FALSE"}).commit_transaction()

    assert "refused by 'gc_disabled'" in plan(manager).blocked_by

"""What maintenance promises on either engine: each promise once, held by PyIceberg and by Spark."""

from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.maintenance_tables import (
    DAY,
    EAGER,
    ORDERS,
    checksum,
    content,
    everything_in,
    files_per_partition,
    make_older,
    make_orders,
    paths_of,
    reachable_paths,
    replace_often,
    rows_of,
    to_path,
)
from support.maintenance_upkeep import Upkeep, section

from floe_dagster_iceberg.models import (
    CompactionPolicy,
    CompactionStrategyType,
    ExpiryPolicy,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenanceStatus,
    PlanReason,
)

COMPACTION, EXPIRY = MaintenanceOperation.COMPACTION, MaintenanceOperation.SNAPSHOT_EXPIRY
MANIFESTS, ORPHANS = MaintenanceOperation.MANIFESTS, MaintenanceOperation.ORPHAN_FILES


@pytest.mark.requirement("S2-FR-030", "S2-FR-031", "D6", "X26")
def test_200_tiny_files_in_10_partitions_become_10_and_the_next_run_finds_nothing(upkeep: Upkeep) -> None:
    manager = upkeep.manager
    table = make_orders(manager, batches=20)
    rows, kept = content(manager), table.metadata.snapshots[9].snapshot_id
    rows_then = content(manager, snapshot_id=kept)

    result = upkeep.execute(COMPACTION)

    assert (result.status, result.engine, result.error) == (MaintenanceStatus.DONE, upkeep.engine, None)
    assert (result.files_removed, result.files_added, result.plan.partitions) == (200, 10, 10)
    assert (result.bytes_removed, result.bytes_added) == (result.before.total_bytes, result.after.total_bytes)
    assert set(files_per_partition(manager.load_table(ORDERS)).values()) == {1}
    assert (content(manager), content(manager, snapshot_id=kept)) == (rows, rows_then)
    assert manager.get_current_snapshot(ORDERS).summary["floe.maintenance.operation"] == "compaction"
    assert upkeep.execute(COMPACTION).plan.reason is PlanReason.BELOW_THRESHOLD


@pytest.mark.requirement("S2-FR-030", "S1-T090-96")
def test_a_sorted_compaction_is_sorted(upkeep: Upkeep) -> None:
    make_orders(upkeep.manager, batches=4, days=2)
    rows = content(upkeep.manager)
    by_amount = CompactionPolicy(
        min_input_files=2, strategy=CompactionStrategyType.SORT, sort_columns=["region", "amount"]
    )

    result = upkeep.execute(COMPACTION, section("compaction", by_amount))

    assert (result.engine, result.files_added) == (upkeep.engine, 2)
    for task in upkeep.manager.load_table(ORDERS).scan().plan_files():
        written = pq.read_table(to_path(task.file.file_path), columns=["region", "amount"]).to_pylist()
        assert written == sorted(written, key=lambda row: (row["region"], row["amount"]))
    assert content(upkeep.manager) == rows
    assert upkeep.execute(COMPACTION, section("compaction", by_amount)).status is MaintenanceStatus.SKIPPED


def test_partial_progress_commits_groups_as_they_finish(upkeep: Upkeep) -> None:
    make_orders(upkeep.manager, batches=2, days=12)
    rows, before = content(upkeep.manager), len(upkeep.manager.list_snapshots(ORDERS))
    partial = CompactionPolicy(min_input_files=2, partial_progress=True)

    result = upkeep.execute(COMPACTION, section("compaction", partial))

    assert (result.files_removed, result.files_added) == (24, 12)
    assert len(upkeep.manager.list_snapshots(ORDERS)) > before + 1
    assert content(upkeep.manager) == rows


def test_a_partition_filter_leaves_other_partitions_alone(upkeep: Upkeep) -> None:
    make_orders(upkeep.manager, batches=3, days=3)
    one_day = CompactionPolicy(min_input_files=2, partition_filter="day = '2024-01-02'")

    result = upkeep.execute(COMPACTION, section("compaction", one_day))

    assert (result.files_removed, result.files_added) == (3, 1)
    assert sorted(files_per_partition(upkeep.manager.load_table(ORDERS)).values()) == [1, 3, 3]


@pytest.mark.requirement("S2-US4.4", "S2-FR-024", "S2-E8", "S2-FR-003")
@pytest.mark.parametrize("snapshots", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_snapshots_and_their_files_go_and_every_tag_and_branch_stays(upkeep: Upkeep, snapshots: int) -> None:
    manager = upkeep.manager
    history = replace_often(manager, snapshots)
    tagged = [history[5], history[20], history[snapshots - 15]]
    for number, snapshot_id in enumerate(tagged):
        manager.create_tag(ORDERS, f"tag-{number}", snapshot_id)
    manager.create_branch(ORDERS, "audit", history[30], min_snapshots_to_keep=2)
    manager.append(ORDERS, rows_of(5000, days=1), branch="audit")
    audit = manager.load_table(ORDERS).metadata.refs["audit"].snapshot_id
    expiry = section("expiry", ExpiryPolicy(min_snapshots_to_keep=10, max_snapshots_per_commit=snapshots // 2))
    plan = upkeep.plan(EXPIRY, expiry, after=8 * DAY)

    result = upkeep.execute(EXPIRY, expiry, after=8 * DAY)

    table = manager.load_table(ORDERS)
    kept = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    # The branch's newest snapshot is the table's newest as well, so of main the newest ten stay by main's own count.
    assert kept == {*history[-10:], *tagged, history[30], audit}
    assert (result.status, result.engine, result.error) == (MaintenanceStatus.DONE, upkeep.engine, None)
    assert result.snapshots_expired == plan.snapshots == snapshots + 1 - len(kept)
    assert (result.files_removed, result.bytes_removed) == (plan.input_files, plan.input_bytes)
    assert paths_of(table) == reachable_paths(table)
    for number, snapshot_id in enumerate(tagged):
        assert content(manager, ref=f"tag-{number}") == checksum(rows_of(history.index(snapshot_id), days=1))
    assert manager.scan(ORDERS, ref="audit").num_rows == 2 * rows_of(0, days=1).num_rows
    assert content(manager) == checksum(rows_of(snapshots - 1, days=1))


def test_manifests_are_put_together_and_the_next_run_finds_nothing(upkeep: Upkeep) -> None:
    make_orders(upkeep.manager, batches=6, days=2)
    rows = content(upkeep.manager)

    result = upkeep.execute(MANIFESTS)

    assert (result.engine, result.files_removed, result.files_added) == (upkeep.engine, 6, 1)
    assert (result.before.manifests, result.after.manifests) == (6, 1)
    assert result.bytes_removed == result.plan.input_bytes
    assert result.bytes_added > 0
    assert upkeep.manager.get_current_snapshot(ORDERS).summary["floe.maintenance.operation"] == "manifests"
    assert content(upkeep.manager) == rows
    assert upkeep.execute(MANIFESTS).plan.reason is PlanReason.BELOW_THRESHOLD


@pytest.mark.requirement("S2-E2")
def test_an_orphan_goes_and_nothing_that_the_table_needs_however_old(upkeep: Upkeep) -> None:
    """Files of old specs, of branches, tags and earlier snapshots, metadata of the log."""
    table = make_orders(upkeep.manager, batches=2)
    upkeep.manager.append(ORDERS, rows_of(5), branch="audit")
    with table.refresh().update_spec() as update:
        update.add_identity("region")
    upkeep.manager.overwrite(ORDERS, rows_of(6))
    for path in paths_of(table):
        make_older(path, 30 * DAY)
    needed = everything_in(to_path(table.location()))
    orphan = _leave_orphan(upkeep)

    result = upkeep.execute(ORPHANS)

    assert (result.status, result.engine) == (MaintenanceStatus.DONE, upkeep.engine)
    assert (result.plan.files, orphan.exists()) == ((f"file://{orphan}",), False)
    assert needed.items() <= everything_in(to_path(table.location())).items()
    assert upkeep.maintenance().restore_orphans(ORDERS) == 1
    assert orphan.read_bytes() == b"orphaned"


# Retention does nothing unless an age is configured; its own tests have one.
@pytest.mark.parametrize(
    "operation",
    sorted({*MaintenanceOperation} - {MaintenanceOperation.TABLE_HEALTH, MaintenanceOperation.RETENTION}),
)
def test_a_dry_run_changes_neither_catalog_nor_storage_nor_a_modification_time(
    upkeep: Upkeep, tmp_path: Path, operation: MaintenanceOperation
) -> None:
    _neglect(upkeep)
    before, after = everything_in(tmp_path), _timestamp_of(operation)

    planned = upkeep.plan(operation, after=after)
    result = upkeep.execute(operation, EAGER.model_copy(update={"dry_run": True}), after=after)

    assert everything_in(tmp_path) == before
    # Only Spark has position deletes to rewrite.
    status = MaintenanceStatus.PLANNED if planned.is_actionable else MaintenanceStatus.SKIPPED
    assert (result.status, result.plan) == (status, planned)
    if operation is not MaintenanceOperation.POSITION_DELETES or upkeep.engine is MaintenanceEngine.SPARK:
        assert (planned.reason, bool(planned.files), bool(planned.summary)) == (PlanReason.RECOMMENDED, True, True)


@pytest.mark.parametrize("operation", [COMPACTION, EXPIRY, MANIFESTS, ORPHANS])
def test_a_run_does_what_its_plan_says(upkeep: Upkeep, operation: MaintenanceOperation) -> None:
    make_orders(upkeep.manager, batches=4, days=3)
    _leave_orphan(upkeep)
    after = _timestamp_of(operation)

    planned = upkeep.plan(operation, after=after)
    result = upkeep.execute(operation, after=after)

    assert result.status is MaintenanceStatus.DONE
    assert (result.files_removed, result.bytes_removed) == (planned.input_files, planned.input_bytes)
    assert (result.files_added, result.snapshots_expired) == (planned.output_files, planned.snapshots)
    assert upkeep.execute(operation, after=after).status is MaintenanceStatus.SKIPPED


def _timestamp_of(operation: MaintenanceOperation) -> timedelta:
    """When there is something to do. Spark has its own clock, and takes no orphans from the future."""
    return timedelta(0) if operation is ORPHANS else 30 * DAY


def _neglect(upkeep: Upkeep) -> None:
    """A table that every operation finds something to do for; position deletes only if Spark is there to make them."""
    make_orders(upkeep.manager, batches=4, days=3)
    _leave_orphan(upkeep)
    if upkeep.engine is MaintenanceEngine.SPARK:
        upkeep.set_properties(write__delete__mode="merge-on-read", write__delete__granularity="partition")
        for row in (0, 1002):
            upkeep.sql(f"DELETE FROM ORDERS WHERE id = {row}")  # noqa: S608 - a number


def _leave_orphan(upkeep: Upkeep) -> Path:
    orphan = to_path(upkeep.manager.load_table(ORDERS).location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"orphaned")
    make_older(orphan, 40 * DAY)
    return orphan

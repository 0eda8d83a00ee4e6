"""A commit keeps the list of manifests short, and changes nothing else by that."""

from datetime import date, timedelta

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from support.lake import Lake
from support.table_facts import live_files, reachable_files, recounted_totals, summary_totals

from floe_dagster_iceberg.models import PartitionField, PartitionSpec, PartitionTransform
from floe_dagster_iceberg.table.manager import IcebergTableManager

FIRST = date(2026, 1, 1)
BY_DAY = PartitionSpec(
    fields=[
        PartitionField(source_field_id=1, partition_field_id=1000, transform=PartitionTransform.IDENTITY, name="day")
    ]
)


def day_of(number: int) -> pa.Table:
    return pa.table({"day": [FIRST + timedelta(days=number)], "number": [number]})


def write_days(manager: IcebergTableManager, days: int, *, merge_from: int = 10, **properties: str) -> None:
    properties["commit.manifest.min-count-to-merge"] = str(merge_from)
    manager.create_table("bronze.t", day_of(0).schema, BY_DAY, properties=properties)
    for number in range(days):
        manager.overwrite("bronze.t", day_of(number), overwrite_filter=EqualTo("day", FIRST + timedelta(days=number)))


def manifests_of(table: Table) -> list[int]:
    """How many files each manifest of the current snapshot lists, deleted ones not counted."""
    return sorted(
        (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        for manifest in table.current_snapshot().manifests(table.io)
    )


@pytest.mark.requirement("S2-FR-005")
def test_many_small_commits_leave_few_manifests(lake: Lake, manager: IcebergTableManager) -> None:
    write_days(manager, 35)

    table = lake.table("bronze.t")
    counts = manifests_of(table)
    assert counts == [1, 1, 1, 1, 1, 10, 10, 10]
    assert sorted(row[1] for row in lake.rows("bronze.t")) == list(range(35))
    assert summary_totals(table.current_snapshot()) == recounted_totals(table)


@pytest.mark.lakes
def test_every_file_keeps_its_snapshot_and_sequence_number(lake: Lake, manager: IcebergTableManager) -> None:
    write_days(manager, 25)
    table = lake.table("bronze.t")
    numbers = {snapshot.snapshot_id: snapshot.sequence_number for snapshot in table.metadata.snapshots}

    entries = [
        entry
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]

    assert {entry.sequence_number for entry in entries} == set(range(1, 26))
    assert all(numbers[entry.snapshot_id] == entry.sequence_number == entry.file_sequence_number for entry in entries)
    statuses = {entry.sequence_number: entry.status for entry in entries}
    assert statuses[1] == ManifestEntryStatus.EXISTING
    assert statuses[25] == ManifestEntryStatus.ADDED


@pytest.mark.lakes
def test_every_earlier_snapshot_still_reads_what_it_read(lake: Lake, manager: IcebergTableManager) -> None:
    write_days(manager, 22)

    table = lake.table("bronze.t")
    for number in (1, 9, 10, 11, 12, 22):
        snapshot = table.metadata.snapshots[number - 1]
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == number
        assert len(live_files(table, snapshot)) == number
    assert reachable_files(table) - lake.files() == set()
    assert {path for path in lake.files() - reachable_files(table) if path.suffix != ".json"} == set()


def test_a_day_among_merged_ones_is_replaced_alone(lake: Lake, manager: IcebergTableManager) -> None:
    write_days(manager, 22)
    before = live_files(lake.table("bronze.t"))

    manager.overwrite("bronze.t", day_of(5), overwrite_filter=EqualTo("day", FIRST + timedelta(days=5)))

    after = live_files(lake.table("bronze.t"))
    assert len(after.keys() - before.keys()) == len(before.keys() - after.keys()) == 1
    assert sorted(row[1] for row in lake.rows("bronze.t")) == list(range(22))


def test_a_table_may_say_that_nothing_is_merged(lake: Lake, manager: IcebergTableManager) -> None:
    write_days(manager, 12, **{"commit.manifest-merge.enabled": "false"})

    assert manifests_of(lake.table("bronze.t")) == [1] * 12


def test_ten_become_one_and_ten_of_those_unless_the_table_says_otherwise(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table("bronze.t", pa.schema([("number", pa.int64())]))
    counts = {}
    for number in range(1, 123):
        manager.append("bronze.t", pa.table({"number": [number]}))
        counts[number] = manifests_of(lake.table("bronze.t"))

    assert counts[10] == [1] * 10
    assert counts[35] == [1] * 5 + [10] * 3
    assert counts[102] == [1, 1, 100]
    assert counts[122] == [1, 1, 10, 10, 100]
    assert max(map(len, counts.values())) < 21


def test_manifests_of_a_spec_whose_column_is_gone_stay_as_they_are(lake: Lake, manager: IcebergTableManager) -> None:
    write_days(manager, 8)
    table = lake.table("bronze.t")
    with table.update_spec() as spec:
        spec.remove_field("day")
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("day")

    for number in range(4):
        manager.append("bronze.t", pa.table({"number": [1000 + number]}))

    assert manifests_of(lake.table("bronze.t")) == [1] * 12

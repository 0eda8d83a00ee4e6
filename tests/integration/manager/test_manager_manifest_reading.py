"""The quick way to read manifests finds what PyIceberg's own finds, whichever engine wrote them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from support.delete_files import delete_by_equality, delete_positions
from support.lake import Lake, open_catalog
from support.maintenance_tables import ORDERS, make_orders
from support.maintenance_upkeep import Upkeep
from support.table_facts import live_files, to_path

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries, read_manifests
from floe_dagster_iceberg._pyiceberg.scan_planner import NullSafeScan
from floe_dagster_iceberg.table.manager import IcebergTableManager


def fields_of(value: object) -> object:
    if isinstance(value, Record):
        return tuple(fields_of(field) for field in value._data)
    # Statistics are read late, into a mapping that only shows where it is in memory.
    return dict(value) if isinstance(value, Mapping) else repr(value)


def all_entries(manifests: list[ManifestFile], entries: Iterator[list[ManifestEntry]]) -> list[object]:
    return [
        (fields_of(manifest), [(fields_of(entry), entry.data_file.spec_id) for entry in found])
        for manifest, found in zip(manifests, entries, strict=True)
    ]


def assert_reads_like_pyiceberg(table: Table) -> None:
    assert len(table.snapshots()) > 1
    for snapshot in table.snapshots():
        theirs, ours = snapshot.manifests(table.io), read_manifests(snapshot, table.io)
        for live in (True, False):
            fetched = (manifest.fetch_manifest_entry(table.io, discard_deleted=live) for manifest in theirs)
            read = (read_entries(manifest, table.io, discard_deleted=live) for manifest in ours)
            assert all_entries(ours, read) == all_entries(theirs, fetched)


@pytest.mark.lakes
@pytest.mark.parametrize("version", ["1", "2"])
def test_entries_are_those_that_pyiceberg_reads(lake: Lake, manager: IcebergTableManager, version: str) -> None:
    rows = pa.table({"id": [1, 2, 3], "region": ["eu", "us", None]})
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))
    manager.create_table("bronze.t", rows.schema, spec, {"format-version": version})
    manager.append("bronze.t", rows)
    manager.delete("bronze.t", "region = 'eu'")
    lake.table("bronze.t").update_spec().add_field("id", BucketTransform(4)).commit()
    manager.append("bronze.t", rows.append_column("amount", pa.array([1.5, None, 2.5])))
    manager.overwrite("bronze.t", rows, overwrite_filter="region = 'us'")

    assert_reads_like_pyiceberg(lake.table("bronze.t"))


def test_entries_of_delete_files_are_those_that_pyiceberg_reads(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    manager.append("bronze.t", pa.table({"id": [1, 2, 3]}))
    table = lake.table("bronze.t")
    (file,) = live_files(table).values()
    delete_positions(table, file, 1)
    delete_by_equality(table, file, "id", 3)

    assert_reads_like_pyiceberg(lake.table("bronze.t"))


def test_entries_that_spark_wrote_are_those_that_pyiceberg_reads(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=2, days=2)
    spark_upkeep.set_properties(write__delete__mode="merge-on-read")
    spark_upkeep.sql("DELETE FROM ORDERS WHERE id = 1")
    spark_upkeep.sql("INSERT INTO ORDERS SELECT * FROM ORDERS")

    assert_reads_like_pyiceberg(spark_upkeep.manager.load_table(ORDERS))


@pytest.mark.parametrize("where", ["true", "region = 'eu'", "id > 1 or region = 'us'", "amount is null"])
def test_scans_are_planned_like_pyiceberg_plans_them(lake: Lake, manager: IcebergTableManager, where: str) -> None:
    rows = pa.table({"id": [1, 2, 3], "region": ["eu", "us", "eu"], "amount": [1.5, None, 2.5]})
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))
    manager.create_table("bronze.t", rows.schema, spec)
    for _ in range(3):
        manager.append("bronze.t", rows)
    table = lake.table("bronze.t")

    def tasks(scan: object) -> set[tuple[str, str]]:
        return {(task.file.file_path, repr(task.residual)) for task in scan.plan_files()}

    assert tasks(NullSafeScan.of_table(table, row_filter=where)) == tasks(table.scan(row_filter=where))


def test_a_file_that_was_cut_off_anywhere_is_reported_from_a_shorter_one(tmp_path: Path) -> None:
    # Thousands of reads, so on this machine's files whatever the lake.
    with closing(open_catalog(tmp_path)) as catalog:
        manager = IcebergTableManager(catalog)
        manager.create_namespace("bronze")
        manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
        manager.append("bronze.t", pa.table({"id": [1, 2, 3]}))
        table = manager.load_table("bronze.t")
    snapshot = table.current_snapshot()
    (manifest,) = read_manifests(snapshot, table.io)

    assert accepted_cuts(manifest.manifest_path, lambda: read_entries(manifest, table.io)) == 0
    # One that ends right after its head is a list of no manifests, as an empty table has.
    assert accepted_cuts(snapshot.manifest_list, lambda: read_manifests(snapshot, table.io)) == 1


def accepted_cuts(location: str, read: Callable[[], object]) -> int:
    """How many beginnings of a file are taken for a whole one."""
    path, accepted = to_path(location), 0
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with suppress(EOFError):
            read()
            accepted += 1
    path.write_bytes(whole)
    return accepted

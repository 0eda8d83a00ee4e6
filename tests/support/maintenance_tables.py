"""Tables in need of maintenance, and a look at them that does not trust the maintenance."""

import hashlib
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, StringType

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.models import CompactionPolicy, ExpiryPolicy, MaintenancePolicy, ManifestPolicy, OrphanPolicy
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import new_snapshot_id
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter

ORDERS = "bronze.orders"
DAY = timedelta(days=1)
_SNAPSHOTS_PER_COMMIT = 50
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "amount", DoubleType()),
    NestedField(4, "region", StringType()),
)
BY_DAY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
# Everything that is worth doing at all is worth doing to a table of a few rows.
EAGER = MaintenancePolicy(
    compaction=CompactionPolicy(min_input_files=2),
    expiry=ExpiryPolicy(min_snapshots_to_keep=1),
    orphans=OrphanPolicy(),
    manifests=ManifestPolicy(min_manifests=2),
)


def rows_of(batch: int, days: int = 10, rows_per_day: int = 3) -> pa.Table:
    """Rows of several days, no two alike whatever the batch, the larger ids first."""
    ids = [batch * 1000 + number for number in reversed(range(days * rows_per_day))]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array([date(2024, 1, 1) + timedelta(days=number % days) for number in ids], pa.date32()),
            "amount": pa.array([number / 3 for number in ids], pa.float64()),
            "region": pa.array([f"region-{number % 7}" for number in ids], pa.string()),
        }
    )


def make_orders(manager: IcebergTableManager, *, batches: int = 0, days: int = 10, name: str = ORDERS) -> Table:
    """A table partitioned by day to which so many batches were appended, each a file for every day."""
    manager.create_table(name, SCHEMA, BY_DAY)
    for batch in range(batches):
        manager.append(name, rows_of(batch, days))
    return manager.load_table(name)


def replace_often(manager: IcebergTableManager, times: int) -> list[int]:
    """A table whose rows were replaced that often by those of the next batch; returns the snapshots, oldest first.

    As a thousand overwrites leave it, in a few commits: writing metadata.json again and again is not the point here.
    """
    table = make_orders(manager)
    for start in range(0, times, _SNAPSHOTS_PER_COMMIT):
        table.refresh()
        transaction = TableTransaction(table)
        for batch in range(start, min(times, start + _SNAPSHOTS_PER_COMMIT)):
            _stage_replacement(transaction, rows_of(batch, days=1))
        transaction.commit_once()
    return [snapshot.snapshot_id for snapshot in reversed(manager.list_snapshots(ORDERS))]


def _stage_replacement(transaction: TableTransaction, rows: pa.Table) -> None:
    metadata, io = transaction.table_metadata, transaction.table.io
    changes = FileChanges.read(metadata, io, metadata.current_snapshot(), may_hold=AlwaysTrue())
    changes.remove([entry.data_file for entry in changes.live_entries()])
    writer = DataFileWriter(metadata, io)
    writer.write(ArrowRows(rows))
    changes.added = writer.finish()
    SnapshotProducer(
        transaction,
        changes,
        operation=changes.operation,
        snapshot_id=new_snapshot_id(),
        snapshot_properties={},
        branch=MAIN_BRANCH,
    ).commit()


def checksum(rows: pa.Table) -> str:
    """The same for the same rows in any order."""
    ordered = rows.sort_by([(name, "ascending") for name in rows.schema.names])
    texts = pa.table({name: ordered[name].cast(pa.large_string()) for name in ordered.schema.names}).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, texts.schema) as stream:
        stream.write_table(texts)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def content(manager: IcebergTableManager, name: str = ORDERS, **version: object) -> str:
    """A checksum of a table's rows, now or as they were."""
    return checksum(manager.scan(name, **version))  # type: ignore[arg-type]


def files_per_partition(table: Table) -> dict[str, int]:
    """How many data files readers open for each partition."""
    counts: dict[str, int] = {}
    for task in table.scan().plan_files():
        counts[repr(task.file.partition)] = counts.get(repr(task.file.partition), 0) + 1
    return counts


def later(delta: timedelta) -> datetime:
    """The time that far in the future."""
    return datetime.now(UTC) + delta


def make_older(path: Path, age: timedelta) -> None:
    """Let a file look as if it was written that long ago."""
    timestamp = (datetime.now(UTC) - age).timestamp()
    os.utime(path, (timestamp, timestamp))


def everything_in(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Each file's size, modification time and checksum."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def reachable_paths(table: Table) -> set[Path]:
    """Files that the table's newest metadata leads to, found without our own code."""
    metadata, io = table.metadata, table.io
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)}
    return {to_path(location) for location in found}


def to_path(location: str) -> Path:
    """The local file of a location."""
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def paths_of(table: Table) -> set[Path]:
    """Files that lie below the table's location, checksums that Spark adds aside."""
    return {path for path in to_path(table.location()).rglob("*") if path.is_file() and path.suffix != ".crc"}

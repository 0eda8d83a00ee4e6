"""Tables for the benchmarks, created by this package because it is the fastest."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform

from benchmarks.workers.rows import daily_rows, day_of, orders, wide_rows
from floe_dagster_iceberg import IcebergResource, IcebergTableManager

# The peer only writes to tables whose partition field has the name that it would choose.
BY_DAY = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="part_day"))
_PARTITIONS_PER_COMMIT = 100
# Settings of the storage by PyIceberg's names.
_STORAGE = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
}
_ROWS_PER_APPEND = 1_000_000
_TAG = "start"


def open_iceberg(lake: Mapping[str, str], **settings: Any) -> IcebergResource:
    """The lake as a resource."""
    if lake.get("type") == "rest":
        keys = {field: lake[key] for field, key in _STORAGE.items()}
        storage = {**keys, "checksums": "when_required"}
        return IcebergResource(
            catalog_type="rest", catalog_uri=lake["uri"], storage_type="s3", storage_properties=storage, **settings
        )
    return IcebergResource(catalog_uri=lake["uri"], warehouse=lake["warehouse"], **settings)


def open_manager(lake: Mapping[str, str]) -> IcebergTableManager:
    """The table manager of the lake."""
    return open_iceberg(lake).table_manager


def create(
    lake: Mapping[str, str], table: str, *, partitioned: bool = True, properties: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Create an empty table of orders."""
    spec = BY_DAY if partitioned else UNPARTITIONED_PARTITION_SPEC
    schema = daily_rows(0, 0).schema
    open_manager(lake).create_table(f"bench.{table}", schema, spec, properties=dict(properties or {}))
    return {}


def age(lake: Mapping[str, str], table: str, first: int, last: int, rows: int) -> Mapping[str, Any]:
    """Add days, one commit each."""
    manager = open_manager(lake)
    for number in range(first, last):
        manager.append(f"bench.{table}", daily_rows(number, rows))
    return {}


def churn(lake: Mapping[str, str], table: str, first: int, last: int, days: int) -> Mapping[str, Any]:
    """Replace one of a few days repeatedly, so that every snapshot leaves an unreferenced file."""
    manager = open_manager(lake)
    for number in range(first, last):
        day = number % days
        where = f"day = '{day_of(day).isoformat()}'"
        manager.overwrite(f"bench.{table}", daily_rows(day, 100, version=number), overwrite_filter=where)
    return {}


def fill_wide(lake: Mapping[str, str], table: str, days: int, rows: int, columns: int) -> Mapping[str, Any]:
    """Create a table with many days and columns, a hundred days per commit."""
    manager = open_manager(lake)
    manager.create_table(f"bench.{table}", wide_rows(0, 0, columns).schema, BY_DAY)
    for start in range(0, days, _PARTITIONS_PER_COMMIT):
        batch = [wide_rows(number, rows, columns) for number in range(start, min(start + _PARTITIONS_PER_COMMIT, days))]
        manager.append(f"bench.{table}", pa.concat_tables(batch))
    return {}


def fill_days(lake: Mapping[str, str], table: str, days: int, rows: int) -> Mapping[str, Any]:
    """Create a table with many days, a hundred days per commit but for the last day, which has one of its own."""
    create(lake, table)
    manager = open_manager(lake)
    for start in range(0, days - 1, _PARTITIONS_PER_COMMIT):
        numbers = range(start, min(start + _PARTITIONS_PER_COMMIT, days - 1))
        manager.append(f"bench.{table}", pa.concat_tables(daily_rows(number, rows) for number in numbers))
    manager.append(f"bench.{table}", daily_rows(days - 1, rows))
    return {}


def fill_orders(lake: Mapping[str, str], table: str, rows: int, days: int) -> Mapping[str, Any]:
    """Create a table of orders with files by day."""
    create(lake, table)
    manager = open_manager(lake)
    for start in range(0, rows, _ROWS_PER_APPEND):
        manager.append(f"bench.{table}", orders(start, min(_ROWS_PER_APPEND, rows - start), days=days))
    return {}


def tag_head(lake: Mapping[str, str], table: str) -> Mapping[str, Any]:
    """Tag the newest version of a table."""
    open_manager(lake).create_tag(f"bench.{table}", _TAG)
    return {}


def go_back_to_tag(lake: Mapping[str, str], table: str) -> Mapping[str, Any]:
    """Make the tagged version of a table the newest one again."""
    manager = open_manager(lake)
    tagged = manager.load_table(f"bench.{table}").metadata.refs[_TAG].snapshot_id
    newest = manager.get_current_snapshot(f"bench.{table}")
    if newest is None or newest.snapshot_id != tagged:
        manager.rollback_to_snapshot(f"bench.{table}", tagged)
    return {}


def fill_and_replace(lake: Mapping[str, str], table: str, files: int, files_per_commit: int) -> Mapping[str, Any]:
    """Create a table of one file a day, and replace all of them by one row."""
    create(lake, table)
    manager = open_manager(lake)
    for start in range(0, files, files_per_commit):
        numbers = range(start, min(start + files_per_commit, files))
        manager.append(f"bench.{table}", pa.concat_tables(daily_rows(number, 1) for number in numbers))
    manager.overwrite(f"bench.{table}", daily_rows(0, 1, version=1))
    return {}


def create_many(lake: Mapping[str, str], tables: Sequence[str], commits: int) -> Mapping[str, Any]:
    """Create many tables with a few small files and snapshots each."""
    manager = open_manager(lake)
    for name in tables:
        create(lake, name)
        for commit in range(commits):
            manager.append(f"bench.{name}", orders(commit * 40, 40, days=4))
    return {}

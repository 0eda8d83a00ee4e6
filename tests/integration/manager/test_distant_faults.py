"""Requests to an object store that fail: a typed error, nothing visible, nothing left, and the next run works."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.distant_lake import DistantLake
from support.servers.faults import RESET, Fault
from support.servers.running import BUCKET, Servers

from floe_dagster_iceberg._pyiceberg.file_io import forget_all
from floe_dagster_iceberg.errors import FloeStorageError, ScanError
from floe_dagster_iceberg.table.manager import IcebergTableManager

TABLE = "sales.orders"
ROWS = pa.table({"id": [1, 2], "region": ["north", "south"]})
DENIED = Fault(403)
DOWN = Fault(500)


@pytest.fixture
def lake(tmp_path: Path, servers: Servers) -> Iterator[DistantLake]:
    with DistantLake.open(servers, "sqlite", tmp_path) as lake:
        yield lake


@pytest.fixture
def manager(lake: DistantLake) -> IcebergTableManager:
    manager = lake.place.iceberg().table_manager
    manager.create_namespace("sales")
    manager.create_table(TABLE, ROWS.schema)
    manager.append(TABLE, ROWS)
    return manager


def keys(servers: Servers) -> set[str]:
    """Objects; a store does not show an upload that was never completed, and rules of its own delete it."""
    return {key for key in servers.s3.keys(BUCKET) if "rclone_temp_multipart" not in key}


PUTS = (r"-m\d+\.avro", r"/snap-[^/]+\.avro", r"\.parquet")


# A broken connection while a SQL catalog commits has an unknown outcome: what it needs is kept, and listed.
@pytest.mark.parametrize(
    ("path", "fault"), [*((path, fault) for path in PUTS for fault in (DENIED, RESET)), (r"\.metadata\.json", DENIED)]
)
def test_an_object_that_cannot_be_put_fails_the_write_and_nothing_is_left(
    lake: DistantLake, manager: IcebergTableManager, servers: Servers, path: str, fault: Fault
) -> None:
    before, version = keys(servers), manager.load_table(TABLE).metadata_location
    lake.storage.fail_always("PUT", path, fault)

    with pytest.raises(FloeStorageError):
        manager.append(TABLE, ROWS)

    lake.storage.recover()
    assert keys(servers) == before
    assert lake.place.connect().load_table(TABLE).metadata_location == version
    manager.append(TABLE, ROWS)
    assert manager.scan(TABLE).num_rows == 4


def test_an_object_that_can_be_put_the_second_time_is_written_once(
    lake: DistantLake, manager: IcebergTableManager
) -> None:
    lake.storage.fail("PUT", r"-m\d+\.avro", RESET)
    lake.storage.fail("PUT", r"/snap-[^/]+\.avro", DOWN)

    manager.append(TABLE, ROWS)

    assert manager.scan(TABLE).num_rows == 4
    assert len(manager.load_table(TABLE).metadata.snapshots) == 2


def test_a_part_that_cannot_be_uploaded_fails_the_write_and_nothing_is_left(
    lake: DistantLake, manager: IcebergTableManager, servers: Servers
) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**62, 4_000_000)
    large = pa.table({"id": numbers, "region": pa.array(["north"] * len(numbers))})
    before = keys(servers)
    lake.storage.fail_always("PUT", r"\.parquet\?.*partNumber=2", DENIED)

    with pytest.raises(FloeStorageError):
        manager.append(TABLE, large)

    lake.storage.recover()
    assert lake.storage.count("POST", r"\.parquet\?uploads") == 1
    assert keys(servers) == before
    assert manager.scan(TABLE).num_rows == 2


@pytest.mark.parametrize("path", [r"-m\d+\.avro", r"\.parquet"], ids=["manifests", "data files"])
def test_a_reset_in_the_middle_of_parallel_reads_is_repeated_and_reported_if_it_stays(
    lake: DistantLake, manager: IcebergTableManager, path: str
) -> None:
    for _ in range(3):
        manager.append(TABLE, ROWS)
    forget_all()
    lake.storage.fail("GET", path, RESET, RESET)
    assert manager.scan(TABLE).num_rows == 8

    forget_all()
    lake.storage.fail_always("GET", path, RESET)
    lake.storage.fail_always("HEAD", path, RESET)
    with pytest.raises(FloeStorageError):
        manager.scan(TABLE)

    lake.storage.recover()
    assert manager.scan(TABLE).num_rows == 8


def test_a_file_that_is_missing_is_reported_as_such(manager: IcebergTableManager, servers: Servers) -> None:
    for key in keys(servers):
        if key.endswith(".parquet"):
            servers.s3.file_system().delete_file(f"{BUCKET}/{key}")

    with pytest.raises(ScanError, match="missing"):
        manager.scan(TABLE)

"""Writes that fail on the way: nothing is visible, nothing is left behind, and the next write lands."""

import errno
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.faulty_io import broken_disk, disk_full, failing, faulty_lake
from support.lake import Lake
from support.place import Place
from support.rival_writer import QUICK
from support.table_facts import reachable_files

from floe_dagster_iceberg.errors import WriteError
from floe_dagster_iceberg.models import CommitStrategy, CompactionStrategy
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes

BY_REGION = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))
REGIONS = ["AF", "AS", "EU", "NA", "OC", "SA"]
WORLD = pa.table({"id": range(6), "region": REGIONS})
TABLE = "bronze.world"


class Interrupted(BaseException):
    """What ends a run from outside, as KeyboardInterrupt and Dagster's own interruption do."""


class CodeError(Exception):
    """An error of the code that makes the rows."""


@pytest.fixture
def lake(place: Place) -> Iterator[Lake]:
    with faulty_lake(place) as lake:
        yield lake


@pytest.fixture
def manager(lake: Lake) -> IcebergTableManager:
    """Beside the table that all these tests write to, with one file per region and one that holds two rows."""
    manager = IcebergTableManager(lake.catalog, config=QUICK)
    manager.create_table(TABLE, WORLD.schema, BY_REGION)
    manager.append(TABLE, WORLD)
    manager.append(TABLE, pa.table({"id": [10, 11], "region": ["EU", "EU"]}))
    return manager


Write = Callable[[IcebergTableManager], object]
NEW = WORLD.append_column("population", pa.array(range(6)))
WRITES: dict[str, Write] = {
    "append": lambda manager: manager.append(TABLE, NEW),
    "append of a stream": lambda manager: manager.append(TABLE, NEW.to_reader()),
    "merging append": lambda manager: manager.append(TABLE, NEW, commit_strategy=CommitStrategy.MERGE_COMMIT),
    "append to a branch": lambda manager: manager.append(TABLE, NEW, branch="staging"),
    "overwrite": lambda manager: manager.overwrite(TABLE, NEW, overwrite_filter="region = 'EU' or id = 10"),
    "overwrite that rewrites": lambda manager: manager.overwrite(TABLE, NEW.slice(0, 0), overwrite_filter="id = 10"),
    "upsert": lambda manager: manager.upsert(TABLE, NEW, ["id"]),
    "delete": lambda manager: manager.delete(TABLE, "id = 10"),
    "compaction": lambda manager: manager.compact_table(TABLE, CompactionStrategy()),
}
FILES = {
    "data file": "*.parquet",
    "manifest": "*-m?.avro",
    "manifest list": "*/snap-*.avro",
    "metadata": "*.metadata.json",
}


@pytest.mark.requirement("S2-US5.4", "S2-FR-026", "S2-E2", "S2-E4")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("pattern", FILES.values(), ids=FILES)
def test_a_full_disk_leaves_the_table_and_the_warehouse_as_they_were(
    lake: Lake, manager: IcebergTableManager, pattern: str, write: Write
) -> None:
    before, files = lake.table(TABLE).metadata, lake.files()

    with failing(pattern), pytest.raises(WriteError, match=r"storage of table 'bronze\.world' is full") as failed:
        write(manager)

    assert isinstance(failed.value.__cause__, OSError)
    assert failed.value.__cause__.errno == errno.ENOSPC
    assert lake.table(TABLE).metadata == before
    assert lake.files() == files
    write(manager)
    assert lake.metadata_versions(TABLE) == len(before.metadata_log) + 2


@pytest.mark.requirement("S2-US5.4", "S2-FR-026", "S2-E2")
@pytest.mark.parametrize("kth", [2, 3, 6])
@pytest.mark.parametrize("at", ["create", "write"])
def test_the_files_before_the_one_that_fails_are_deleted_too(
    lake: Lake, manager: IcebergTableManager, kth: int, at: str
) -> None:
    before, files = lake.table(TABLE).metadata, lake.files()

    with failing("*.parquet", at=at, kth=kth) as fault, pytest.raises(WriteError):
        manager.append(TABLE, NEW)

    assert len(fault.seen) >= kth
    assert lake.table(TABLE).metadata == before
    assert lake.files() == files


@pytest.mark.requirement("S2-US5.4", "S2-FR-026")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_second_manifest_that_fails_leaves_no_first_one(
    lake: Lake, manager: IcebergTableManager, write: Write
) -> None:
    files = lake.files()

    with failing("*.avro", broken_disk, kth=2), pytest.raises(WriteError, match="Input/output error"):
        write(manager)

    assert lake.files() == files


@pytest.mark.requirement("S2-US5.4", "S2-FR-026")
@pytest.mark.parametrize("error", [Interrupted, CodeError])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_interruption_while_files_are_written_leaves_nothing(
    lake: Lake, manager: IcebergTableManager, write: Write, error: type[BaseException]
) -> None:
    before, files = lake.table(TABLE).metadata, lake.files()

    for pattern in ("*.parquet", "*-m?.avro"):
        with failing(pattern, error), pytest.raises(error):
            write(manager)

    assert lake.table(TABLE).metadata == before
    assert lake.files() == files


def breaking_after(batches: int, error: type[BaseException]) -> pa.RecordBatchReader:
    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(batches):
            yield from NEW.to_batches()
        raise error("in the middle")

    return pa.RecordBatchReader.from_batches(NEW.schema, rows())


@pytest.mark.requirement("S2-US5.4", "S2-FR-026", "S2-E2")
@pytest.mark.parametrize("error", [CodeError, Interrupted])
def test_a_stream_that_breaks_in_the_middle_leaves_nothing_and_says_why(
    lake: Lake, manager: IcebergTableManager, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setattr("floe_dagster_iceberg.table.write.data_file_writer.SPLIT_BYTES", 1)
    monkeypatch.setattr("floe_dagster_iceberg.table.write.data_file_writer.BUFFER_BYTES", 1)
    before, files = lake.table(TABLE).metadata, lake.files()

    for write in (manager.append, manager.overwrite):
        with pytest.raises(error, match="in the middle"):
            write(TABLE, breaking_after(3, error))

    assert lake.table(TABLE).metadata == before
    assert lake.files() == files


@pytest.mark.requirement("S2-E2")
def test_files_that_cannot_be_deleted_do_not_hide_the_first_error(lake: Lake, manager: IcebergTableManager) -> None:
    before = lake.table(TABLE).metadata

    with failing("*", broken_disk, at="delete"), failing("*.avro"), pytest.raises(WriteError, match="is full"):
        manager.append(TABLE, NEW)

    assert lake.table(TABLE).metadata == before
    assert lake.data_files() - reachable_files(lake.table(TABLE)) != set()


@pytest.mark.requirement("S2-E4")
def test_a_refusal_by_the_storage_is_reported_with_the_remedy(manager: IcebergTableManager) -> None:
    def denied() -> OSError:
        return PermissionError(errno.EACCES, "Permission denied")

    with failing("*.parquet", denied), pytest.raises(WriteError, match="denied access") as failed:
        manager.append(TABLE, NEW)
    assert isinstance(failed.value.__cause__, PermissionError)
    assert not failed.value.retryable


@pytest.mark.requirement("S2-US5.4", "S2-FR-026")
def test_a_table_whose_metadata_cannot_be_written_does_not_exist(lake: Lake, manager: IcebergTableManager) -> None:
    files = lake.files()

    with failing("*.metadata.json", disk_full), pytest.raises(WriteError, match=r"bronze\.other"):
        manager.create_table("bronze.other", WORLD.schema)

    assert not lake.catalog.table_exists("bronze.other")
    assert lake.files() == files
    manager.create_table("bronze.other", WORLD.schema)


@pytest.mark.requirement("S2-E4")
def test_a_full_disk_is_not_tried_again(lake: Lake, manager: IcebergTableManager) -> None:
    with failing("*.metadata.json") as fault, pytest.raises(WriteError):
        manager.append(TABLE, NEW)

    assert len(fault.seen) == 1
    assert lake.metadata_versions(TABLE) == 3

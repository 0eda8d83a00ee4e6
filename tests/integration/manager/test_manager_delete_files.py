"""Tables in which another engine deleted rows by delete files: those rows stay deleted, whatever we rewrite."""

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.delete_files import delete_by_equality, delete_positions
from support.lake import Lake
from support.table_facts import live_files

from floe_dagster_iceberg.errors import CommitConflictError, EngineCapabilityError
from floe_dagster_iceberg.models import CommitStrategy, CompactionStrategy, CompactionStrategyType
from floe_dagster_iceberg.table.manager import IcebergTableManager

BY_REGION = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))
ROWS = pa.table({"id": range(6), "region": ["EU"] * 4 + ["US"] * 2})


@pytest.fixture
def merged(lake: Lake, manager: IcebergTableManager) -> str:
    """Six rows, of which ids 1 and 2 were deleted by position."""
    manager.create_table("bronze.merged", ROWS.schema, BY_REGION)
    manager.append("bronze.merged", ROWS)
    table = lake.table("bronze.merged")
    (europe,) = (file for file in live_files(table).values() if file.partition[0] == "EU")
    delete_positions(table, europe, 1, 2)
    return "bronze.merged"


def ids(manager: IcebergTableManager, table: str) -> list[int]:
    return sorted(manager.scan(table).column("id").to_pylist())


@pytest.mark.lakes
def test_deleted_rows_are_not_read(lake: Lake, manager: IcebergTableManager, merged: str) -> None:
    assert ids(manager, merged) == [0, 3, 4, 5]
    assert sorted(manager.scan_batches(merged).read_all().column("id").to_pylist()) == [0, 3, 4, 5]
    assert manager.scan(merged, row_filter="id < 3").column("id").to_pylist() == [0]
    assert len(lake.rows(merged)) == 4


@pytest.mark.parametrize("strategy", CommitStrategy)
def test_writes_of_every_kind_leave_them_deleted(
    manager: IcebergTableManager, merged: str, strategy: CommitStrategy
) -> None:
    manager.append(merged, pa.table({"id": [10], "region": ["EU"]}), commit_strategy=strategy)
    assert ids(manager, merged) == [0, 3, 4, 5, 10]
    manager.delete(merged, "id = 3")
    assert ids(manager, merged) == [0, 4, 5, 10]
    manager.upsert(merged, pa.table({"id": [1, 4], "region": ["EU", "EU"]}), ["id"], commit_strategy=strategy)
    assert ids(manager, merged) == [0, 1, 4, 5, 10]
    manager.overwrite(merged, ROWS.slice(2, 1), overwrite_filter="id = 0", commit_strategy=strategy)
    assert ids(manager, merged) == [1, 2, 4, 5, 10]


@pytest.mark.requirement("S2-FR-030")
@pytest.mark.parametrize(
    "strategy",
    [CompactionStrategy(), CompactionStrategy(strategy_type=CompactionStrategyType.SORT, sort_columns=["id"])],
    ids=["bin pack", "sort"],
)
def test_compaction_writes_the_rows_without_those_that_were_deleted(
    lake: Lake, manager: IcebergTableManager, merged: str, strategy: CompactionStrategy
) -> None:
    manager.append(merged, pa.table({"id": [10], "region": ["EU"]}))

    manager.compact_table(merged, strategy)

    files = live_files(lake.table(merged)).values()
    assert ids(manager, merged) == [0, 3, 4, 5, 10]
    assert sum(file.record_count for file in files) == 5


def test_a_partition_with_deleted_rows_is_replaced(manager: IcebergTableManager, merged: str) -> None:
    manager.overwrite(merged, ROWS.slice(0, 2), overwrite_filter="region = 'EU'")

    assert ids(manager, merged) == [0, 1, 4, 5]


@pytest.mark.lakes
def test_rows_that_were_deleted_meanwhile_are_a_conflict_for_an_overwrite(
    lake: Lake, manager: IcebergTableManager, merged: str
) -> None:
    stale = lake.table(merged)
    (america,) = (file for file in live_files(stale).values() if file.partition[0] == "US")
    delete_positions(lake.table(merged), america, 0)

    with pytest.raises(CommitConflictError):
        manager.overwrite(stale, ROWS.slice(0, 0), overwrite_filter="region = 'US'")


@pytest.mark.parametrize(
    "use",
    [
        lambda manager, table: manager.scan(table),
        lambda manager, table: manager.scan_batches(table).read_all(),
        lambda manager, table: manager.delete(table, "id = 3"),
        lambda manager, table: manager.upsert(table, ROWS.slice(0, 1), ["id"]),
        lambda manager, table: manager.compact_table(
            table, CompactionStrategy(strategy_type=CompactionStrategyType.SORT, sort_columns=["id"])
        ),
    ],
    ids=["scan", "scan_batches", "delete", "upsert", "compact"],
)
def test_equality_deletes_are_refused_and_another_engine_is_named(
    lake: Lake, manager: IcebergTableManager, merged: str, use: object
) -> None:
    table = lake.table(merged)
    delete_by_equality(table, next(iter(live_files(table).values())), "id", 0)
    files = lake.files()

    with pytest.raises(EngineCapabilityError, match=r"bronze\.merged.*equality deletes.*Spark"):
        use(manager, merged)
    assert lake.files() == files

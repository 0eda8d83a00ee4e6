"""Rewriting files: fewer of them, every row the same, and no reader or writer disturbed."""

import hashlib
import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from support.lake import Lake
from support.table_facts import live_files, reachable_files, recounted_totals, summary_totals, to_path

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.models import CompactionStrategy, CompactionStrategyType, MaintenanceEngine, MaintenanceStatus
from floe_dagster_iceberg.table.manager import IcebergTableManager

MIB = 1024 * 1024
SMALL = CompactionStrategy(target_file_size_bytes=MIB)
BY_PART = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"))


def rows(start: int, count: int, part: str = "a") -> pa.Table:
    """Rows that do not compress: about 100 bytes each, in memory and on disk."""
    noise = np.random.default_rng(start).bytes(count * 84)
    payload = [noise[at : at + 84] for at in range(0, len(noise), 84)]
    return pa.table(
        {"id": range(start, start + count), "part": [part] * count, "payload": pa.array(payload, pa.binary())}
    )


def checksum(table: Table) -> str:
    found = table.scan().to_arrow().sort_by("id")
    return hashlib.sha256(repr(found.to_pylist()).encode()).hexdigest()


@pytest.fixture
def few(manager: IcebergTableManager) -> str:
    """Five small files."""
    manager.create_table("bronze.few", rows(0, 1).schema)
    for number in range(5):
        manager.append("bronze.few", rows(number * 100, 100))
    return "bronze.few"


@pytest.fixture
def crumbs(manager: IcebergTableManager) -> str:
    """Fifty files of about 40 KiB, in one partition."""
    manager.create_table("bronze.crumbs", rows(0, 1).schema)
    for number in range(50):
        manager.append("bronze.crumbs", rows(number * 400, 400))
    return "bronze.crumbs"


@pytest.mark.requirement("S2-FR-030", "S2-FR-031", "S1-T090-96")
def test_fifty_tiny_files_become_as_few_as_their_bytes_need(
    lake: Lake, manager: IcebergTableManager, crumbs: str
) -> None:
    table = lake.table(crumbs)
    before, total = checksum(table), sum(file.file_size_in_bytes for file in live_files(table).values())

    result = manager.compact_table(crumbs, SMALL)

    table = lake.table(crumbs)
    assert len(live_files(table)) == math.ceil(total / MIB) == 2
    assert checksum(table) == before
    assert (result.status, result.engine) == (MaintenanceStatus.DONE, MaintenanceEngine.PYICEBERG)
    assert (result.files_removed, result.files_added) == (50, 2)
    assert result.bytes_removed == total
    assert result.bytes_added == sum(file.file_size_in_bytes for file in live_files(table).values())
    assert result.snapshot_id_after == table.current_snapshot().snapshot_id


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-030")
def test_a_rewrite_is_one_replace_snapshot_with_the_same_totals(
    lake: Lake, manager: IcebergTableManager, few: str
) -> None:
    versions, old = lake.metadata_versions(few), lake.table(few).current_snapshot()

    manager.compact_table(few, SMALL)

    table = lake.table(few)
    snapshot = table.current_snapshot()
    assert lake.metadata_versions(few) == versions + 1
    assert (snapshot.summary.operation.value, snapshot.parent_snapshot_id) == ("replace", old.snapshot_id)
    assert snapshot.summary["total-records"] == old.summary["total-records"] == "500"
    assert summary_totals(snapshot) == recounted_totals(table)
    assert manager.scan(few, snapshot_id=old.snapshot_id).num_rows == 500
    assert lake.files() == reachable_files(table)


@pytest.mark.requirement("S2-FR-031")
def test_a_second_run_finds_nothing_to_do(lake: Lake, manager: IcebergTableManager, crumbs: str) -> None:
    manager.compact_table(crumbs, SMALL)
    files, versions = lake.files(), lake.metadata_versions(crumbs)

    result = manager.compact_table(crumbs, SMALL)

    assert (result.status, result.files_removed, result.files_added) == (MaintenanceStatus.SKIPPED, 0, 0)
    assert result.snapshot_id_before == result.snapshot_id_after
    assert (lake.files(), lake.metadata_versions(crumbs)) == (files, versions)


@pytest.mark.requirement("S2-FR-031")
@pytest.mark.parametrize("compressible", [0.0, 0.25, 0.5, 0.9], ids=lambda share: f"{share:.0%} zeros")
def test_what_a_rewrite_leaves_is_near_the_target_however_well_it_compresses(
    lake: Lake, manager: IcebergTableManager, compressible: float
) -> None:
    zeros, noise = int(1000 * compressible), 1000 - int(1000 * compressible)
    rng = np.random.default_rng(0)
    payload = pa.array([bytes(zeros) + rng.bytes(noise) for _ in range(8000)], pa.binary())
    manager.create_table("bronze.mixed", pa.schema([("payload", pa.binary())]))
    for number in range(8):
        manager.append("bronze.mixed", pa.table({"payload": payload.slice(number * 1000, 1000)}))

    manager.compact_table("bronze.mixed", SMALL)

    sizes = sorted(file.file_size_in_bytes for file in live_files(lake.table("bronze.mixed")).values())
    assert all(0.75 * MIB <= size <= 1.5 * MIB for size in sizes[1:])
    assert manager.compact_table("bronze.mixed", SMALL).status is MaintenanceStatus.SKIPPED


@pytest.mark.requirement("S2-FR-031")
def test_files_are_put_together_within_their_partition_and_good_ones_stay(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table("bronze.parts", rows(0, 1).schema, BY_PART)
    manager.append("bronze.parts", rows(0, 11_000, "good"))
    manager.append("bronze.parts", rows(20_000, 10, "alone"))
    for number in range(3):
        manager.append("bronze.parts", rows(30_000 + number * 10, 10, "small"))
    before = live_files(lake.table("bronze.parts"))

    manager.compact_table("bronze.parts", SMALL)

    after = live_files(lake.table("bronze.parts"))
    stayed = {path for path, file in before.items() if file.partition[0] in {"good", "alone"}}
    assert stayed < after.keys()
    assert sorted(file.partition[0] for file in after.values()) == ["alone", "good", "small"]


@pytest.mark.requirement("S2-FR-031")
def test_a_file_far_too_large_is_split(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.large", rows(0, 1).schema)
    manager.append("bronze.large", rows(0, 40_000))

    result = manager.compact_table("bronze.large", SMALL)

    assert (result.files_removed, result.files_added) == (1, 4)
    assert len(lake.rows("bronze.large")) == 40_000


@pytest.mark.requirement("S2-FR-030", "S1-T090-96")
def test_sorting_puts_the_rows_of_each_partition_in_order(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.sorted", rows(0, 1).schema, BY_PART)
    for number, part in enumerate(["a", "b"] * 4):
        shuffled = np.random.default_rng(number).permutation(3000)
        manager.append("bronze.sorted", rows(number * 3000, 3000, part).take(shuffled))
    before = checksum(lake.table("bronze.sorted"))
    strategy = CompactionStrategy(
        strategy_type=CompactionStrategyType.SORT, sort_columns=["id"], target_file_size_bytes=MIB
    )

    manager.compact_table("bronze.sorted", strategy)

    table, ranges = lake.table("bronze.sorted"), defaultdict(list)
    for path, file in live_files(table).items():
        ids = pq.read_table(to_path(path)).column("id").to_pylist()
        assert ids == sorted(ids)
        ranges[file.partition[0]].append((ids[0], ids[-1]))
    assert checksum(table) == before
    for found in ranges.values():
        ordered = sorted(found)
        assert all(last < first for (_, last), (first, _) in pairwise(ordered))


def test_files_of_other_writers_are_sorted_together_with_ours(lake: Lake, manager: IcebergTableManager) -> None:
    table = lake.catalog.create_table("bronze.foreign", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    table.append(pa.table({"id": [3, 1], "name": ["c", "a"]}))
    manager.append("bronze.foreign", pa.table({"id": [2], "name": pa.array(["b"], pa.large_string())}))

    manager.compact_table(
        "bronze.foreign", CompactionStrategy(strategy_type=CompactionStrategyType.SORT, sort_columns=["name"])
    )

    assert lake.table("bronze.foreign").scan().to_arrow().column("name").to_pylist() == ["a", "b", "c"]


def test_nested_values_and_null_lists_survive_a_rewrite(lake: Lake, manager: IcebergTableManager) -> None:
    item = pa.struct([("n", pa.int64())])
    nested = pa.table(
        {
            "id": [1, 2, 3],
            "l": pa.array([[{"n": 1}], None, []], pa.list_(item)),
            "m": pa.array([[("k", {"n": 1})], None, []], pa.map_(pa.string(), item)),
        }
    )
    manager.create_table("bronze.nested", nested.schema)
    for number in range(3):
        manager.append("bronze.nested", nested.slice(number, 1))

    manager.compact_table("bronze.nested")

    (path,) = live_files(lake.table("bronze.nested"))
    assert pq.read_table(to_path(path)).sort_by("id").to_pylist() == nested.to_pylist()


def test_files_of_an_older_spec_move_to_the_new_one(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.moves", rows(0, 1).schema)
    manager.append("bronze.moves", pa.concat_tables([rows(0, 10, "a"), rows(10, 10, "b")]))
    with lake.table("bronze.moves").update_spec() as update:
        update.add_identity("part")
    manager.append("bronze.moves", rows(20, 10, "a"))
    before = checksum(lake.table("bronze.moves"))

    manager.compact_table("bronze.moves")

    table = lake.table("bronze.moves")
    assert {(file.spec_id, file.partition[0]) for file in live_files(table).values()} == {(1, "a"), (1, "b")}
    assert checksum(table) == before


def test_a_column_that_came_later_is_null_in_the_rewritten_files(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.wide", pa.schema([("id", pa.int32())]))
    manager.append("bronze.wide", pa.table({"id": pa.array([1], pa.int32())}))
    manager.append("bronze.wide", pa.table({"id": [2**40], "note": ["x"]}))

    manager.compact_table("bronze.wide")

    assert lake.rows("bronze.wide") == [(1, None), (1099511627776, "x")]
    assert len(live_files(lake.table("bronze.wide"))) == 1


def test_an_empty_table_and_a_table_without_snapshots_have_nothing_to_do(manager: IcebergTableManager) -> None:
    manager.create_table("bronze.empty", rows(0, 1).schema)
    assert manager.compact_table("bronze.empty").status is MaintenanceStatus.SKIPPED
    manager.append("bronze.empty", rows(0, 0))
    assert manager.compact_table("bronze.empty").status is MaintenanceStatus.SKIPPED


def test_what_this_engine_cannot_do_is_refused(lake: Lake, manager: IcebergTableManager, few: str) -> None:
    z_order = CompactionStrategy(strategy_type=CompactionStrategyType.Z_ORDER, sort_columns=["id", "part"])
    sort = CompactionStrategy(strategy_type=CompactionStrategyType.SORT, sort_columns=["nothing"])
    versions = lake.metadata_versions(few)

    with pytest.raises(EngineCapabilityError, match="needs Spark") as refused:
        manager.compact_table(few, z_order)
    assert refused.value.engine == "pyiceberg"
    with pytest.raises(ValidationError, match="no column 'nothing' to sort by"):
        manager.compact_table(few, sort)
    assert lake.metadata_versions(few) == versions


@pytest.mark.requirement("S2-FR-032", "S2-C3", "S0-D6")
def test_writing_never_compacts_by_itself(lake: Lake, few: str) -> None:
    operations = [snapshot.summary.operation.value for snapshot in lake.table(few).metadata.snapshots]

    assert operations == ["append"] * 5
    assert len(live_files(lake.table(few))) == 5

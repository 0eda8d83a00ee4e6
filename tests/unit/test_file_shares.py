"""Large groups of small files are shared out among the cores, and nothing is lost on the way."""

import pytest
from pyiceberg.manifest import DataFile

from floe_dagster_iceberg.models import CompactionStrategy
from floe_dagster_iceberg.table.maintenance.compaction_plan import FileGroup, split_for_workers

MIB = 1024 * 1024
TARGET = 128 * MIB


def group_of(files: int, *, mib: int = 1) -> FileGroup:
    return FileGroup(
        tuple(DataFile.from_args(file_path=f"{number}", file_size_in_bytes=mib * MIB) for number in range(files))
    )


def shared(groups: list[FileGroup], *, among: int, **strategy: object) -> list[int]:
    how = CompactionStrategy(target_file_size_bytes=TARGET, **strategy)
    shares = split_for_workers(groups, how, among=among)
    assert [file for share in shares for file in share.files] == [file for group in groups for file in group.files]
    return [len(share.files) for share in shares]


def test_one_large_group_is_shared_by_all_cores() -> None:
    assert shared([group_of(1000)], among=2) == [500, 500]


def test_every_share_becomes_several_files() -> None:
    assert shared([group_of(1000)], among=16) == [500, 500]
    assert shared([group_of(500)], among=2) == [500]


@pytest.mark.parametrize("groups", [[], [group_of(1000), group_of(1000)], [group_of(10)]])
def test_groups_that_keep_the_cores_busy_or_are_small_stay_as_they_are(groups: list[FileGroup]) -> None:
    assert shared(groups, among=2) == [len(group.files) for group in groups]


def test_rows_that_are_sorted_stay_together() -> None:
    assert shared([group_of(1000)], among=2, strategy_type="sort", sort_columns=("id",)) == [1000]

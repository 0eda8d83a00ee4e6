"""Which data files are worth rewriting, in groups that are rewritten together."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.transaction import summary_property
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    CompactionStrategy,
    CompactionStrategyType,
    snapshot_properties,
)
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.refs import head_of
from floe_dagster_iceberg.table.filter.file_pruning import FileMatcher
from floe_dagster_iceberg.table.filter.row_filter import to_row_filter
from floe_dagster_iceberg.table.maintenance.live_files import LiveFiles

# Spark's own thresholds: smaller than three quarters or larger than nine fifths of the target is worth a rewrite.
SMALL_FILE_RATIO = 0.75
LARGE_FILE_RATIO = 1.8
FEWEST_FILES = 2

# A group shared out among cores ends in one file more that is not full; it shall be one of several.
FILES_PER_SHARE = 3

# The Dagster partition that a snapshot was written for.


def total_bytes(files: Iterable[DataFile]) -> int:
    """Bytes of some files."""
    return sum(file.file_size_in_bytes for file in files)


@dataclass(frozen=True)
class FileGroup:
    """Files of one partition that are rewritten together."""

    files: tuple[DataFile, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of the files."""
        return total_bytes(self.files)

    @property
    def partition(self) -> tuple[int, str]:
        """The partition, in a form that can be compared and counted."""
        return self.files[0].spec_id, repr(self.files[0].partition)

    def output_files(self, target_file_size_bytes: int) -> int:
        """About how many files they become."""
        return max(1, math.ceil(self.total_bytes / target_file_size_bytes))

    def shares(self, count: int) -> list["FileGroup"]:
        """The same files in about so many groups of about the same size."""
        shares: list[list[DataFile]] = [[]]
        taken = 0
        for file in self.files:
            if taken * count >= self.total_bytes * len(shares):
                shares.append([])
            shares[-1].append(file)
            taken += file.file_size_in_bytes
        return [FileGroup(tuple(share)) for share in shares]


@dataclass(frozen=True)
class GroupLimits:
    """Which files are worth a rewrite, and how many of them; by default as many as there are.

    Attributes:
        small_file_ratio: A file below this share of the target size is small.
        min_input_files: Files a partition must have before they are merged.
        row_filter: Files are taken whose rows all match.
        leaves_fine_files: Whether files of a good size stay as they are when rows are sorted, and groups
            that would not become half as many files stay too. A second run then finds nothing to do.
        max_bytes: Bytes that all groups together may have.
    """

    small_file_ratio: float = SMALL_FILE_RATIO
    min_input_files: int = FEWEST_FILES
    row_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    leaves_fine_files: bool = False
    max_bytes: int | None = None


def to_group_limits(table: Table, policy: CompactionPolicy) -> GroupLimits:
    """Which files a policy rewrites.

    Raises:
        ValidationError: The policy's partition filter does not fit the table.
    """
    where = AlwaysTrue() if policy.partition_filter is None else to_row_filter(table, policy.partition_filter)
    return GroupLimits(
        small_file_ratio=policy.small_file_ratio,
        min_input_files=policy.min_input_files,
        row_filter=where,
        leaves_fine_files=True,
    )


@dataclass(frozen=True)
class RewritePlan:
    """Groups of files to rewrite, and the version of the table they were found in.

    Attributes:
        metadata: The table's metadata.
        base: Newest snapshot of main; None for an empty table.
        changes: Its manifests, as far as they were read.
        groups: The files.
    """

    metadata: TableMetadata
    base: Snapshot | None
    changes: FileChanges
    groups: Sequence[FileGroup] = ()

    @property
    def base_id(self) -> int | None:
        """Id of that snapshot."""
        return None if self.base is None else self.base.snapshot_id

    def batches(self, size: int | None) -> list["RewritePlan"]:
        """The same plan, in parts of at most so many groups; each part becomes one commit."""
        count = size or max(1, len(self.groups))
        return [replace(self, groups=self.groups[start : start + count]) for start in range(0, len(self.groups), count)]


def plan_rewrite(table: Table, strategy: CompactionStrategy, limits: GroupLimits) -> RewritePlan:
    """Read a table's manifests, as far as the limits need them, and find the files worth rewriting."""
    name = ".".join(table.name())
    metadata, base = table.metadata, head_of(table.metadata, MAIN_BRANCH, name)
    with translate_errors(table.catalog.name, table=name):
        changes = FileChanges.read(metadata, table.io, base, may_hold=limits.row_filter)
    return RewritePlan(metadata, base, changes, plan_groups(changes, metadata, strategy, limits))


def plan_groups(
    changes: FileChanges, metadata: TableMetadata, strategy: CompactionStrategy, limits: GroupLimits | None = None
) -> list[FileGroup]:
    """Groups of files worth rewriting; files that are fine are in none of them.

    Bin-pack takes a partition's files that are far from the target size, if there are enough of
    them; a file of an older partition spec is worth it by itself. Sort takes all files of a
    partition, because only together can they be in order, unless the limits leave fine files.
    """
    limits = limits or GroupLimits()
    groups = [
        FileGroup(tuple(chosen))
        for files in _group_by_partition(list(changes.live_entries()), metadata, strategy, limits)
        if _should_rewrite(chosen := _choose(files, strategy, limits), metadata, strategy, limits)
    ]
    return within_budget(groups, strategy, max_bytes=limits.max_bytes)


def split_for_workers(groups: Sequence[FileGroup], strategy: CompactionStrategy, *, among: int) -> list[FileGroup]:
    """Groups for all of so many workers, if there are large ones that need not stay together."""
    # Rows are in order only when all of them are sorted together.
    if strategy.strategy_type is not CompactionStrategyType.BIN_PACK or len(groups) >= among:
        return list(groups)
    target, each = strategy.target_file_size_bytes, among // max(1, len(groups))
    return [
        share
        for group in groups
        for share in group.shares(max(1, min(each, group.output_files(target) // FILES_PER_SHARE)))
    ]


def _group_by_partition(
    entries: Iterable[ManifestEntry], metadata: TableMetadata, strategy: CompactionStrategy, limits: GroupLimits
) -> Iterator[list[DataFile]]:
    """Files by partition and, where a Dagster partition fills files of its own, by that as well.

    Overwriting a Dagster partition drops whole files where it can, which it cannot once they hold
    rows of other Dagster partitions.
    """
    matches = None if isinstance(limits.row_filter, AlwaysTrue) else FileMatcher(metadata, limits.row_filter)
    slices = {
        snapshot.snapshot_id: summary_property(snapshot, snapshot_properties.PARTITION_KEY)
        for snapshot in metadata.snapshots
    }
    partitions: dict[tuple[int, str], dict[str | None, list[DataFile]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        file = entry.data_file
        if matches is None or matches.all_rows(file):
            slice_key = None if entry.snapshot_id is None else slices.get(entry.snapshot_id)
            partitions[FileGroup((file,)).partition][slice_key].append(file)
    # Rows are in order only when all of them are sorted together.
    fills_a_file = strategy.target_file_size_bytes * SMALL_FILE_RATIO
    splits = strategy.strategy_type is CompactionStrategyType.BIN_PACK
    for _, by_slice in sorted(partitions.items()):
        together = by_slice.pop(None, [])
        for _, files in sorted(by_slice.items()):
            if splits and total_bytes(files) >= fills_a_file:
                yield files
            else:
                together += files
        yield together


def _choose(files: Sequence[DataFile], strategy: CompactionStrategy, limits: GroupLimits) -> Sequence[DataFile]:
    if strategy.strategy_type is not CompactionStrategyType.BIN_PACK and not limits.leaves_fine_files:
        return files
    smallest = strategy.target_file_size_bytes * limits.small_file_ratio
    largest = strategy.target_file_size_bytes * LARGE_FILE_RATIO
    return [file for file in files if not smallest <= file.file_size_in_bytes <= largest]


def _should_rewrite(
    files: Sequence[DataFile], metadata: TableMetadata, strategy: CompactionStrategy, limits: GroupLimits
) -> bool:
    if any(_should_rewrite_alone(file, metadata, strategy, limits) for file in files):
        return True
    if len(files) < limits.min_input_files:
        return False
    # A writer closes a file somewhere near its target. Without this, what it wrote might be rewritten for ever.
    fewer = 2 * FileGroup(tuple(files)).output_files(strategy.target_file_size_bytes) <= len(files)
    return fewer or not limits.leaves_fine_files


def _should_rewrite_alone(
    file: DataFile, metadata: TableMetadata, strategy: CompactionStrategy, limits: GroupLimits
) -> bool:
    arranges = strategy.strategy_type is not CompactionStrategyType.BIN_PACK and not limits.leaves_fine_files
    too_large = file.file_size_in_bytes > strategy.target_file_size_bytes * LARGE_FILE_RATIO
    return arranges or too_large or file.spec_id != metadata.default_spec_id


def within_budget(
    groups: Sequence[FileGroup], strategy: CompactionStrategy, *, max_bytes: int | None
) -> list[FileGroup]:
    """As many groups as the budget allows, those first that lose most files for each byte."""
    if max_bytes is None:
        return list(groups)

    def gain(group: FileGroup) -> float:
        return (len(group.files) - group.output_files(strategy.target_file_size_bytes)) / max(1, group.total_bytes)

    left, chosen = max_bytes, list[FileGroup]()
    for group in sorted(groups, key=gain, reverse=True):
        if group.total_bytes <= left:
            left -= group.total_bytes
            chosen.append(group)
    return chosen


# Ids that Iceberg's specification gives to the columns of position delete files.
_FILE_PATH_FIELD: Final = 2147483546
_GRANULARITY: Final = "write.delete.granularity"


@dataclass(frozen=True)
class DeleteGroup:
    """Position delete files of one partition.

    Attributes:
        files: The files.
        output_files: About how many are left.
    """

    files: Sequence[DataFile]
    output_files: int


def plan_delete_groups(live: LiveFiles, properties: Mapping[str, str], policy: CompactionPolicy) -> list[DeleteGroup]:
    """Partitions with enough position delete files, of which at most half would be left.

    Positions in data files that are gone are dropped. Unless the table says otherwise, one delete
    file is written for each data file, so that many of them may be as few as there can be.
    """
    partitions: dict[tuple[int, str], list[DataFile]] = defaultdict(list)
    for file in live.position_deletes:
        partitions[FileGroup((file,)).partition].append(file)
    live_paths = {file.file_path for file in live.data}
    groups = []
    for _, files in sorted(partitions.items()):
        targets = {_target(file) for file in files}
        remaining = [target for target in targets if target is None or target in live_paths]
        whole = properties.get(_GRANULARITY) == "partition"
        output_files = min(1, len(remaining)) if whole else len(remaining)
        if len(files) >= policy.min_input_files and 2 * output_files <= len(files):
            groups.append(DeleteGroup(files, output_files))
    return groups


def _target(file: DataFile) -> str | None:
    """The data file whose rows a delete file names, if it is only one."""
    lower, upper = (file.lower_bounds or {}).get(_FILE_PATH_FIELD), (file.upper_bounds or {}).get(_FILE_PATH_FIELD)
    return lower.decode() if lower is not None and lower == upper else None

"""The live files of a table, and the plan which of them to rewrite, in groups."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg import models
from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries
from floe_dagster_iceberg._pyiceberg.transaction import summary_property
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.refs import head_of
from floe_dagster_iceberg.table.filter.row_filter import FileMatcher, to_row_filter
from floe_dagster_iceberg.table.names import table_name

# Spark's thresholds, as shares of the target size.
SMALL_FILE_RATIO = 0.75
LARGE_FILE_RATIO = 1.8
FEWEST_FILES = 2

# Each share of a group ends with a file that is not full; it should be one of several.
FILES_PER_SHARE = 3


def total_bytes(files: Iterable[DataFile]) -> int:
    """Total size of some files."""
    return sum(file.file_size_in_bytes for file in files)


def partition_of(file: DataFile) -> tuple[int, str]:
    """The partition of a file, in a form that can be compared and counted."""
    return file.spec_id, repr(file.partition)


@dataclass(frozen=True)
class LiveFiles:
    """The live files of main; `changes` holds the manifests, and the entries of those with data files."""

    changes: FileChanges
    deletes: Sequence[DataFile]

    @property
    def manifests(self) -> list[ManifestFile]:
        return [*self.changes.unopened, *(manifest for manifest, _ in self.changes.opened)]

    @cached_property
    def data(self) -> list[DataFile]:
        return [entry.data_file for entry in self.changes.live_entries()]

    @property
    def equality_deletes(self) -> list[DataFile]:
        """PyIceberg cannot apply these."""
        return [file for file in self.deletes if file.content == DataFileContent.EQUALITY_DELETES]

    @property
    def position_deletes(self) -> list[DataFile]:
        return [file for file in self.deletes if file.content == DataFileContent.POSITION_DELETES]

    @cached_property
    def total_bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in (*self.data, *self.deletes))


def read_live_files(table: Table) -> LiveFiles:
    """Read every manifest of main's newest snapshot."""
    snapshot, io = table.current_snapshot(), table.io
    with translate_errors(table.catalog.name, table=table_name(table)):
        changes = FileChanges.read(table.metadata, io, snapshot, may_hold=AlwaysTrue())
        deletes = [
            entry.data_file
            for manifest in changes.unopened
            if manifest.content == ManifestContent.DELETES
            for entry in read_entries(manifest, io)
        ]
    return LiveFiles(changes, deletes)


@dataclass(frozen=True)
class FileGroup:
    """Files of one partition that are rewritten together."""

    files: tuple[DataFile, ...]

    @property
    def total_bytes(self) -> int:
        return total_bytes(self.files)

    @property
    def partition(self) -> tuple[int, str]:
        return partition_of(self.files[0])

    def output_files(self, target_file_size_bytes: int) -> int:
        """Estimated number of files after the rewrite."""
        return max(1, math.ceil(self.total_bytes / target_file_size_bytes))

    def shares(self, count: int) -> list["FileGroup"]:
        """Split into about `count` groups of similar size."""
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
    """Which files are worth rewriting.

    Attributes:
        small_file_ratio: A file below this share of the target size is small.
        min_input_files: Files a partition must have before they are merged.
        row_filter: Only files whose rows all match are rewritten.
        leaves_fine_files: Whether sorting leaves files of a good size alone, and groups stay that would not
            become half as many files. A second run then finds nothing to do.
        max_bytes: Size limit of all groups together.
    """

    small_file_ratio: float = SMALL_FILE_RATIO
    min_input_files: int = FEWEST_FILES
    row_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    leaves_fine_files: bool = False
    max_bytes: int | None = None


def to_group_limits(table: Table, policy: models.CompactionPolicy) -> GroupLimits:
    """Convert a policy to limits for one table.

    Raises:
        ValidationError: The policy's partition filter does not fit the table.
    """
    where = AlwaysTrue() if policy.partition_filter is None else to_row_filter(table, policy.partition_filter)
    return GroupLimits(policy.small_file_ratio, policy.min_input_files, row_filter=where, leaves_fine_files=True)


@dataclass(frozen=True)
class RewritePlan:
    """File groups to rewrite, and the table version they were planned on.

    Attributes:
        metadata: The table's metadata.
        base: Newest snapshot of main; None for an empty table.
        changes: Manifests of that snapshot, and entries of those that were read.
        groups: The files.
    """

    metadata: TableMetadata
    base: Snapshot | None
    changes: FileChanges
    groups: Sequence[FileGroup] = ()

    @property
    def base_id(self) -> int | None:
        return None if self.base is None else self.base.snapshot_id

    def batches(self, size: int | None) -> list["RewritePlan"]:
        """Split into plans of at most `size` groups; each becomes one commit."""
        count = size or max(1, len(self.groups))
        return [replace(self, groups=self.groups[start : start + count]) for start in range(0, len(self.groups), count)]


def plan_rewrite(table: Table, strategy: models.CompactionStrategy, limits: GroupLimits) -> RewritePlan:
    """Plan a rewrite; reads only manifests that may hold files within the limits."""
    name = table_name(table)
    metadata, base = table.metadata, head_of(table.metadata, MAIN_BRANCH, name)
    with translate_errors(table.catalog.name, table=name):
        changes = FileChanges.read(metadata, table.io, base, may_hold=limits.row_filter)
    return RewritePlan(metadata, base, changes, plan_groups(changes, metadata, strategy, limits))


def plan_groups(
    changes: FileChanges, metadata: TableMetadata, strategy: models.CompactionStrategy, limits: GroupLimits
) -> list[FileGroup]:
    """Group the files worth rewriting.

    Bin-pack rewrites a partition's files that are far from the target size, if there are enough of
    them, and every file of an older partition spec. Sort rewrites all files of a partition, because
    they can only be sorted together, unless the limits leave fine files.
    """
    groups = [
        FileGroup(tuple(chosen))
        for files in _group_by_partition(list(changes.live_entries()), metadata, strategy, limits)
        if _should_rewrite(chosen := _choose(files, strategy, limits), metadata, strategy, limits)
    ]
    return within_budget(groups, strategy, max_bytes=limits.max_bytes)


def split_for_workers(
    groups: Sequence[FileGroup], strategy: models.CompactionStrategy, *, among: int
) -> list[FileGroup]:
    """Split large groups so that all workers have one, if the strategy allows it."""
    # Rows must be sorted together.
    if strategy.strategy_type is not models.CompactionStrategyType.BIN_PACK or len(groups) >= among:
        return list(groups)
    target, each = strategy.target_file_size_bytes, among // max(1, len(groups))
    return [
        share
        for group in groups
        for share in group.shares(max(1, min(each, group.output_files(target) // FILES_PER_SHARE)))
    ]


def _group_by_partition(
    entries: Iterable[ManifestEntry], metadata: TableMetadata, strategy: models.CompactionStrategy, limits: GroupLimits
) -> Iterator[list[DataFile]]:
    """Files by partition and by Dagster partition, if the latter is large enough for a file of its own.

    Overwriting a Dagster partition drops whole files, unless they also have rows of other ones.
    """
    matches = None if isinstance(limits.row_filter, AlwaysTrue) else FileMatcher(metadata, limits.row_filter)
    slices = {
        snapshot.snapshot_id: summary_property(snapshot, models.snapshot_properties.PARTITION_KEY)
        for snapshot in metadata.snapshots
    }
    partitions: dict[tuple[int, str], dict[str | None, list[DataFile]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        file = entry.data_file
        if matches is None or matches.all_rows(file):
            slice_key = None if entry.snapshot_id is None else slices.get(entry.snapshot_id)
            partitions[partition_of(file)][slice_key].append(file)
    fills_a_file = strategy.target_file_size_bytes * SMALL_FILE_RATIO
    # Rows must be sorted together.
    splits = strategy.strategy_type is models.CompactionStrategyType.BIN_PACK
    for _, by_slice in sorted(partitions.items()):
        together = by_slice.pop(None, [])
        for _, files in sorted(by_slice.items()):
            if splits and total_bytes(files) >= fills_a_file:
                yield files
            else:
                together += files
        yield together


def _choose(files: Sequence[DataFile], strategy: models.CompactionStrategy, limits: GroupLimits) -> Sequence[DataFile]:
    if strategy.strategy_type is not models.CompactionStrategyType.BIN_PACK and not limits.leaves_fine_files:
        return files
    smallest = strategy.target_file_size_bytes * limits.small_file_ratio
    largest = strategy.target_file_size_bytes * LARGE_FILE_RATIO
    return [file for file in files if not smallest <= file.file_size_in_bytes <= largest]


def _should_rewrite(
    files: Sequence[DataFile], metadata: TableMetadata, strategy: models.CompactionStrategy, limits: GroupLimits
) -> bool:
    if any(_should_rewrite_alone(file, metadata, strategy, limits) for file in files):
        return True
    if len(files) < limits.min_input_files:
        return False
    # A writer closes files only near the target size. Without this, its output might be rewritten forever.
    fewer = 2 * FileGroup(tuple(files)).output_files(strategy.target_file_size_bytes) <= len(files)
    return fewer or not limits.leaves_fine_files


def _should_rewrite_alone(
    file: DataFile, metadata: TableMetadata, strategy: models.CompactionStrategy, limits: GroupLimits
) -> bool:
    arranges = strategy.strategy_type is not models.CompactionStrategyType.BIN_PACK and not limits.leaves_fine_files
    too_large = file.file_size_in_bytes > strategy.target_file_size_bytes * LARGE_FILE_RATIO
    return arranges or too_large or file.spec_id != metadata.default_spec_id


def within_budget(
    groups: Sequence[FileGroup], strategy: models.CompactionStrategy, *, max_bytes: int | None
) -> list[FileGroup]:
    """Choose groups up to the budget, those first that save most files per byte."""
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
    """Position delete files of one partition, and about how many files remain after a rewrite."""

    files: Sequence[DataFile]
    output_files: int


def plan_delete_groups(
    live: LiveFiles, properties: Mapping[str, str], policy: models.CompactionPolicy
) -> list[DeleteGroup]:
    """Group position delete files by partition, where a rewrite would leave at most half of them.

    A rewrite drops positions in data files that no longer exist. By default it writes one delete
    file per data file, so even many delete files may not be reducible. Deletion vectors are left
    alone: there is at most one for each data file.
    """
    partitions: dict[tuple[int, str], list[DataFile]] = defaultdict(list)
    for file in live.position_deletes:
        if file.file_format is FileFormat.PUFFIN:
            continue
        partitions[partition_of(file)].append(file)
    still_targeted = {None, *(file.file_path for file in live.data)}
    per_partition = properties.get(_GRANULARITY) == "partition"
    groups = []
    for _, files in sorted(partitions.items()):
        remaining = {_target(file) for file in files} & still_targeted
        output_files = min(1, len(remaining)) if per_partition else len(remaining)
        if len(files) >= policy.min_input_files and 2 * output_files <= len(files):
            groups.append(DeleteGroup(files, output_files))
    return groups


def _target(file: DataFile) -> str | None:
    """The data file that a delete file applies to, if it is only one."""
    lower, upper = (file.lower_bounds or {}).get(_FILE_PATH_FIELD), (file.upper_bounds or {}).get(_FILE_PATH_FIELD)
    return lower.decode() if lower is not None and lower == upper else None

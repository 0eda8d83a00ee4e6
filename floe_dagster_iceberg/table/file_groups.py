"""Which data files are worth rewriting, in groups that are rewritten together."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.table.metadata import TableMetadata

from floe_dagster_iceberg.models import CompactionStrategy, CompactionStrategyType
from floe_dagster_iceberg.table._pyiceberg import summary_property
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.table.file_matcher import FileMatcher

# Spark's own thresholds: smaller than three quarters or larger than nine fifths of the target is worth a rewrite.
SMALL_FILE_RATIO = 0.75
LARGE_FILE_RATIO = 1.8
FEWEST_FILES = 2
# A group shared out among cores ends in one file more that is not full; it shall be one of several.
FILES_PER_SHARE = 3
# The Dagster partition that a snapshot was written for.
_SLICE_PROPERTY = "dagster.partition-key"


@dataclass(frozen=True)
class FileGroup:
    """Files of one partition that are rewritten together."""

    files: tuple[DataFile, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.file_size_in_bytes for file in self.files)

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
    """What a policy says about groups; as it is here, whoever asks for compaction gets as much of it as there is.

    Attributes:
        small_file_ratio: A file below this share of the target size is small.
        min_input_files: Files a partition must have before they are put together.
        row_filter: Files are taken whose rows all match.
        leaves_fine_files: Whether files of a good size stay as they are when rows are sorted, and groups
            that would not become half as many files stay too. A second run then finds nothing to do.
        max_bytes: Bytes that all groups together may have.
        max_groups: Most groups.
    """

    small_file_ratio: float = SMALL_FILE_RATIO
    min_input_files: int = FEWEST_FILES
    row_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    leaves_fine_files: bool = False
    max_bytes: int | None = None
    max_groups: int | None = None


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
        for files in _apart(changes.live_entries(), metadata, strategy, limits)
        if _is_worth_it(chosen := _choose(files, strategy, limits), metadata, strategy, limits)
    ]
    return within_limits(groups, strategy, max_bytes=limits.max_bytes, max_groups=limits.max_groups)


def share_out(groups: Sequence[FileGroup], strategy: CompactionStrategy, *, among: int) -> list[FileGroup]:
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


def _apart(
    entries: Iterable[ManifestEntry], metadata: TableMetadata, strategy: CompactionStrategy, limits: GroupLimits
) -> Iterator[list[DataFile]]:
    """Files by partition and, where a Dagster partition fills files of its own, by that as well.

    Overwriting a Dagster partition drops whole files where it can, which it cannot once they hold
    rows of its neighbours.
    """
    matches = FileMatcher(metadata, limits.row_filter)
    slices = {snapshot.snapshot_id: summary_property(snapshot, _SLICE_PROPERTY) for snapshot in metadata.snapshots}
    partitions: dict[tuple[int, str], dict[str | None, list[DataFile]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        file = entry.data_file
        if matches.all_rows(file):
            slice_key = None if entry.snapshot_id is None else slices.get(entry.snapshot_id)
            partitions[FileGroup((file,)).partition][slice_key].append(file)
    # Rows are in order only when all of them are sorted together.
    fills_a_file = strategy.target_file_size_bytes * SMALL_FILE_RATIO
    splits = strategy.strategy_type is CompactionStrategyType.BIN_PACK
    for _, by_slice in sorted(partitions.items()):
        together = by_slice.pop(None, [])
        for _, files in sorted(by_slice.items()):
            if splits and sum(file.file_size_in_bytes for file in files) >= fills_a_file:
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


def _is_worth_it(
    files: Sequence[DataFile], metadata: TableMetadata, strategy: CompactionStrategy, limits: GroupLimits
) -> bool:
    if any(_is_worth_it_alone(file, metadata, strategy, limits) for file in files):
        return True
    if len(files) < limits.min_input_files:
        return False
    # A writer closes a file somewhere near its target. Without this, what it wrote might be rewritten for ever.
    fewer = 2 * FileGroup(tuple(files)).output_files(strategy.target_file_size_bytes) <= len(files)
    return fewer or not limits.leaves_fine_files


def _is_worth_it_alone(
    file: DataFile, metadata: TableMetadata, strategy: CompactionStrategy, limits: GroupLimits
) -> bool:
    arranges = strategy.strategy_type is not CompactionStrategyType.BIN_PACK and not limits.leaves_fine_files
    too_large = file.file_size_in_bytes > strategy.target_file_size_bytes * LARGE_FILE_RATIO
    return arranges or too_large or file.spec_id != metadata.default_spec_id


def within_limits(
    groups: Sequence[FileGroup],
    strategy: CompactionStrategy,
    *,
    max_bytes: int | None = None,
    max_groups: int | None = None,
) -> list[FileGroup]:
    """As many groups as may be, those first that lose most files for each byte."""
    if max_bytes is None and max_groups is None:
        return list(groups)

    def gain(group: FileGroup) -> float:
        return (len(group.files) - group.output_files(strategy.target_file_size_bytes)) / max(1, group.total_bytes)

    left, chosen = max_bytes, list[FileGroup]()
    for group in sorted(groups, key=gain, reverse=True):
        if (left is not None and group.total_bytes > left) or len(chosen) == max_groups:
            continue
        left = None if left is None else left - group.total_bytes
        chosen.append(group)
    return chosen

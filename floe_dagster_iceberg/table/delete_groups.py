"""Which position delete files are worth rewriting: those of which fewer would be left."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.manifest import DataFile

from floe_dagster_iceberg.models import CompactionPolicy
from floe_dagster_iceberg.table.file_groups import FileGroup
from floe_dagster_iceberg.table.live_files import LiveFiles

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

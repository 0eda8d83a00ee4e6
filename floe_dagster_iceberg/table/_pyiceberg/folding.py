"""Which manifests a commit puts together on its way, so that the list of them stays short."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata

FOLD_FROM: Final = 100
"""How many files a manifest lists that is not small.

All in one would make the list shorter still, and dear for whoever replaces one partition: the
manifest that lists its files is written anew.
"""
STEPS: Final = (10, FOLD_FROM)
"""Manifests become larger in steps: ten that list less than ten files, then ten that list less than a hundred.

A single step would leave up to a hundred of them, and make every hundredth commit read them all.
"""


def groups_to_fold(
    metadata: TableMetadata, manifests: Sequence[ManifestFile], *, being_written: int
) -> Iterator[list[ManifestFile]]:
    """Groups of small data manifests, oldest first, each of which is to become one.

    Args:
        metadata: The table; its properties may switch this off or set the number of manifests.
        manifests: What the new snapshot would list.
        being_written: The new snapshot, whose own manifests are left alone.
    """
    properties = metadata.properties
    if properties.get(TableProperties.MANIFEST_MERGE_ENABLED, "true").lower() == "false":
        return
    given = properties.get(TableProperties.MANIFEST_MIN_MERGE_COUNT)
    steps = STEPS if given is None else (int(given),)
    data = [
        manifest
        for manifest in manifests
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id != being_written
    ]
    for spec_id in sorted({manifest.partition_spec_id for manifest in data}):
        if is_writable(metadata, spec_id):
            of_spec = [manifest for manifest in data if manifest.partition_spec_id == spec_id]
            for fewest, enough in zip((1, *steps), steps, strict=False):
                yield from _full_groups(of_spec, fewest, enough)


def live_files_in(manifest: ManifestFile) -> int:
    """How many files the manifest adds or keeps; many, when an old writer did not say."""
    counts = (manifest.added_files_count, manifest.existing_files_count)
    return sum(sys.maxsize if count is None else count for count in counts)


def is_writable(metadata: TableMetadata, spec_id: int) -> bool:
    """Whether the columns that the partitions of a spec come from are still there to describe them."""
    columns = metadata.schema().field_ids
    return all(field.source_id in columns for field in metadata.specs()[spec_id].fields)


def _full_groups(manifests: Sequence[ManifestFile], fewest: int, enough: int) -> Iterator[list[ManifestFile]]:
    """Groups of manifests that list from `fewest` to less than `enough` files, each with enough together."""
    small = [manifest for manifest in manifests if fewest <= max(1, live_files_in(manifest)) < enough]
    if len(small) * fewest < enough:
        return
    small.sort(key=lambda manifest: manifest.sequence_number)
    group: list[ManifestFile] = []
    files = 0
    for manifest in small:
        group.append(manifest)
        files += live_files_in(manifest)
        if files >= enough and len(group) > 1:
            yield group
            group, files = [], 0

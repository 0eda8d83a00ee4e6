"""Which files a table's metadata leads to.

A file is referenced when any snapshot that the table still has, on whatever branch, needs it to be
read, or when the metadata itself names it. What cannot be read counts as an error, never as
not referenced.
"""

import gzip
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries, read_manifests
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.storage import FileLocation, StoredFile, delete_many, in_parallel, list_files

# Catalogs that keep tables in folders alone write it; it names the current version.
_VERSION_HINT = "version-hint.text"


class ReferencedFiles:
    """All places that one table's metadata leads to.

    Manifests and their lists never change once written, so each is read once, however often
    newer metadata is added. A place that was referenced once stays referenced.
    """

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._places: set[FileLocation] = set()
        self._lists: set[str] = set()
        self._manifests: set[str] = set()
        self._unopened: list[ManifestFile] = []

    def add(self, table: Table) -> None:
        """Add a table's metadata as the table was last seen; manifests are not opened."""
        self.add_log(table)
        self.add_metadata(table.metadata)

    def add_log(self, table: Table) -> None:
        """Add the table's metadata files, the current one and the earlier ones that it remembers."""
        self._add_locations(
            [table.metadata_location, f"{table.metadata.location.rstrip('/')}/metadata/{_VERSION_HINT}"]
        )
        self._add_locations(entry.metadata_file for entry in table.metadata.metadata_log)

    def add_metadata(self, metadata: TableMetadata) -> None:
        """Add the files that metadata names or leads to; manifests are not opened."""
        self._add_locations(file.statistics_path for file in chain(metadata.statistics, metadata.partition_statistics))
        self.add_snapshots(metadata.snapshots)

    def add_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        """Add what some snapshots lead to; manifests are not opened."""
        new = [snapshot for snapshot in snapshots if snapshot.manifest_list not in self._lists]
        for snapshot, manifests in zip(new, in_parallel(self._read_list, new), strict=True):
            self._lists.add(snapshot.manifest_list)
            self._add_locations([snapshot.manifest_list])
            for manifest in manifests:
                if manifest.manifest_path not in self._manifests:
                    self._manifests.add(manifest.manifest_path)
                    self._add_locations([manifest.manifest_path])
                    self._unopened.append(manifest)

    def open_manifests(self, among: Collection[FileLocation] | None = None) -> None:
        """Add the data and delete files that are live in the manifests.

        Args:
            among: The only places that will be asked for; saves memory.
        """
        opened, self._unopened = self._unopened, []
        for files in in_parallel(self._live_files, opened):
            places = (FileLocation.of(location) for location, _ in files)
            self._places.update(places if among is None else (place for place in places if place in among))

    def pop_unopened(self) -> list[ManifestFile]:
        """Manifests that were not opened yet; they belong to the caller from here on."""
        unopened, self._unopened = self._unopened, []
        return unopened

    def __contains__(self, location: object) -> bool:
        place = location if isinstance(location, FileLocation) else FileLocation.of(str(location))
        return place in self._places

    @property
    def places(self) -> frozenset[FileLocation]:
        """All that is known to be referenced."""
        return frozenset(self._places)

    def _add_locations(self, locations: Iterable[str]) -> None:
        self._places.update(FileLocation.of(location) for location in locations)

    def _read_list(self, snapshot: Snapshot) -> list[ManifestFile]:
        return read_manifests(snapshot, self._io)

    def _live_files(self, manifest: ManifestFile) -> list[tuple[str, int]]:
        return live_files(manifest, self._io)


def live_files(manifest: ManifestFile, io: FileIO) -> list[tuple[str, int]]:
    """Location and bytes of the data or delete files that a manifest holds and has not removed."""
    entries = read_entries(manifest, io)
    return [(entry.data_file.file_path, entry.data_file.file_size_in_bytes) for entry in entries]


class ReadManifests:
    """What manifests list, each read once: they never change."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._files: dict[str, list[tuple[str, int]]] = {}

    def live_files(self, manifests: Sequence[ManifestFile]) -> Iterator[tuple[str, int]]:
        """Location and bytes of all data and delete files that are live in some manifests."""
        # Every second one that overwrites leave only lists what was removed. Should its counts be wrong, files stay
        # that could go; what is still needed is never judged by counts.
        full = [each for each in manifests if each.added_files_count != 0 or each.existing_files_count != 0]
        new = [manifest for manifest in full if manifest.manifest_path not in self._files]
        for manifest, files in zip(new, in_parallel(lambda each: live_files(each, self._io), new), strict=True):
            self._files[manifest.manifest_path] = files
        for manifest in full:
            yield from self._files[manifest.manifest_path]


DELETE_BATCH: Final = 1000
_METADATA_FILE: Final = re.compile(r"/(?:v?(?P<version>\d+))[^/]*\.metadata\.json(?:\.gz)?$")
_TABLE_UUID: Final = re.compile(rb'"table-uuid"\s*:\s*"(?P<uuid>[0-9a-fA-F-]{36})"')
_ENOUGH_FOR_UUID: Final = 64 * 1024


@dataclass(frozen=True)
class DeletedFiles:
    """What a clean-up deleted.

    Attributes:
        files: Number of files.
        total_bytes: Their bytes, as far as they are known.
        left: Files that storage would not delete; they are orphans now.
    """

    files: int = 0
    total_bytes: int = 0
    left: tuple[str, ...] = ()

    def __add__(self, other: "DeletedFiles") -> "DeletedFiles":
        return DeletedFiles(self.files + other.files, self.total_bytes + other.total_bytes, (*self.left, *other.left))


@dataclass(frozen=True)
class UnreferencedFiles:
    """Files that nothing needs any more, as far as the metadata that was looked at tells.

    Attributes:
        files: The files.
        referenced: What that metadata leads to.
        contents: Places of the data and delete files among them; only for these are manifests opened.
    """

    files: Sequence[StoredFile]
    referenced: ReferencedFiles
    contents: Collection[FileLocation] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of the files, as far as they are known."""
        return sum(file.size_bytes for file in self.files)

    def recheck(self, table: Table) -> None:
        """Load the newest metadata, and take in what it leads to."""
        with translate_errors(table.catalog.name, table=".".join(table.name())):
            table.refresh()
            self.referenced.add(table)
            if self.contents:
                self.referenced.open_manifests(among=self.contents)


def find_unreferenced(
    gone: Sequence[Snapshot],
    before: TableMetadata,
    after: TableMetadata,
    io: FileIO,
    *,
    sizes: Mapping[FileLocation, int],
    read: ReadManifests | None = None,
) -> UnreferencedFiles:
    """Files that some snapshots lead to and nothing else does.

    Args:
        gone: The snapshots that expire, or have.
        before: The metadata that still holds them.
        after: The metadata without them.
        io: Opens the files.
        sizes: Sizes of manifest lists, which no metadata tells.
        read: Manifests that were read before.
    """
    referenced = ReferencedFiles(io)
    referenced.add_metadata(after)
    expired = ReferencedFiles(io)
    expired.add_snapshots(gone)
    found = {
        FileLocation.of(file.location): file
        for file in (*_manifest_lists(gone, sizes), *_statistics(gone, before))
        if file.location not in referenced
    }
    manifests = [manifest for manifest in expired.pop_unopened() if manifest.manifest_path not in referenced]
    for manifest in manifests:
        found[FileLocation.of(manifest.manifest_path)] = StoredFile(manifest.manifest_path, manifest.manifest_length)
    contents = {
        FileLocation.of(path): StoredFile(path, size)
        for path, size in (read or ReadManifests(io)).live_files(manifests)
    }
    if contents:
        referenced.open_manifests(among=contents.keys())
    files = [file for place, file in (contents | found).items() if place not in referenced]
    return UnreferencedFiles(files, referenced, contents.keys())


def without_snapshots(metadata: TableMetadata, snapshot_ids: Iterable[int]) -> TableMetadata:
    """The metadata as it will be once some snapshots have expired; only what concerns files is right in it."""
    gone = set(snapshot_ids)
    return metadata.model_copy(
        update={
            "snapshots": [each for each in metadata.snapshots if each.snapshot_id not in gone],
            "statistics": [each for each in metadata.statistics if each.snapshot_id not in gone],
            "partition_statistics": [each for each in metadata.partition_statistics if each.snapshot_id not in gone],
        }
    )


def find_old_metadata(table: Table, listed: Iterable[StoredFile], *, older_than: datetime) -> UnreferencedFiles:
    """Metadata files that have dropped out of the table's log of earlier versions.

    Taken are those that are older than everything in the log, by number and by time, and that say
    they are this table's: after a table was dropped and made again, another one's may lie beside.
    """
    log = [entry.metadata_file for entry in table.metadata.metadata_log]
    versions = [version for location in log if (version := _version(location)) is not None]
    referenced = ReferencedFiles(table.io)
    referenced.add_log(table)
    candidates = [
        file
        for file in listed
        if file.location not in referenced
        and (version := _version(file.location)) is not None
        and version < min(versions, default=0)
        and file.modified_at is not None
        and file.modified_at < older_than
    ]
    owners = in_parallel(lambda file: read_table_uuid(table.io, file.location), candidates)
    own = str(table.metadata.table_uuid)
    return UnreferencedFiles([file for file, owner in zip(candidates, owners, strict=True) if owner == own], referenced)


def read_table_uuid(io: FileIO, location: str) -> str | None:
    """Which table a metadata file belongs to, from its first few kilobytes; None when they do not say."""
    with io.new_input(location).open() as stream:
        if ".gz" in location.rpartition("/")[2]:
            with gzip.open(stream) as unpacked:
                head = unpacked.read(_ENOUGH_FOR_UUID)
        else:
            head = stream.read(_ENOUGH_FOR_UUID)
    found = _TABLE_UUID.search(head)
    return None if found is None else found["uuid"].decode().lower()


def delete_unreferenced(
    table: Table, unreferenced: UnreferencedFiles, *, progress: Callable[[str], None] | None = None
) -> DeletedFiles:
    """Delete files that nothing reaches, batch by batch, each looked at again on the newest metadata.

    Args:
        table: The table; refreshed in place before each batch.
        unreferenced: What to delete.
        progress: Called with a line of text after each batch.
    """
    done, files = DeletedFiles(), unreferenced.files
    for start in range(0, len(files), DELETE_BATCH):
        unreferenced.recheck(table)
        batch = [file for file in files[start : start + DELETE_BATCH] if file.location not in unreferenced.referenced]
        with translate_errors(table.catalog.name, table=".".join(table.name())):
            left = set(delete_many(table.io, [file.location for file in batch]))
        deleted = [file for file in batch if file.location not in left]
        done += DeletedFiles(len(deleted), sum(file.size_bytes for file in deleted), tuple(sorted(left)))
        if progress is not None:
            progress(f"{min(start + DELETE_BATCH, len(files))} of {len(files)} files checked, {done.files} deleted")
    return done


def list_metadata_folder(table: Table) -> list[StoredFile]:
    """Everything in the folder of the table's current metadata file."""
    return list_files(table.io, table.metadata_location.rpartition("/")[0])


def _manifest_lists(gone: Iterable[Snapshot], sizes: Mapping[FileLocation, int]) -> Iterable[StoredFile]:
    for snapshot in gone:
        yield StoredFile(snapshot.manifest_list, sizes.get(FileLocation.of(snapshot.manifest_list), 0))


def _statistics(gone: Iterable[Snapshot], before: TableMetadata) -> Iterable[StoredFile]:
    ids = {snapshot.snapshot_id for snapshot in gone}
    files: list[StatisticsFile | PartitionStatisticsFile] = [*before.statistics, *before.partition_statistics]
    for file in files:
        if file.snapshot_id in ids:
            yield StoredFile(file.statistics_path, file.file_size_in_bytes)


def _version(location: str) -> int | None:
    found = _METADATA_FILE.search(location)
    return None if found is None else int(found["version"])

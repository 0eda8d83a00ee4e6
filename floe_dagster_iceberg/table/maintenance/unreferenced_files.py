"""Finds and deletes files that a table's metadata no longer references.

A file is referenced if a snapshot of the table, on any branch, needs it, or if the metadata itself
names it. Metadata that cannot be read is an error; its files never count as unreferenced.
"""

import gzip
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries, read_manifests
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.maintenance import Progress
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.storage import FileLocation, StoredFile, delete_many, in_parallel

# Hadoop catalogs write it; it names the current version.
_VERSION_HINT = "version-hint.text"


class ReferencedFiles:
    """All files that a table's metadata references.

    Manifests and manifest lists never change, so each is read once, however often newer metadata is
    added. A file that was referenced once stays referenced.
    """

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._locations: set[FileLocation] = set()
        self._lists: set[str] = set()
        self._manifests: set[str] = set()
        self._unopened: list[ManifestFile] = []

    def add(self, table: Table) -> None:
        """Add the table's metadata, without opening manifests."""
        self.add_log(table)
        self.add_metadata(table.metadata)

    def add_log(self, table: Table) -> None:
        """Add the current metadata file and those in the metadata log."""
        hint = f"{table.metadata.location.rstrip('/')}/metadata/{_VERSION_HINT}"
        log = (entry.metadata_file for entry in table.metadata.metadata_log)
        self._add_locations([table.metadata_location, hint, *log])

    def add_metadata(self, metadata: TableMetadata) -> None:
        self._add_locations(file.statistics_path for file in chain(metadata.statistics, metadata.partition_statistics))
        self.add_snapshots(metadata.snapshots)

    def add_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        new = [snapshot for snapshot in snapshots if snapshot.manifest_list not in self._lists]
        for snapshot, manifests in zip(new, in_parallel(lambda each: read_manifests(each, self._io), new), strict=True):
            self._lists.add(snapshot.manifest_list)
            self._add_locations([snapshot.manifest_list])
            for manifest in manifests:
                if manifest.manifest_path not in self._manifests:
                    self._manifests.add(manifest.manifest_path)
                    self._add_locations([manifest.manifest_path])
                    self._unopened.append(manifest)

    def open_manifests(self, among: Collection[FileLocation] | None = None) -> None:
        """Add the live files of all manifests so far; of those in `among` only, if given, to save memory."""
        for files in in_parallel(lambda manifest: _live_files(manifest, self._io), self.pop_unopened()):
            found = (FileLocation.of(location) for location, _ in files)
            self._locations.update(found if among is None else (each for each in found if each in among))

    def pop_unopened(self) -> list[ManifestFile]:
        """Return the manifests that were not opened yet, and forget them."""
        unopened, self._unopened = self._unopened, []
        return unopened

    def __contains__(self, location: object) -> bool:
        return (location if isinstance(location, FileLocation) else FileLocation.of(str(location))) in self._locations

    def paths(self) -> set[str]:
        """Paths of all files, without scheme and authority."""
        return {location.path for location in self._locations}

    def _add_locations(self, locations: Iterable[str]) -> None:
        self._locations.update(FileLocation.of(location) for location in locations)


def _live_files(manifest: ManifestFile, io: FileIO) -> list[tuple[str, int]]:
    """Location and size of the live data or delete files of a manifest."""
    entries = read_entries(manifest, io)
    return [(entry.data_file.file_path, entry.data_file.file_size_in_bytes) for entry in entries]


class ReadManifests:
    """Live files of manifests, each read once: manifests never change."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._files: dict[str, list[tuple[str, int]]] = {}

    def live_files(self, manifests: Sequence[ManifestFile]) -> Iterator[tuple[str, int]]:
        """Location and size of all live data and delete files of some manifests."""
        # Many manifests of overwrites list removed files only. If such counts are wrong, files are kept that could be
        # deleted; which files are still needed is never decided by counts.
        full = [each for each in manifests if each.added_files_count != 0 or each.existing_files_count != 0]
        new = [manifest for manifest in full if manifest.manifest_path not in self._files]
        for manifest, files in zip(new, in_parallel(lambda each: _live_files(each, self._io), new), strict=True):
            self._files[manifest.manifest_path] = files
        for manifest in full:
            yield from self._files[manifest.manifest_path]


DELETE_BATCH: Final = 1000
_METADATA_FILE: Final = re.compile(r"/(?:v?(?P<version>\d+))[^/]*\.metadata\.json(?:\.gz)?$")
_TABLE_UUID: Final = re.compile(rb'"table-uuid"\s*:\s*"(?P<uuid>[0-9a-fA-F-]{36})"')
_ENOUGH_FOR_UUID: Final = 64 * 1024


@dataclass(frozen=True)
class DeletedFiles:
    """Deleted files.

    Attributes:
        files: Number of files.
        total_bytes: Their total size, where known.
        left: Files that could not be deleted; they are orphans now.
    """

    files: int = 0
    total_bytes: int = 0
    left: tuple[str, ...] = ()

    def __add__(self, other: "DeletedFiles") -> "DeletedFiles":
        return DeletedFiles(self.files + other.files, self.total_bytes + other.total_bytes, (*self.left, *other.left))


@dataclass(frozen=True)
class UnreferencedFiles:
    """Files that nothing references, according to the metadata read so far.

    Attributes:
        files: The files.
        referenced: The files that the metadata references.
        contents: Locations of the data and delete files among `files`; manifests are opened only for these.
    """

    files: Sequence[StoredFile]
    referenced: ReferencedFiles
    contents: Collection[FileLocation] = ()

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def recheck(self, table: Table) -> None:
        """Load the newest metadata, and add the files that it references."""
        with translate_errors(table.catalog.name, table=table_name(table)):
            table.refresh()
            self.referenced.add(table)
            if self.contents:
                self.referenced.open_manifests(among=self.contents)


def find_unreferenced(
    snapshot_ids: Collection[int],
    before: TableMetadata,
    after: TableMetadata,
    io: FileIO,
    *,
    listed: Sequence[StoredFile],
    read: ReadManifests | None = None,
) -> UnreferencedFiles:
    """Find the files that only expired snapshots reference.

    Args:
        snapshot_ids: The snapshots.
        before: The metadata that still has them.
        after: The metadata without them.
        io: Opens the files.
        listed: Files of the metadata folder, for the sizes of manifest lists, which metadata does not have.
        read: Manifests that were already read.
    """
    ids, sizes = set(snapshot_ids), {FileLocation.of(file.location): file.size_bytes for file in listed}
    gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id in ids]
    referenced = ReferencedFiles(io)
    referenced.add_metadata(after)
    expired = ReferencedFiles(io)
    expired.add_snapshots(gone)
    found = {
        FileLocation.of(file.location): file
        for file in _files_named_in_metadata(gone, before, sizes)
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
    files = [file for location, file in (contents | found).items() if location not in referenced]
    return UnreferencedFiles(files, referenced, contents.keys())


def without_snapshots(metadata: TableMetadata, snapshot_ids: Iterable[int]) -> TableMetadata:
    """The metadata after some snapshots have expired; correct only as far as files are concerned."""
    gone = set(snapshot_ids)
    return metadata.model_copy(
        update={
            "snapshots": [each for each in metadata.snapshots if each.snapshot_id not in gone],
            "statistics": [each for each in metadata.statistics if each.snapshot_id not in gone],
            "partition_statistics": [each for each in metadata.partition_statistics if each.snapshot_id not in gone],
        }
    )


def find_old_metadata(table: Table, listed: Iterable[StoredFile], *, older_than: datetime) -> UnreferencedFiles:
    """Find metadata files that are no longer in the table's metadata log.

    They must be older than everything in the log, by number and by time, and have this table's UUID:
    if a table was dropped and created again, the folder may have files of both.
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
    """Read the table UUID from the first kilobytes of a metadata file; None if it is not in them."""
    with io.new_input(location).open() as stream:
        if ".gz" in location.rpartition("/")[2]:
            with gzip.open(stream) as unpacked:
                head = unpacked.read(_ENOUGH_FOR_UUID)
        else:
            head = stream.read(_ENOUGH_FOR_UUID)
    found = _TABLE_UUID.search(head)
    return None if found is None else found["uuid"].decode().lower()


def delete_unreferenced(
    table: Table, unreferenced: UnreferencedFiles, *, progress: Progress | None = None
) -> DeletedFiles:
    """Delete unreferenced files in batches, each rechecked with the newest metadata; refreshes the table in place."""
    done, files = DeletedFiles(), unreferenced.files
    for start in range(0, len(files), DELETE_BATCH):
        unreferenced.recheck(table)
        batch = [file for file in files[start : start + DELETE_BATCH] if file.location not in unreferenced.referenced]
        with translate_errors(table.catalog.name, table=table_name(table)):
            left = set(delete_many(table.io, [file.location for file in batch]))
        deleted = [file for file in batch if file.location not in left]
        done += DeletedFiles(len(deleted), sum(file.size_bytes for file in deleted), tuple(sorted(left)))
        if progress is not None:
            progress(f"{min(start + DELETE_BATCH, len(files))} of {len(files)} files checked, {done.files} deleted")
    return done


def _files_named_in_metadata(
    gone: Sequence[Snapshot], before: TableMetadata, sizes: Mapping[FileLocation, int]
) -> Iterator[StoredFile]:
    """Manifest lists and statistics of some snapshots."""
    for snapshot in gone:
        yield StoredFile(snapshot.manifest_list, sizes.get(FileLocation.of(snapshot.manifest_list), 0))
    ids = {snapshot.snapshot_id for snapshot in gone}
    for file in chain(before.statistics, before.partition_statistics):
        if file.snapshot_id in ids:
            yield StoredFile(file.statistics_path, file.file_size_in_bytes)


def _version(location: str) -> int | None:
    found = _METADATA_FILE.search(location)
    return None if found is None else int(found["version"])

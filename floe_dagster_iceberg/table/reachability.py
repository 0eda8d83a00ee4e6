"""Which files a table's metadata leads to.

A file is referenced when any snapshot that the table still has, on whatever branch, needs it to be
read, or when the metadata itself names it. What cannot be read counts as an error, never as
not referenced.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.table._pyiceberg.manifest_reading import read_entries, read_manifests
from floe_dagster_iceberg.table.stored_files import Place, in_parallel

# Catalogs that keep tables in folders alone write it; it names the current version.
_VERSION_HINT = "version-hint.text"


class ReferencedFiles:
    """All places that one table's metadata leads to.

    Manifests and their lists never change once written, so each is read once, however often
    newer metadata is added. A place that was referenced once stays referenced.
    """

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._places: set[Place] = set()
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

    def open_manifests(self, among: Collection[Place] | None = None) -> None:
        """Add the data and delete files that are live in the manifests.

        Args:
            among: The only places that will be asked for; saves memory.
        """
        opened, self._unopened = self._unopened, []
        for files in in_parallel(self._live_files, opened):
            places = (Place.of(location) for location, _ in files)
            self._places.update(places if among is None else (place for place in places if place in among))

    def pop_unopened(self) -> list[ManifestFile]:
        """Manifests that were not opened yet; they belong to the caller from here on."""
        unopened, self._unopened = self._unopened, []
        return unopened

    def __contains__(self, location: object) -> bool:
        place = location if isinstance(location, Place) else Place.of(str(location))
        return place in self._places

    @property
    def places(self) -> frozenset[Place]:
        """All that is known to be referenced."""
        return frozenset(self._places)

    def _add_locations(self, locations: Iterable[str]) -> None:
        self._places.update(Place.of(location) for location in locations)

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

"""What is true of a table, read from the catalog, the manifests and the disk; never from the manager."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from support.servers.s3 import file_behind, forget_files


def live_files(table: Table, snapshot: Snapshot | None = None) -> dict[str, DataFile]:
    """Data files of a snapshot, the current one if not given, by path."""
    snapshot = snapshot or table.current_snapshot()
    return {} if snapshot is None else {file.file_path: file for file in _live(table, snapshot)}


def recounted_totals(table: Table, snapshot: Snapshot | None = None) -> dict[str, str]:
    """The totals that a snapshot's summary should show, counted in its manifests."""
    files = live_files(table, snapshot).values()
    return {
        "total-data-files": str(len(files)),
        "total-records": str(sum(file.record_count for file in files)),
        "total-files-size": str(sum(file.file_size_in_bytes for file in files)),
    }


def summary_totals(snapshot: Snapshot) -> dict[str, str]:
    """The totals that a snapshot's summary does show."""
    assert snapshot.summary is not None
    return {key: snapshot.summary[key] for key in ("total-data-files", "total-records", "total-files-size")}


def reachable_files(table: Table) -> set[Path]:
    """Everything on disk that some snapshot or version of the table needs."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
    return {to_path(location) for location in found}


def to_path(location: str) -> Path:
    if location.startswith("s3://"):
        return file_behind(location)
    # Java writes file:/path where Python writes file:///path.
    return Path(unquote(urlsplit(location).path)) if urlsplit(location).scheme else Path(location)


def lose(location: str) -> None:
    """Delete a file in the store itself, without any catalog or client noticing."""
    to_path(location).unlink()
    if location.startswith("s3://"):
        forget_files()


def _live(table: Table, snapshot: Snapshot) -> Iterator[DataFile]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            assert entry.status != ManifestEntryStatus.DELETED
            if entry.data_file.content == DataFileContent.DATA:
                yield entry.data_file

"""Which files a commit adds and removes, and which manifests that touches."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import inclusive_projection, manifest_evaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries, read_manifests, reading_files


@dataclass
class FileChanges:
    """The manifests of a snapshot, read as far as needed, and what is to change in them.

    Attributes:
        unopened: Manifests that cannot hold a file of interest.
        opened: Manifests that can, with their live entries.
        added: Data files that the commit adds.
    """

    unopened: list[ManifestFile] = field(default_factory=list)
    opened: list[tuple[ManifestFile, list[ManifestEntry]]] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    _removed_paths: set[str] = field(default_factory=set)

    @classmethod
    def read(
        cls, metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None, *, may_hold: BooleanExpression
    ) -> "FileChanges":
        """Read a snapshot's manifests, opening only those that may hold rows matching a filter."""
        changes = cls()
        may_match = _manifest_matcher(metadata, may_hold)
        with reading_files(metadata.location):
            for manifest in read_manifests(snapshot, io):
                if manifest.content == ManifestContent.DATA and may_match(manifest):
                    changes.opened.append((manifest, read_entries(manifest, io)))
                else:
                    changes.unopened.append(manifest)
        return changes

    def live_entries(self) -> Iterator[ManifestEntry]:
        """Entries of the data files in the opened manifests."""
        for _, entries in self.opened:
            for entry in entries:
                if entry.data_file.content == DataFileContent.DATA:
                    yield entry

    def remove(self, files: Iterable[DataFile]) -> None:
        self._removed_paths.update(file.file_path for file in files)

    @property
    def removed(self) -> list[ManifestEntry]:
        """Entries of the files that the commit removes."""
        if not self._removed_paths:
            return []
        return [entry for entry in self.live_entries() if entry.data_file.file_path in self._removed_paths]

    @property
    def operation(self) -> Operation:
        """Iceberg's name for a commit of these changes."""
        if not self._removed_paths:
            return Operation.APPEND
        return Operation.OVERWRITE if self.added else Operation.DELETE

    def carried_over(self) -> Iterator[ManifestFile]:
        """Manifests that the commit leaves as they are."""
        yield from self.unopened
        for manifest, entries in self.opened:
            if len(self._kept(entries)) == len(entries):
                yield manifest

    def rewritten(self) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
        """Manifests that lose files, with the entries that stay."""
        for manifest, entries in self.opened:
            if len(kept := self._kept(entries)) < len(entries):
                yield manifest, kept

    def _kept(self, entries: list[ManifestEntry]) -> list[ManifestEntry]:
        return [entry for entry in entries if entry.data_file.file_path not in self._removed_paths]


def _manifest_matcher(metadata: TableMetadata, row_filter: BooleanExpression) -> Callable[[ManifestFile], bool]:
    if isinstance(row_filter, AlwaysTrue | AlwaysFalse):
        return lambda _: isinstance(row_filter, AlwaysTrue)
    schema, specs = metadata.schema(), metadata.specs()
    evaluators = {
        spec_id: manifest_evaluator(spec, schema, inclusive_projection(schema, spec)(row_filter))
        for spec_id, spec in specs.items()
    }
    return lambda manifest: bool(evaluators[manifest.partition_spec_id](manifest))

"""The live files of a table's main branch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import Table

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.names import table_name


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

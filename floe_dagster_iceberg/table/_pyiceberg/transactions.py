"""Changes to one table, staged and committed once."""
# ruff: noqa: SLF001 - private parts are what this folder is for

from collections.abc import Sequence
from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertTableUUID,
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)


def _apply_updates(base: TableMetadata, updates: Sequence[TableUpdate]) -> TableMetadata:
    context = _TableMetadataUpdateContext()
    for update in updates:
        base = _apply_table_update(update, base, context)
    return base


class StagedTransaction(Transaction):
    """Staged metadata is worked out once per set of updates."""

    _staged: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        if self._staged is None or self._staged[0] is not base or self._staged[1] is not updates:
            self._staged = (base, updates, _apply_updates(base, updates))
        return self._staged[2]

    @property
    def table(self) -> Table:
        """The table this transaction works on."""
        return self._table

    @property
    def changes_anything(self) -> bool:
        """Whether something is staged."""
        return bool(self._updates)

    def stage(self, updates: Sequence[TableUpdate], requirements: Sequence[TableRequirement] = ()) -> None:
        """Stage updates; all requirements of one call are kept, several of one kind included."""
        self._stage(tuple(updates), tuple(requirements))

    @property
    def manifest_lists(self) -> list[str]:
        """Manifest lists written for the snapshots staged here."""
        return [path for producer in self._snapshot_producers for path in producer._written_manifest_lists]

    def discard_metadata_files(self) -> None:
        """Delete the manifests and manifest lists written for a commit that did not land."""
        for producer in self._snapshot_producers:
            delete_quietly(self.table.io, (*producer._written_manifests, *producer._written_manifest_lists))


def delete_quietly(io: FileIO, locations: Sequence[str]) -> None:
    """Delete files, as many as can be."""
    for location in locations:
        with suppress(OSError):
            io.delete(location)


class TableTransaction(StagedTransaction):
    """Changes to one existing table, committed together, once."""

    def commit_once(self) -> None:
        """Send what is staged to the catalog as one commit, without retrying."""
        requirements = (*self._requirements, AssertTableUUID(uuid=self.table_metadata.table_uuid))
        self._table._do_commit(updates=self._updates, requirements=requirements)


class CreateTransaction(StagedTransaction, CreateTableTransaction):
    """The creation of a table together with its first rows, committed together, once."""

    @classmethod
    def open(
        cls,
        catalog: Catalog,
        identifier: tuple[str, ...],
        schema: Schema,
        spec: PartitionSpec,
        properties: dict[str, str],
    ) -> "CreateTransaction":
        """Stage a new table that exists only here until `commit_once`."""
        staged = catalog.create_table_transaction(identifier, schema, partition_spec=spec, properties=properties)
        return cls(staged._table)  # type: ignore[arg-type]

    def commit_once(self) -> Table:
        """Create the table in the catalog with everything staged, without retrying."""
        self.commit_transaction()
        staged = self._table
        return Table(staged.name(), staged.metadata, staged.metadata_location, staged.io, staged.catalog)

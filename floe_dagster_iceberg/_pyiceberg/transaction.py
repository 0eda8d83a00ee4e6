"""Changes to one table, staged and committed once."""
# ruff: noqa: SLF001 - private parts are what this folder is for

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Literal, NamedTuple, Protocol, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, Table, Transaction, update as table_updates
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableRequirement, TableUpdate, _apply_table_update, _TableMetadataUpdateContext


def apply_updates(base: TableMetadata, updates: Sequence[TableUpdate]) -> TableMetadata:
    """The metadata with updates; the very object if they change nothing."""
    context = _TableMetadataUpdateContext()
    for update in updates:
        base = _apply_table_update(update, base, context)
    return base


class StagedTransaction(Transaction):
    """A transaction that computes its metadata once per set of updates."""

    _staged: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        if self._staged is None or self._staged[0] is not base or self._staged[1] is not updates:
            self._staged = (base, updates, apply_updates(base, updates))
        return self._staged[2]

    @property
    def table(self) -> Table:
        return self._table

    @property
    def changes_anything(self) -> bool:
        return bool(self._updates)

    def stage(self, updates: Sequence[TableUpdate], requirements: Sequence[TableRequirement] = ()) -> None:
        self._stage(tuple(updates), tuple(requirements))

    @property
    def manifest_lists(self) -> list[str]:
        """Manifest lists written for the snapshots staged here."""
        return [path for producer in self._snapshot_producers for path in producer._written_manifest_lists]

    def discard_metadata_files(self) -> None:
        """Delete the manifests and manifest lists of a commit that did not land."""
        for producer in self._snapshot_producers:
            delete_quietly(self.table.io, (*producer._written_manifests, *producer._written_manifest_lists))


def delete_quietly(io: FileIO, locations: Sequence[str]) -> None:
    """Delete as many files as possible."""
    for location in locations:
        with suppress(OSError):
            io.delete(location)


class TableChange(NamedTuple):
    """What a commit asks of one table."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


class JointCommits(Protocol):
    """A catalog that can commit changes of several tables, all of them or none."""

    @property
    def commits_tables_together(self) -> bool:
        """Whether it really can."""

    def commit_tables(self, changes: Sequence[TableChange]) -> None:
        """Commit the changes of all tables, or of none."""


def commits_together(catalog: Catalog) -> JointCommits | None:
    """The catalog, if it can commit to several tables at once."""
    joint = cast("JointCommits", catalog)
    return joint if getattr(catalog, "commits_tables_together", False) else None


@contextmanager
def outdated_snapshots() -> Iterator[None]:
    """Raise a conflict for a snapshot whose sequence number was taken by a commit to another branch meanwhile.

    No requirement is about that, and PyIceberg finds it when it adds the snapshot to the newest metadata.
    """
    try:
        yield
    except ValueError as error:
        if "Cannot add snapshot with sequence number" not in str(error):
            raise
        raise CommitFailedException("Requirement failed: another branch has changed") from error


class TableTransaction(StagedTransaction):
    """Changes to one existing table, committed together, once."""

    def commit_once(self) -> None:
        """Send what is staged to the catalog as one commit, without retrying."""
        _, requirements, updates = self.to_change()
        with outdated_snapshots():
            self._table._do_commit(updates=updates, requirements=requirements)

    def to_change(self) -> TableChange:
        """What is staged, for a commit that may include other tables."""
        uuid = table_updates.AssertTableUUID(uuid=self.table_metadata.table_uuid)
        return TableChange(self._table, (*self._requirements, uuid), self._updates)


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
        """Stage a new table."""
        staged = catalog.create_table_transaction(identifier, schema, partition_spec=spec, properties=properties)
        return cls(staged._table)  # type: ignore[arg-type]

    def commit_once(self) -> Table:
        """Create the table in the catalog with everything staged, without retrying."""
        self.commit_transaction()
        staged = self._table
        return Table(staged.name(), staged.metadata, staged.metadata_location, staged.io, staged.catalog)


def point_ref(name: str, ref: SnapshotRef) -> table_updates.SetSnapshotRefUpdate:
    """An update that sets a branch or tag, with its retention."""
    return table_updates.SetSnapshotRefUpdate(
        ref_name=name,
        type=ref.snapshot_ref_type,
        snapshot_id=ref.snapshot_id,
        max_ref_age_ms=ref.max_ref_age_ms,
        max_snapshot_age_ms=ref.max_snapshot_age_ms,
        min_snapshots_to_keep=ref.min_snapshots_to_keep,
    )


_SUMMARIES: dict[str, dict[str, str]] = {}
_SUMMARIES_KEPT: Final = 10_000


def summary_property(snapshot: Snapshot, key: str) -> str | None:
    """Like `Summary.get`, cached: histories have thousands of snapshots."""
    if snapshot.summary is None:
        return None
    # Pydantic takes microseconds to find them. Each snapshot has its own manifest list.
    properties = _SUMMARIES.get(snapshot.manifest_list)
    if properties is None:
        if len(_SUMMARIES) >= _SUMMARIES_KEPT:
            _SUMMARIES.clear()
        properties = _SUMMARIES[snapshot.manifest_list] = snapshot.summary.additional_properties
    return properties.get(key)


def ref_assertions(metadata: TableMetadata) -> list[table_updates.AssertRefSnapshotId]:
    """Requirements that every branch and tag still points where this metadata says."""
    return [
        table_updates.AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in metadata.refs.items()
    ]


class _AssertHistory(table_updates.ValidatableTableRequirement):
    """Snapshots still exist and, if asked for, branches and tags are unchanged."""

    type: Literal["floe-assert-history"] = "floe-assert-history"
    snapshot_ids: frozenset[int]
    refs: dict[str, SnapshotRef] | None = None

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None:
            raise CommitFailedException("Requirement failed: current table metadata is missing")
        if self.refs is not None and self.refs != base_metadata.refs:
            raise CommitFailedException("Requirement failed: branches or tags have changed")
        if not self.snapshot_ids <= {snapshot.snapshot_id for snapshot in base_metadata.snapshots}:
            raise CommitFailedException("Requirement failed: snapshots have expired meanwhile")


def history_assertions(
    transaction: StagedTransaction, *, snapshot_ids: Iterable[int], all_refs: bool = False
) -> list[TableRequirement]:
    """Requirements that Iceberg does not have; none for catalogs that check requirements on a server.

    Metastore catalogs (SQL, Glue, Hive) check requirements in this process, on the version that they swap
    atomically. A REST server knows only the standard ones.
    """
    if not isinstance(transaction.table.catalog, MetastoreCatalog):
        return []
    refs = transaction.table_metadata.refs if all_refs else None
    assertion = _AssertHistory(snapshot_ids=frozenset(snapshot_ids), refs=refs)
    return [assertion]  # type: ignore[list-item]


def history_of(metadata: TableMetadata, head: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and its unexpired ancestors, newest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while head is not None:
        yield head
        head = None if head.parent_snapshot_id is None else by_id.get(head.parent_snapshot_id)


def find_snapshot(metadata: TableMetadata, branch: str, properties: Mapping[str, Collection[str]]) -> Snapshot | None:
    """The newest snapshot in a branch's history that has one of the values of each property."""
    ref = metadata.refs.get(branch) or metadata.refs.get(MAIN_BRANCH)
    head = None if ref is None else metadata.snapshot_by_id(ref.snapshot_id)
    for snapshot in history_of(metadata, head):
        if all(summary_property(snapshot, name) in values for name, values in properties.items()):
            return snapshot
    return None


def is_in_history(metadata: TableMetadata, snapshot_id: int, *, of: int) -> bool:
    """Whether a snapshot is another one, or one of its ancestors."""
    head = metadata.snapshot_by_id(of)
    return any(snapshot.snapshot_id == snapshot_id for snapshot in history_of(metadata, head))

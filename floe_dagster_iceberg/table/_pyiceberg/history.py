"""Branches, tags and snapshots: how they are set, and what a commit may require of them."""

from collections.abc import Iterable
from typing import Final, Literal

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    TableRequirement,
    ValidatableTableRequirement,
)

from floe_dagster_iceberg.table._pyiceberg.transactions import StagedTransaction

_SUMMARIES: dict[str, dict[str, str]] = {}
_SUMMARIES_KEPT: Final = 10_000


def point_ref(name: str, ref: SnapshotRef) -> SetSnapshotRefUpdate:
    """An update that makes a branch or tag what `ref` says, retention included."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=ref.snapshot_ref_type,
        snapshot_id=ref.snapshot_id,
        max_ref_age_ms=ref.max_ref_age_ms,
        max_snapshot_age_ms=ref.max_snapshot_age_ms,
        min_snapshots_to_keep=ref.min_snapshots_to_keep,
    )


def summary_property(snapshot: Snapshot, key: str) -> str | None:
    """What a snapshot's summary says, like `Summary.get`, of which one may ask thousands again and again."""
    if snapshot.summary is None:
        return None
    # Pydantic takes microseconds to find them. No two snapshots share a manifest list.
    properties = _SUMMARIES.get(snapshot.manifest_list)
    if properties is None:
        if len(_SUMMARIES) >= _SUMMARIES_KEPT:
            _SUMMARIES.clear()
        properties = _SUMMARIES[snapshot.manifest_list] = snapshot.summary.additional_properties
    return properties.get(key)


def ref_assertions(metadata: TableMetadata) -> list[AssertRefSnapshotId]:
    """Requirements that every branch and tag still points where this metadata says."""
    return [AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in metadata.refs.items()]


class _AssertHistory(ValidatableTableRequirement):
    """Snapshots are still there and, if asked for, no branch or tag has come, gone or moved."""

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
    """What Iceberg's own requirements cannot say; none for catalogs that check requirements on a server.

    Metastore catalogs (SQL, Glue, Hive) check requirements here, on the version that they then
    swap atomically, so this leaves no gap. A REST server knows only the standard ones.
    """
    if not isinstance(transaction.table.catalog, MetastoreCatalog):
        return []
    refs = transaction.table_metadata.refs if all_refs else None
    assertion = _AssertHistory(snapshot_ids=frozenset(snapshot_ids), refs=refs)
    return [assertion]  # type: ignore[list-item]

"""Branches and tags that an expiry took along on a REST catalog, found and brought back.

A REST server can be told where known branches and tags must stand, but not that no other may have
appeared. A tag that somebody makes on an expiring snapshot between our plan and our commit goes
with that snapshot, without an error for either side. The version of the table before the commit
still has it, and no file is deleted before it was looked at.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.errors import FloeStorageError, IcebergError
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    TableTransaction,
    point_ref,
)
from floe_dagster_iceberg.table.commit import CommitBudget, commit
from floe_dagster_iceberg.table.expiry import ExpiryPlan


class RefCheck(Enum):
    """What a look at the branches and tags right after an expiry showed."""

    COMPLETE = auto()
    """None is lost, or all are back."""
    UNKNOWN = auto()
    """Somebody committed in between, and only the server may read what. No file may be deleted."""


def bring_back_lost_refs(table: Table, plan: ExpiryPlan, budget: CommitBudget) -> RefCheck:
    """Look right after an expiry whether it took branches or tags along, and commit those again.

    Args:
        table: The table as the expiry's commit left it; refreshed in place.
        plan: What the commit took.
        budget: How often to try against other writers.

    Raises:
        IcebergError: Some are lost and could not be brought back; the message says where they are.
    """
    if not plan.has_work or isinstance(table.catalog, MetastoreCatalog):
        return RefCheck.COMPLETE
    log = [entry.metadata_file for entry in table.metadata.metadata_log]
    if plan.planned_on not in log:
        return RefCheck.UNKNOWN
    try:
        found = _last_before(table, plan, log[log.index(plan.planned_on) + 1 :])
    except OSError:
        return RefCheck.UNKNOWN
    if found is None:
        return RefCheck.COMPLETE
    earlier, before = found
    there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    lost = {name: ref for name, ref in before.refs.items() if ref.snapshot_id not in there and name not in plan.refs}
    if lost:
        name = ".".join(table.name())
        try:
            with translated(table.catalog.name, table=name):
                commit(table, _Return(before, lost), budget=budget)
        except FloeStorageError as error:
            raise IcebergError(
                f"{', '.join(sorted(lost))} of '{name}' appeared while its snapshots expired, on one that did, and "
                "went with it. No file was deleted: register_table() opens the table as it was before, from "
                f"{earlier}.",
                table=name,
            ) from error
    return RefCheck.COMPLETE


def _last_before(table: Table, plan: ExpiryPlan, versions: Sequence[str]) -> tuple[str, TableMetadata] | None:
    """The last version between the plan and its commit, if there is one; the log may go on after the commit."""
    last = None
    for location in versions:
        metadata = FromInputFile.table_metadata(table.io.new_input(location))
        if plan.expired_from(metadata) == len(plan.snapshot_ids) and not metadata.refs.keys() & set(plan.refs):
            return last
        last = (location, metadata)
    return last


@dataclass(frozen=True)
class _Return:
    """Adds snapshots and the names that they had, unless somebody gave the names away meanwhile."""

    before: TableMetadata
    lost: Mapping[str, SnapshotRef]

    def __call__(self, transaction: TableTransaction) -> None:
        metadata = transaction.table_metadata
        names = {name: ref for name, ref in self.lost.items() if name not in metadata.refs}
        if names:
            transaction.stage(
                [
                    *(AddSnapshotUpdate(snapshot=snapshot) for snapshot in self._snapshots(metadata, names)),
                    *(point_ref(name, ref) for name, ref in names.items()),
                ],
                [AssertRefSnapshotId(ref=name, snapshot_id=None) for name in names],
            )

    def _snapshots(self, metadata: TableMetadata, names: Mapping[str, SnapshotRef]) -> Iterator[Snapshot]:
        """What they were, with the next sequence numbers: catalogs count on, and refuse to count back.

        Readers take the sequence numbers of files from the manifests, which stay as they are.
        """
        number = metadata.next_sequence_number()
        for snapshot_id in sorted({ref.snapshot_id for ref in names.values()}):
            snapshot = self.before.snapshot_by_id(snapshot_id)
            if snapshot is None or metadata.snapshot_by_id(snapshot_id) is not None:
                continue
            again = {"timestamp_ms": time.time_ns() // 1_000_000}
            if metadata.format_version > 1:
                again["sequence_number"] = number
                number += 1
            yield snapshot.model_copy(update=again)

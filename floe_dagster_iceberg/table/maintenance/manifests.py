"""Merges small manifests, so that a scan opens fewer files; data files stay the same."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_manifests
from floe_dagster_iceberg._pyiceberg.snapshot_producer import ManifestRewriter, SnapshotProducer, may_merge
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.models import MaintenanceOperation, MaintenanceResult, ManifestPolicy
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit, new_snapshot_id, refuse_newer_format
from floe_dagster_iceberg.table.commit.refs import head_of
from floe_dagster_iceberg.table.maintenance.last_run import snapshot_properties_of
from floe_dagster_iceberg.table.names import table_name, to_identifier
from floe_dagster_iceberg.table.properties import check_properties
from floe_dagster_iceberg.table.write.uncommitted_files import Outcome

# Manifests of nearly the target size are kept.
_SMALL_MANIFEST_RATIO = 0.75


@dataclass(frozen=True)
class ManifestGroups:
    """A snapshot's manifests to rewrite.

    Attributes:
        replaced: Manifests to merge, grouped by partition spec.
        manifests: Number of all manifests.
        output_manifests: About how many the replaced ones become.
    """

    replaced: Sequence[Sequence[ManifestFile]] = ()
    manifests: int = 0
    output_manifests: int = 0

    @property
    def input_manifests(self) -> list[ManifestFile]:
        return [manifest for group in self.replaced for manifest in group]

    def should_rewrite(self, policy: ManifestPolicy) -> bool:
        """Whether there are enough manifests, and at most half of the replaced ones would remain."""
        return (
            self.manifests >= policy.min_manifests
            and bool(self.replaced)
            and 2 * self.output_manifests <= len(self.input_manifests)
        )


def plan_manifests(metadata: TableMetadata, io: FileIO, policy: ManifestPolicy) -> ManifestGroups:
    """Find the small data manifests of main; delete manifests are kept."""
    manifests, target = read_manifests(metadata.current_snapshot(), io), policy.target_manifest_size_bytes
    small: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        is_small = manifest.manifest_length < target * _SMALL_MANIFEST_RATIO
        if manifest.content == ManifestContent.DATA and is_small and may_merge(metadata, manifest.partition_spec_id):
            small[manifest.partition_spec_id].append(manifest)
    replaced = [group for _, group in sorted(small.items()) if len(group) > 1]
    return ManifestGroups(
        replaced, len(manifests), output_manifests=sum(math.ceil(_total_bytes(group) / target) for group in replaced)
    )


def rewrite_manifests(
    table: Table,
    policy: ManifestPolicy,
    budget: CommitBudget,
    *,
    plan: ManifestGroups | None = None,
    snapshot_properties: Mapping[str, str] | None = None,
) -> MaintenanceResult:
    """Merge small manifests in one commit that lists the same files.

    Live entries do not change: same file, same snapshot, same sequence numbers. If another writer commits
    first, only the manifest list is written again, unless merged manifests were replaced.

    Args:
        table: The table; refreshed in place.
        policy: Which manifests are small.
        budget: How often to retry against other writers.
        plan: What to merge; planned again if manifests of it were replaced.
        snapshot_properties: Added to the snapshot summary.

    Raises:
        CommitConflictError: Other writers committed more often than the budget allows.
        EngineCapabilityError: PyIceberg does not write the table's format version.
    """
    name, started = table_name(table), datetime.now(UTC)
    refuse_newer_format(name, table.metadata.format_version)
    check_properties(table.metadata.properties, name)
    rewriting = _Rewriting(table, policy, plan, snapshot_properties or {})
    with translate_errors(table.catalog.name, table=name):
        try:
            commit(
                table,
                rewriting.stage,
                budget=budget,
                snapshot_id=rewriting.snapshot_id,
                on_lost_response=rewriting.outcome.response_lost,
            )
        except BaseException as error:
            if not rewriting.outcome.may_have_committed(error):
                rewriting.discard()
            raise
    return MaintenanceResult.of_work(
        to_identifier(table),
        MaintenanceOperation.MANIFESTS,
        started_at=started,
        done=bool(rewriting.removed),
        files_removed=len(rewriting.removed),
        bytes_removed=_total_bytes(rewriting.removed),
        files_added=len(rewriting.added),
        bytes_added=_total_bytes(rewriting.added),
    )


class _Rewriting:
    """Merged manifests, reused by the attempts of a commit."""

    def __init__(
        self,
        table: Table,
        policy: ManifestPolicy,
        plan: ManifestGroups | None,
        snapshot_properties: Mapping[str, str],
    ) -> None:
        self._table, self._policy, self._plan, self._snapshot_properties = table, policy, plan, snapshot_properties
        self._started = time.perf_counter()
        self._rewriter: ManifestRewriter | None = None
        self.snapshot_id = new_snapshot_id()
        self.removed: Sequence[ManifestFile] = ()
        self.added: Sequence[ManifestFile] = ()
        self.outcome = Outcome()

    def stage(self, transaction: TableTransaction) -> None:
        self.outcome.next_attempt()
        metadata, io = transaction.table_metadata, self._table.io
        head = head_of(metadata, MAIN_BRANCH, table_name(self._table))
        manifests = read_manifests(head, io)
        present = {manifest.manifest_path for manifest in manifests}
        if not self.removed or not _paths(self.removed) <= present:
            self.discard()
            plan, self._plan = self._plan, None
            if plan is None or not _paths(plan.input_manifests) <= present:
                plan = plan_manifests(metadata, io, self._policy)
            self._write(transaction, plan)
        replaced = _paths(self.removed)
        if not replaced:
            return
        kept = [manifest for manifest in manifests if manifest.manifest_path not in replaced]
        SnapshotProducer(
            transaction,
            FileChanges(unopened=[*kept, *self.added]),
            operation=Operation.REPLACE,
            snapshot_id=self.snapshot_id,
            snapshot_properties=snapshot_properties_of(
                MaintenanceOperation.MANIFESTS, seconds=time.perf_counter() - self._started
            )
            | {"manifests-replaced": str(len(replaced)), "manifests-kept": str(len(kept))}
            | dict(self._snapshot_properties),
            branch=MAIN_BRANCH,
        ).commit()
        self.outcome.send()

    def discard(self) -> None:
        """Delete the manifests written so far."""
        if self._rewriter is not None:
            self._rewriter.discard()
        self._rewriter, self.removed, self.added = None, (), ()

    def _write(self, transaction: TableTransaction, planned: ManifestGroups) -> None:
        if not planned.should_rewrite(self._policy):
            return
        self._rewriter = ManifestRewriter(transaction, self.snapshot_id)
        target = self._policy.target_manifest_size_bytes
        added = [
            manifest
            for group in planned.replaced
            for manifest in self._rewriter.rewrite(group, target_size_bytes=target)
        ]
        self.removed, self.added = planned.input_manifests, added


def _paths(manifests: Sequence[ManifestFile]) -> set[str]:
    return {manifest.manifest_path for manifest in manifests}


def _total_bytes(manifests: Sequence[ManifestFile]) -> int:
    return sum(manifest.manifest_length for manifest in manifests)

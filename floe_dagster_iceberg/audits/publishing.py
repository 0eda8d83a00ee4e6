"""What becomes of the audits of a step: all of them are published, or all are rejected."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import dagster as dg

from floe_dagster_iceberg.audits.audit import Audit
from floe_dagster_iceberg.errors import (
    AuditFailedError,
    CommitConflictError,
    EngineCapabilityError,
    ValidationError,
)
from floe_dagster_iceberg.io_managers.engines import StagedWrite
from floe_dagster_iceberg.models import SnapshotInfo, TableIdentifier
from floe_dagster_iceberg.table.commit.commit import refresh
from floe_dagster_iceberg.table.joint_publication import BranchPublication, publish_together, publishes_at_once
from floe_dagster_iceberg.table.write.write import TableWriteResult

_UNPUBLISHABLE = (CommitConflictError, EngineCapabilityError, ValidationError)


class Publication:
    """Publishes all audits of a step when the first of their outputs is handled."""

    def __init__(self, audits: Sequence[Audit]) -> None:
        self._audits = audits
        self._results: dict[TableIdentifier, TableWriteResult] = {}
        # A server may have done otherwise than it promises; None until something is published.
        self._at_once: bool | None = None

    def staged_write(self, audit: Audit, checks: int) -> StagedWrite:
        """The output of an asset, whose handling publishes."""
        metadata: dict[str, dg.MetadataValue] = {
            "iceberg/audit_snapshot_id": dg.MetadataValue.text(str(audit.result.snapshot.snapshot_id)),
            "iceberg/audit_checks": dg.MetadataValue.int(checks),
        }
        others = [str(each.table) for each in self._audits if each is not audit]
        if others:
            at_once = publishes_at_once([each.result.table for each in self._audits])
            metadata["iceberg/published_with"] = dg.MetadataValue.text(", ".join(others))
            metadata["iceberg/published_at_once"] = dg.MetadataValue.bool(at_once)

        def publish() -> TableWriteResult:
            result = self._publish(audit)
            if others and self._at_once is not None:
                metadata["iceberg/published_at_once"] = dg.MetadataValue.bool(self._at_once)
            return result

        return StagedWrite(audit.of.engine, publish, metadata)

    def _publish(self, audit: Audit) -> TableWriteResult:
        """The publication of an audit.

        Raises:
            CommitConflictError: Rows that are being replaced have changed. The branches are removed: an attempt that
                comes later has to write the rows again.
        """
        if audit.is_published:
            return audit.result
        if not self._results:
            try:
                self._results = self._publish_all()
            except _UNPUBLISHABLE:
                for each in self._audits:
                    each.of.remove_branch()
                raise
        return self._results[audit.table]

    def _publish_all(self) -> dict[TableIdentifier, TableWriteResult]:
        results = {audit.table: audit.result for audit in self._audits}
        publications: dict[TableIdentifier, BranchPublication] = {}
        for audit in self._audits:
            planned = audit.result if audit.is_published else audit.publication()
            if isinstance(planned, BranchPublication):
                publications[audit.table] = planned
            else:
                results[audit.table] = planned
        budget = self._audits[0].of.manager.budget
        handover = next(filter(None, (audit.of.handover for audit in self._audits)), None)
        done = publish_together(list(publications.values()), budget=budget, through=handover)
        if publications:
            self._at_once = done.at_once and len(publications) == len(self._audits)
        for (table, publication), snapshot in zip(publications.items(), done.snapshots, strict=True):
            published = SnapshotInfo.from_pyiceberg_snapshot(snapshot)
            if publication.table.metadata.snapshot_by_id(published.snapshot_id) is None:
                refresh(publication.table)
            results[table] = replace(results[table], table=publication.table, snapshot=published)
        return results


def reject(audits: Mapping[dg.AssetKey, Audit], failed: Mapping[dg.AssetKey, Sequence[str]]) -> AuditFailedError:
    """Keep the rows of all audits out of the way of later attempts; returns the error that says where they are.

    Args:
        audits: The audits of a step.
        failed: The checks of each asset that failed.
    """
    kept = {audit.table: audit.reject() for audit in audits.values()}
    first = audits[next(iter(failed))].table
    if len(audits) > 1:
        checks = [f"{key.to_user_string()}.{name}" for key, names in failed.items() for name in names]
    else:
        checks = [name for names in failed.values() for name in names]
    return AuditFailedError(
        first, checks=checks, branch=kept.pop(first), others={str(table): branch for table, branch in kept.items()}
    )

"""The demo's maintenance: the same jobs that the schedules start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from definitions import defs, iceberg
from examples.pipeline import run_job
from examples.progress import Progress
from floe_dagster_iceberg import CompiledArtifacts, ExpiryPolicy, Guardrail, MaintenancePolicy, create_iceberg_resources

# Snapshots must be a day old to expire. The demo disables this guardrail by name, which is shown in the
# metadata of the run.
AT_ONCE = ExpiryPolicy(max_age=timedelta(0), min_snapshots_to_keep=2, overrides=[Guardrail.EXPIRY_AGE])
_PLAN = "dry run of all operations"
_OPERATIONS = {
    "compaction": "compaction: rewrite small files into larger ones",
    "manifests": "manifests: merge them for faster scan planning",
    "snapshot_expiry": "expiry: remove old snapshots and their files",
    "table_health": "health: measure the tables",
}
_CHECKS = "health checks of the assets"


@dataclass(frozen=True)
class TableFacts:
    """Facts about a table at one point in time, read from the table itself."""

    rows: int
    files: int
    snapshots: int
    manifests: int


@dataclass(frozen=True)
class TableChange:
    """A table before and after maintenance."""

    table: str
    before: TableFacts
    after: TableFacts


class Care:
    """Runs the maintenance jobs and measures their effect."""

    def __init__(self, instance: dg.DagsterInstance, progress: Progress) -> None:
        self._instance, self._progress = instance, progress

    def maintain(self) -> Sequence[TableChange]:
        """Run every operation on all tables."""
        self._progress.headline("Maintenance: the jobs of the schedules")
        maintenance = create_iceberg_resources(
            CompiledArtifacts.from_environment(), policy=MaintenancePolicy(expiry=AT_ONCE)
        )
        jobs, before = maintenance.definitions(), dict(measure_tables())
        with self._progress.step(_PLAN):
            ops = {asset.key.to_python_identifier(): {"dry_run": True} for asset in maintenance.assets}
            run_job(self._instance, jobs.resolve_implicit_global_asset_job_def(), ops=ops)
        for operation, title in _OPERATIONS.items():
            with self._progress.step(title):
                run_job(self._instance, jobs.resolve_job_def(f"iceberg_maintenance_{operation}_job"))
        with self._progress.step(_CHECKS):
            run_job(self._instance, defs.resolve_job_def("table_health_checks"))
        return [TableChange(table, before[table], after) for table, after in measure_tables()]


def measure_tables() -> Iterator[tuple[str, TableFacts]]:
    """Facts about every table of the demo, in the order of the layers."""
    tables = iceberg["iceberg"].table_manager
    for namespace in ("bronze", "silver", "gold"):
        for name in sorted(tables.list_tables(namespace)):
            identifier = f"{namespace}.{name}"
            table = tables.load_table(identifier)
            snapshot = table.current_snapshot()
            if snapshot is None or snapshot.summary is None:
                continue
            yield (
                identifier,
                TableFacts(
                    rows=int(snapshot.summary["total-records"] or 0),
                    files=int(snapshot.summary["total-data-files"] or 0),
                    snapshots=len(table.metadata.snapshots),
                    manifests=len(snapshot.manifests(table.io)),
                ),
            )

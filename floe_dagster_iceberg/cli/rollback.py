"""`floe-iceberg rollback`: go back to an earlier snapshot, after showing what readers would no longer see."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table.refs import MAIN_BRANCH
from rich.console import Console

from floe_dagster_iceberg._pyiceberg.transaction import history_of
from floe_dagster_iceberg.cli.console import cell, heading
from floe_dagster_iceberg.cli.inspection import show_snapshots, snapshot_entries
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.cli.reports import RollbackReport, SnapshotEntry
from floe_dagster_iceberg.errors import RollbackError, SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.models import SnapshotInfo
from floe_dagster_iceberg.table.commit.refs import find_in_history, find_in_time, to_timestamp_ms
from floe_dagster_iceberg.table.names import to_identifier


@dataclass(frozen=True)
class RollbackPlan:
    """The snapshot to go back to, and the snapshots since then, newest first; none if it is the current one."""

    table: str
    target: SnapshotEntry
    undone: tuple[SnapshotEntry, ...]

    @property
    def current(self) -> SnapshotEntry:
        return self.undone[0] if self.undone else self.target

    def to_report(self) -> RollbackReport:
        """The report of the executed plan."""
        return RollbackReport(table=self.table, rolled_back=bool(self.undone), target=self.target, undone=self.undone)


def plan_rollback(lakehouse: Lakehouse, name: str, *, to: str | None = None, as_of: str | None = None) -> RollbackPlan:
    """Find the snapshot to go back to, by id, tag or time, and those after it. Changes nothing.

    Raises:
        SnapshotNotFoundError: There is no such snapshot or tag.
        RollbackError: The snapshot is not in main's history, or the history begins later.
        ValidationError: The timestamp is not valid.
    """
    table = lakehouse.load_table(name)
    metadata, identifier = table.metadata, str(to_identifier(table))
    if as_of is not None:
        at_ms = to_timestamp_ms(_timestamp(as_of), argument="--as-of", table=identifier)
        target = find_in_time(metadata, identifier, at_ms, timestamp=as_of)
    else:
        ids = {ref: where.snapshot_id for ref, where in metadata.refs.items()}
        snapshot_id = ids.get(to or "")
        if snapshot_id is None and not re.fullmatch(r"\d+", to or ""):
            raise SnapshotNotFoundError(identifier, to)
        target = find_in_history(metadata, identifier, int(to or 0) if snapshot_id is None else snapshot_id)
    history = []
    for snapshot in history_of(metadata, metadata.snapshot_by_name(MAIN_BRANCH)):
        history.append(SnapshotInfo.from_pyiceberg_snapshot(snapshot))
        if snapshot.snapshot_id == target.snapshot_id:
            break
    *undone, last = snapshot_entries(table, history)
    return RollbackPlan(identifier, last, tuple(undone))


def show(plan: RollbackPlan, console: Console) -> None:
    """Print what readers would no longer see."""
    console.print(cell(f"{plan.table} would go back to snapshot", "bold"))
    show_snapshots([plan.target], console)
    heading(console, f"Snapshots that readers would no longer see: {len(plan.undone)}")
    show_snapshots(plan.undone, console)
    console.print()
    console.print(f"Rows now: {plan.current.total_records:,}. Rows then: {plan.target.total_records:,}.")
    console.print(
        "The schema stays as it is. No file is deleted: snapshots can be read by their ids until they expire."
    )


def show_outcome(report: RollbackReport, console: Console) -> None:
    """Print where the table is."""
    when = "now" if report.rolled_back else "already"
    console.print(cell(f"{report.table} is at snapshot {report.target.snapshot_id} {when}."))


def roll_back(lakehouse: Lakehouse, plan: RollbackPlan) -> None:
    """Execute the plan, unless the table was written to meanwhile.

    Raises:
        RollbackError: The table has a newer snapshot than the plan.
        CommitConflictError: Other writers won more often than the budget allows.
    """
    main = lakehouse.tables.load_table(plan.table).metadata.refs.get(MAIN_BRANCH)
    if main is not None and main.snapshot_id != plan.current.snapshot_id:
        raise RollbackError(
            plan.table,
            snapshot=plan.target.snapshot_id,
            reason=f"snapshot {main.snapshot_id} was committed since then, and nothing was changed",
        )
    # Spark starts only for a table that PyIceberg cannot commit to.
    lakehouse.spark.table_manager.rollback_to_snapshot(plan.table, plan.target.snapshot_id)


def _timestamp(text: str) -> datetime:
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError(
            f"--as-of '{text}' is not a timestamp. Write it as 2026-01-31, 2026-01-31T14:30 or 2026-01-31T14:30+02:00."
        ) from None
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)

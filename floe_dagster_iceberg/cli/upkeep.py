"""`floe-iceberg plan` and `maintain`: the maintenance assets' own work, without Dagster."""

import logging
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.status import Status

from floe_dagster_iceberg.cli.console import Listing, cell
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.cli.reports import UpkeepEntry, UpkeepReport
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.settings import MaintenanceAsset
from floe_dagster_iceberg.maintenance.table_runs import MaintenanceRun, TableOutcome
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceStatus, PlanReason

_WORDS: Final = {
    PlanReason.RECOMMENDED: ("would run", "bold"),
    PlanReason.BELOW_THRESHOLD: ("nothing to do", "dim"),
    PlanReason.MIN_INTERVAL: ("too early", "dim"),
    PlanReason.BUDGET_CAPPED: ("over budget", "yellow"),
    PlanReason.BLOCKED: ("blocked", "yellow"),
}
_STYLES: Final = {MaintenanceStatus.FAILED: "bold red", MaintenanceStatus.DONE: "green"}


def look_after(
    lakehouse: Lakehouse,
    glob: str,
    operations: Sequence[MaintenanceAsset],
    *,
    dry_run: bool,
    engine: MaintenanceEngine | None = None,
    errors: Console,
) -> UpkeepReport:
    """Plan operations, or do them, as the maintenance assets do.

    Args:
        lakehouse: Where the tables are, and what the artifacts say about maintenance.
        glob: The tables.
        operations: The operations, in this order.
        dry_run: Whether to plan only, and change nothing.
        engine: Who is to do it; as the policy says if not given.
        errors: Where progress and warnings go.

    Raises:
        NoSuchTableError: A table is named that is not there.
        ValidationError: The policy is not valid.
    """
    if not lakehouse.select(glob):
        return UpkeepReport(dry_run=dry_run, entries=[])
    sources = lakehouse.sources.with_run(tables=(lakehouse.full_name(glob),), dry_run=dry_run, engine=engine)
    entries = []
    with errors.status("Looking at the tables") as status:
        log = _progress_log(status, errors)
        maintenance = TableMaintenance(lakehouse.tables, spark=lambda: lakehouse.spark.spark_session, progress=log.info)
        for operation in operations:
            run = MaintenanceRun(operation, lakehouse.tables, maintenance, sources, log)
            entries += [_entry(operation, outcome) for outcome in run.operate()]
    return UpkeepReport(dry_run=dry_run, entries=entries)


def show(report: UpkeepReport, console: Console, *, everything: bool = False) -> None:
    """Print a line per operation and table.

    Args:
        report: What maintenance would do, or did.
        console: Where to print it.
        everything: Whether to tell also why nothing is to be done; of a single table it is always told.
    """
    if not report.entries:
        console.print("The catalog has no such table.")
        return
    everything = everything or len({entry.table for entry in report.entries}) == 1
    told = [entry for entry in report.entries if everything or not _is_idle(entry)]
    listing = Listing("table", "operation", "status", "what", sentence="what")
    for entry in told:
        word, style = _status(entry)
        listing.add(entry.table, entry.operation, cell(word, style), entry.note)
    if told:
        listing.print(console)
    if silent := len(report.entries) - len(told):
        tables = len({entry.table for entry in report.entries})
        console.print(f"Nothing to do in {silent} of {len(report.entries)} cases ({tables} tables); --all tells why.")
    if report.dry_run and any(entry.actionable for entry in report.entries):
        console.print()
        console.print("Nothing was changed. 'floe-iceberg maintain' with --execute does it.")


def _is_idle(entry: UpkeepEntry) -> bool:
    return _status(entry)[0] in ("nothing to do", MaintenanceStatus.SKIPPED.value)


def _entry(operation: MaintenanceAsset, outcome: TableOutcome) -> UpkeepEntry:
    plans = [result.plan for result in outcome.results if result.plan is not None]
    return UpkeepEntry(
        table=outcome.table,
        operation=operation.value,
        status=outcome.status,
        actionable=any(plan.is_actionable for plan in plans),
        note=outcome.note,
        results=outcome.results,
    )


def _status(entry: UpkeepEntry) -> tuple[str, str]:
    plans = [result.plan for result in entry.results if result.plan is not None]
    if entry.status in (MaintenanceStatus.PLANNED, MaintenanceStatus.SKIPPED) and plans:
        # The weightiest: an operation may have looked twice, at data files and at delete files.
        reason = min((plan.reason for plan in plans), key=list(_WORDS).index)
        # Not done although planned: other writers were faster.
        return ("left", "yellow") if entry.status is MaintenanceStatus.SKIPPED and entry.actionable else _WORDS[reason]
    return entry.status.value, _STYLES.get(entry.status, "dim")


def _progress_log(status: Status, errors: Console) -> logging.Logger:
    """A log whose lines replace each other, except for warnings, which stay."""
    # Not registered by name: the handlers of one command must not be those of the next.
    log = logging.Logger("floe-iceberg", level=logging.INFO)  # noqa: LOG001
    log.addHandler(_StatusHandler(status, errors))
    return log


class _StatusHandler(logging.Handler):
    def __init__(self, status: Status, errors: Console) -> None:
        super().__init__()
        self._status, self._errors = status, errors

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self._errors.print(cell(f"warning: {record.getMessage()}", "yellow"))
        else:
            # Failures are told in the report.
            self._status.update(cell(record.getMessage()))

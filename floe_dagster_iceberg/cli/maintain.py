"""`floe-iceberg plan` and `maintain`: what the maintenance assets do, without Dagster."""

import logging
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.status import Status

from floe_dagster_iceberg.cli.console import Listing, cell
from floe_dagster_iceberg.cli.inspection import is_decided, show_policy
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.cli.reports import MaintenanceEntry, MaintenanceReport, PolicyEntry
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.runner import MaintenanceRun, TableOutcome
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenanceStatus
from floe_dagster_iceberg.models.quantities import counted

_STYLES: Final = {
    "failed": "bold red",
    "done": "green",
    "would run": "bold",
    "over budget": "yellow",
    "blocked": "yellow",
    "left": "yellow",
}


def maintain(
    lakehouse: Lakehouse,
    glob: str,
    operations: Sequence[MaintenanceOperation],
    *,
    dry_run: bool,
    engine: MaintenanceEngine | None = None,
    errors: Console,
) -> MaintenanceReport:
    """Plan or run operations in the given order; progress and warnings go to `errors`.

    Raises:
        NoSuchTableError: There is no such table.
        ValidationError: The policy is not valid, or no table matches.
    """
    sources = lakehouse.sources.with_run(tables=(lakehouse.full_name(glob),), dry_run=dry_run, engine=engine)
    # Report an error in the policy before calling the catalog, which may not respond.
    sources.resolve()
    if not lakehouse.select(glob).found:
        return MaintenanceReport(dry_run=dry_run, entries=[])
    entries = []
    with errors.status("Reading the tables") as status:
        log = _progress_log(status, errors)
        maintenance = TableMaintenance(lakehouse.tables, spark=lambda: lakehouse.spark.spark_session, progress=log.info)
        for operation in operations:
            run = MaintenanceRun(operation, lakehouse.tables, maintenance, sources, log)
            entries += [_entry(operation, outcome) for outcome in run.operate()]
    return MaintenanceReport(dry_run=dry_run, entries=entries)


def show(
    report: MaintenanceReport, console: Console, *, command_for: Callable[[Sequence[str]], str], everything: bool
) -> None:
    """Print a line per operation and table; tables that need nothing only with `everything`, or if there is one."""
    if not report.entries:
        console.print("The catalog has no tables yet.")
        return
    tables = len({entry.table for entry in report.entries})
    everything = everything or tables == 1
    listed = [entry for entry in report.entries if everything or not _is_idle(entry)]
    listing = Listing("table", "operation", "status", "what", wrapped="what")
    for entry in listed:
        listing.add(entry.table, entry.operation, cell(entry.state, _STYLES.get(entry.state, "dim")), entry.note)
    if listed:
        listing.print(console)
    if idle := len(report.entries) - len(listed):
        rest = "Nothing to do" if not listed else f"Nothing to do for the other {idle}"
        checked = f"{counted(len(report.entries), 'operation')} on {counted(tables, 'table')} checked"
        console.print(f"{rest}: {checked}; --all lists the reasons.")
    if tables == 1:
        show_policy([value for entry in report.entries for value in entry.policy if is_decided(value)], console)
    if report.dry_run and (to_do := dict.fromkeys(entry.operation for entry in report.entries if entry.actionable)):
        console.print()
        console.print("Dry run, nothing was changed. To run it:")
        console.print(cell(f"  {command_for(list(to_do))}"), soft_wrap=True)


def command_for(
    operations: Sequence[str], glob: str, *, engine: str | None, artifacts: Path | None, module: str | None
) -> str:
    """The command that runs what was planned."""
    command = ["floe-iceberg", "maintain", glob]
    command += [word for operation in operations for word in ("--operation", operation)]
    command += [] if engine is None else ["--engine", engine]
    command += [] if artifacts is None else ["--artifacts", str(artifacts)]
    command += [] if module is None else ["--module", module]
    return shlex.join([*command, "--execute"])


def _is_idle(entry: MaintenanceEntry) -> bool:
    return entry.state in ("nothing to do", MaintenanceStatus.SKIPPED.value)


def _entry(operation: MaintenanceOperation, outcome: TableOutcome) -> MaintenanceEntry:
    return MaintenanceEntry(
        table=outcome.table,
        operation=operation.value,
        status=outcome.status,
        state=outcome.state,
        actionable=outcome.is_actionable,
        note=outcome.note,
        results=outcome.results,
        policy=[] if outcome.policy is None else PolicyEntry.of(outcome.policy, f"{operation.policy_section}."),
    )


def _progress_log(status: Status, errors: Console) -> logging.Logger:
    """A log whose lines replace each other, except for warnings, which stay."""
    # Not registered by name: each command has its own handlers.
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
            # Failures are part of the report.
            self._status.update(cell(record.getMessage()))

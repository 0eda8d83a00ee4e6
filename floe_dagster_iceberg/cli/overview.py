"""`floe-iceberg tables`: the tables of a catalog at a glance."""

from rich.console import Console

from floe_dagster_iceberg.cli.console import Listing, cell, short_run
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.cli.reports import SnapshotEntry, TableEntry, TablesReport
from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.models import HealthTier, SnapshotInfo, TableIdentifier
from floe_dagster_iceberg.models.quantities import format_bytes
from floe_dagster_iceberg.secrets import redact
from floe_dagster_iceberg.table.maintenance.health import measure_health


def list_tables(lakehouse: Lakehouse, glob: str) -> TablesReport:
    """Read the metadata of every table; one that cannot be read is listed with its error."""
    return TablesReport(
        catalog=lakehouse.iceberg.catalog_name,
        tables=[_entry(lakehouse, table) for table in lakehouse.select(glob)],
    )


def show(report: TablesReport, console: Console) -> None:
    """Print a line per table."""
    if not report.tables:
        console.print(cell(f"Catalog '{report.catalog}' has no tables yet."))
        return
    numbers = ("rows", "files", "size", "snapshots")
    listing = Listing("table", *numbers, "last written (UTC)", "by run", "partition", numbers=numbers)
    for entry in report.tables:
        written = entry.snapshot
        listing.add(
            entry.table,
            entry.rows,
            entry.data_files,
            None if entry.total_bytes is None else format_bytes(entry.total_bytes),
            entry.snapshots,
            cell("unreadable", "red") if entry.error else "never" if written is None else written.committed_at,
            None if written is None else short_run(written.run_id),
            None if written is None else written.partition_key,
        )
    listing.print(console)
    for entry in report.tables:
        if entry.error is not None:
            console.print()
            console.print(cell(f"{entry.table}: {entry.error}", "red"))


def _entry(lakehouse: Lakehouse, name: TableIdentifier) -> TableEntry:
    try:
        table = lakehouse.tables.load_table(name)
        health = measure_health(table, tier=HealthTier.SUMMARY)
    except FloeStorageError as error:
        return TableEntry(table=str(name), error=redact(str(error)))
    current = table.current_snapshot()
    return TableEntry(
        table=str(name),
        rows=health.records,
        data_files=health.data_files,
        total_bytes=health.total_bytes,
        snapshots=health.snapshots,
        snapshot=None
        if current is None
        else SnapshotEntry.from_snapshot(SnapshotInfo.from_pyiceberg_snapshot(current)),
    )

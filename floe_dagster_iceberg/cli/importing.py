"""`floe-iceberg import`: existing Parquet files become part of a table."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel
from rich.console import Console

from floe_dagster_iceberg.cli.console import Listing, cell
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.models.base import SnapshotId

_MOST_SHOWN: Final = 20


class ImportReport(BaseModel):
    """The files that were added, or would be."""

    table: str
    executed: bool
    created: bool
    files: list[str]
    rows: int
    total_bytes: int
    partitions: dict[str, int]
    skipped: list[str]
    empty_files: int
    sets_name_mapping: bool
    snapshot_id: SnapshotId | None


def import_files(
    lakehouse: Lakehouse, paths: Sequence[str], table: str, *, execute: bool, **settings: Any
) -> ImportReport:
    """Check files and, if asked to, add them to a table.

    Raises:
        NoSuchTableError: There is no such table, and it is not to be created.
        ValidationError: A file cannot be part of the table.
    """
    # A new project has no catalog yet, and the command is to create the first table.
    tables = lakehouse.iceberg.table_manager if execute and settings["create"] else lakehouse.tables
    name = lakehouse.full_name(table)
    if not settings["create"]:
        lakehouse.load_table(table)
    plan = tables.plan_add_files(name, paths, **settings)
    snapshot = tables.add_files(name, paths, **settings) if execute else None
    return ImportReport(
        table=str(plan.table),
        executed=execute,
        created=plan.created,
        files=[file.file_path for file in plan.files],
        rows=plan.rows,
        total_bytes=plan.total_bytes,
        partitions=dict(plan.partitions),
        skipped=list(plan.skipped),
        empty_files=plan.empty,
        sets_name_mapping=plan.sets_name_mapping,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
    )


def show(report: ImportReport, console: Console) -> None:
    """Print what is added, by partition."""
    if any(report.partitions):
        listing = Listing("partition", "rows", numbers=("rows",))
        for partition, rows in list(report.partitions.items())[:_MOST_SHOWN]:
            listing.add(partition, rows)
        listing.print(console)
    if len(report.partitions) > _MOST_SHOWN:
        console.print(cell(f"and {len(report.partitions) - _MOST_SHOWN} more"))
    table = f"new table '{report.table}'" if report.created else f"'{report.table}'"
    console.print(
        cell(
            f"{'Added' if report.executed else 'Would add'} {len(report.files)} files with {report.rows:,} rows "
            f"({report.total_bytes:,} bytes) to {table}; {len(report.skipped)} are in it already, "
            f"{report.empty_files} have no rows."
        )
    )
    if report.sets_name_mapping:
        console.print(cell("They have no field ids: the table gets a name mapping (schema.name-mapping.default)."))
    if not report.executed and report.files:
        console.print(
            cell(
                "Add --execute to add them. They belong to the table then: expiry and purging delete them, unless "
                "--keep-files sets gc.enabled=false."
            )
        )

"""`floe-iceberg delete-partition`: the rows of Dagster partitions go."""

from collections.abc import Sequence

from pydantic import BaseModel
from rich.console import Console

from floe_dagster_iceberg.cli.adoption import find_spec, open_instance
from floe_dagster_iceberg.cli.console import Listing, cell
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.models.base import SnapshotId
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.observations.deletion import plan_partition_deletion
from floe_dagster_iceberg.table.names import to_identifier


class DeletedPartitionsReport(BaseModel):
    """The rows that were deleted, or would be."""

    table: str
    asset: str
    executed: bool
    partitions: dict[str, int]
    snapshot_id: SnapshotId | None = None


def delete_partitions(
    lakehouse: Lakehouse, table: str, asset_key: str, keys: Sequence[str], *, execute: bool
) -> DeletedPartitionsReport:
    """Count the rows of partitions and, if asked to, delete them.

    Raises:
        NoSuchTableError: There is no such table.
        MaintenanceRefusedError: The table has a legal hold.
        ValidationError: The asset or a partition does not exist, or there is no module or $DAGSTER_HOME.
    """
    spec = find_spec(lakehouse, asset_key)
    identifier = to_identifier(lakehouse.load_table(table))
    with open_instance() as instance:
        plan = plan_partition_deletion(lakehouse.iceberg, identifier, spec, keys, instance)
        snapshot = plan.execute(lakehouse.iceberg, instance.report_runless_asset_event) if execute else None
    return DeletedPartitionsReport(
        table=str(identifier),
        asset=spec.key.to_user_string(),
        executed=execute,
        partitions=dict(plan.rows),
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
    )


def show(report: DeletedPartitionsReport, console: Console) -> None:
    """Print the partitions and their rows."""
    listing = Listing("partition", "rows", numbers=("rows",))
    for key, rows in report.partitions.items():
        listing.add(key, rows)
    listing.print(console)
    what, rows = "Deleted" if report.executed else "Would delete", sum(report.partitions.values())
    partitions = counted(len(report.partitions), "partition")
    console.print(cell(f"{what} {counted(rows, 'row')} of {partitions} of '{report.asset}' from '{report.table}'."))
    if not report.executed and rows:
        console.print(cell("Add --execute to delete them."))

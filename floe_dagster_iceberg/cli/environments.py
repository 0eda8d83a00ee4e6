"""`floe-iceberg env`: environments, how they differ from main, and their end."""

from pydantic import Field
from rich.console import Console

from floe_dagster_iceberg.cli.console import Listing, cell
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.models.base import FrozenModel, Items
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.table.environments import (
    DroppedEnvironment,
    EnvironmentDiff,
    EnvironmentInfo,
    IcebergEnvironments,
)
from floe_dagster_iceberg.table.joint_publication import PublicationResult

_MOST_PARTITIONS = 5


class EnvironmentsReport(FrozenModel):
    """Environments of a catalog."""

    environments: Items[EnvironmentInfo] = Field(description="The environments, by name.")


def environments_of(lakehouse: Lakehouse) -> IcebergEnvironments:
    """The environments of a catalog; Spark starts only for a table that PyIceberg cannot commit to."""
    # A missing catalog file must not be created.
    _ = lakehouse.tables
    return IcebergEnvironments(lakehouse.spark.table_manager)


def list_environments(lakehouse: Lakehouse) -> EnvironmentsReport:
    """List the environments."""
    return EnvironmentsReport(environments=environments_of(lakehouse).list())


def show_list(report: EnvironmentsReport, console: Console) -> None:
    """Print the environments."""
    if not report.environments:
        console.print("There are no environments.")
        return
    listing = Listing("environment", "last written", "tables", wrapped="tables")
    for each in report.environments:
        listing.add(each.name, each.last_written, ", ".join(each.tables))
    listing.print(console)


def show_diff(diff: EnvironmentDiff, console: Console) -> None:
    """Print how the tables of an environment differ from main."""
    console.print(cell(f"Environment '{diff.name}' compared with main", "bold"))
    numbers = ("main rows", "rows", "added", "removed", "commits", "main commits")
    listing = Listing("table", *numbers, "partitions", "columns", numbers=numbers, wrapped="partitions")
    for each in diff.tables:
        more = len(each.partitions) - _MOST_PARTITIONS
        partitions = [*each.partitions[:_MOST_PARTITIONS], *([f"{more} more"] if more > 0 else [])]
        listing.add(
            each.table,
            each.rows_in_main,
            each.rows_in_environment,
            each.rows_added,
            each.rows_removed,
            each.commits,
            each.main_commits,
            ", ".join(partitions),
            ", ".join(f"+{name}" for name in each.columns_added),
        )
    listing.print(console)


def show_published(result: PublicationResult, console: Console) -> None:
    """Print what was published."""
    how = "at once" if result.atomic else "one after the other: this catalog cannot publish tables at once"
    console.print(cell(f"Published {counted(len(result.tables), 'table')}, {how}."))
    listing = Listing("table", "snapshot of main", "how")
    for each in result.tables:
        listing.add(each.table, str(each.snapshot_id), "replayed" if each.replayed else "moved")
    listing.print(console)


def show_dropped(dropped: DroppedEnvironment, console: Console) -> None:
    """Print what was dropped."""
    console.print(cell(f"Dropped environment '{dropped.name}' of {counted(len(dropped.tables), 'table')}."))
    for table in dropped.empty_tables:
        console.print(cell(f"{table} was created by it and is empty. Drop the table if production does not need it."))

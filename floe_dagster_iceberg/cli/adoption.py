"""`floe-iceberg discover` and `adopt`: tables of others become assets."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import dagster as dg
from pydantic import BaseModel
from rich.console import Console

from floe_dagster_iceberg.cli.console import Listing, cell
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.models.base import nearest
from floe_dagster_iceberg.observations.adoption import plan_adoption
from floe_dagster_iceberg.observations.assets import ListedTable, TableListing
from floe_dagster_iceberg.secrets import describe_failure
from floe_dagster_iceberg.table.names import to_identifier
from floe_dagster_iceberg.table.selection import select_tables

_MOST_SHOWN: Final = 20


class DiscoveredReport(BaseModel):
    """The listing that was written."""

    output: str
    tables: list[str]
    errors: dict[str, str]


class AdoptedReport(BaseModel):
    """The materializations that were reported, or would be."""

    table: str
    asset: str
    executed: bool
    data_version: str
    partitions: dict[str, int]
    already_materialized: int


def discover(lakehouse: Lakehouse, globs: Sequence[str], output: Path) -> DiscoveredReport:
    """Write the listing of tables that match.

    Raises:
        ValidationError: The file cannot be written.
    """
    selected = select_tables(lakehouse.tables, [lakehouse.full_name(glob) for glob in globs])
    listed: list[ListedTable] = []
    errors = {**dict.fromkeys(selected.missing, "There is no such table."), **selected.skipped}
    for table in selected.found:
        try:
            listed.append(ListedTable.from_table(lakehouse.tables.load_table(table)))
        except FloeStorageError as error:
            errors[str(table)] = describe_failure(error)
            listed.append(ListedTable(table=str(table)))
    try:
        TableListing(tables=tuple(listed)).save(output)
    except OSError as error:
        raise ValidationError(f"'{output}' cannot be written: {error.strerror}. Name another file.") from error
    return DiscoveredReport(output=str(output), tables=[each.table for each in listed], errors=errors)


def show_discovered(report: DiscoveredReport, console: Console) -> None:
    """Print what was written."""
    console.print(cell(f"Wrote {len(report.tables)} tables to {report.output}."))
    for table, reason in report.errors.items():
        console.print(cell(f"{table}: {reason}", "red"))


def adopt(lakehouse: Lakehouse, table: str, asset_key: str, *, execute: bool) -> AdoptedReport:
    """Plan an adoption and, if asked to, report its materializations.

    Raises:
        NoSuchTableError: There is no such table.
        ValidationError: The asset or its partition column does not exist, or there is no module or $DAGSTER_HOME.
    """
    spec = find_spec(lakehouse, asset_key)
    identifier = to_identifier(lakehouse.load_table(table))
    with open_instance() as instance:
        plan = plan_adoption(lakehouse.iceberg, identifier, spec, instance)
        if execute:
            plan.report(instance)
    return AdoptedReport(
        table=str(identifier),
        asset=spec.key.to_user_string(),
        executed=execute,
        data_version=plan.data_version,
        partitions={key or "": rows for key, rows in plan.rows.items()},
        already_materialized=plan.known,
    )


def show_adopted(report: AdoptedReport, console: Console) -> None:
    """Print the partitions and their rows."""
    if report.partitions:
        listing = Listing("partition", "rows", numbers=("rows",))
        for key, rows in list(report.partitions.items())[:_MOST_SHOWN]:
            listing.add(key or "all", rows)
        listing.print(console)
    if len(report.partitions) > _MOST_SHOWN:
        console.print(cell(f"and {len(report.partitions) - _MOST_SHOWN} more"))
    what = "Reported" if report.executed else "Would report"
    console.print(
        cell(
            f"{what} {len(report.partitions)} materializations of '{report.asset}' from '{report.table}'; "
            f"{report.already_materialized} exist already."
        )
    )
    if not report.executed and report.partitions:
        console.print(cell("Add --execute to report them."))


def open_instance() -> dg.DagsterInstance:
    """Open the instance of $DAGSTER_HOME; it is closed as a context manager.

    Raises:
        ValidationError: The variable is not set.
    """
    if not os.environ.get("DAGSTER_HOME"):
        raise ValidationError(
            "$DAGSTER_HOME is not set, so it is not known where materializations are stored. Set it to the folder of "
            "the instance."
        )
    return dg.DagsterInstance.get()


def find_spec(lakehouse: Lakehouse, asset_key: str) -> dg.AssetSpec:
    """Find an asset of the code location.

    Raises:
        ValidationError: There is no such asset, or no module.
    """
    if lakehouse.code is None:
        raise ValidationError("The asset's definition is needed. Give --module the module that has it.")
    key = dg.AssetKey.from_user_string(asset_key)
    specs = {spec.key: spec for spec in lakehouse.code.definitions.resolve_all_asset_specs()}
    if key not in specs:
        names = [each.to_user_string() for each in specs]
        guess = nearest(key.to_user_string(), names)
        hint = f"Did you mean '{guess}'?" if guess else f"Assets are {', '.join(sorted(names)[:_MOST_SHOWN])}."
        raise ValidationError(f"The definitions have no asset '{key.to_user_string()}'. {hint}")
    return specs[key]

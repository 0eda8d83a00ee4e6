"""Commands, options and exit codes. What a command needs is imported when it runs: `--help` answers at once."""

import functools
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel

from floe_dagster_iceberg.cli.sentences import Told, in_our_words, warn
from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceStatus
from floe_dagster_iceberg.secrets import redact

# In the order in which they make sense, one after the other.
OPERATIONS: Final = ("compaction", "snapshot_expiry", "manifests", "orphan_files")

Command = Callable[..., Any]

_glob = click.argument("glob", metavar="[GLOB]", default="*")
_table = click.argument("table")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead, for programs.")
_all = click.option("--all", "everything", is_flag=True, help="Tell also where nothing is to be done, and why.")
_engine = click.option(
    "--engine",
    type=click.Choice([engine.value for engine in MaintenanceEngine]),
    help="Who does it. 'auto' takes PyIceberg where that is safe, and Spark where it is not.",
)


def _operation(*, required: bool) -> Callable[[Command], Command]:
    return click.option(
        "--operation",
        "-o",
        "operations",
        type=click.Choice(OPERATIONS),
        multiple=True,
        required=required,
        help="What to do; may be given several times." + ("" if required else "  [default: all]"),
    )


def _told_in_a_sentence(function: Command) -> Command:
    """A command whose errors are a sentence and exit code 1."""

    @functools.wraps(function)
    def run(*args: Any, debug: bool, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except FloeStorageError as error:
            if debug:
                click.echo(redact("".join(traceback.format_exception(error))), err=True)
            raise Told(redact(in_our_words(error))) from None

    return click.option("--debug", is_flag=True, help="Show where an error came from.")(run)


def _on_a_lakehouse(function: Command) -> Command:
    """A command that can be told on which lakehouse it works."""
    return click.option(
        "--artifacts",
        type=click.Path(path_type=Path),
        help="Compiled artifacts (JSON or YAML).  [default: $FLOE_ARTIFACTS, then .floe/compiled_artifacts.json, "
        "then the embedded catalog]",
    )(_told_in_a_sentence(function))


class _InOrder(click.Group):
    """Commands in the order of this file, which is that of a day's work."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="floe-dagster-iceberg", prog_name="floe-iceberg")
def main() -> None:
    """Look at, check and look after the Iceberg tables of a Dagster project.

    Tables are named 'namespace.table'; without a namespace, the default one is meant. A GLOB is such
    a name with * or ?, in quotes: 'bronze.*'.

    No table is changed by any command but 'maintain --execute' and 'rollback'.
    """
    # The log of operations is for services. Here every error is told once, as a sentence.
    logging.getLogger("floe_dagster_iceberg").addHandler(logging.NullHandler())


@main.command(short_help="Check that pipelines can work from here.")
@_json
@click.option("--spark/--no-spark", default=True, help="Whether to check Java and Spark's jars, too.")
@_on_a_lakehouse
def doctor(*, artifacts: Path | None, as_json: bool, spark: bool) -> None:
    """Check that pipelines can work from here: artifacts, catalog, storage, permissions, Java and jars.

    A small object is written to the storage and removed again, as is a namespace in a SQL catalog.
    Ends with exit code 1 when something has to be mended; each line says what.
    """
    from floe_dagster_iceberg.cli import doctor as checks  # noqa: PLC0415

    report = checks.examine(artifacts, spark=spark)
    _print(report, checks.show, as_json=as_json)
    if not report.healthy:
        sys.exit(1)


@main.command(short_help="List the tables.")
@_glob
@_json
@_on_a_lakehouse
def tables(glob: str, *, artifacts: Path | None, as_json: bool) -> None:
    """List the tables, with their sizes and the run that wrote them last."""
    from floe_dagster_iceberg.cli import overview  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    lakehouse = Lakehouse.open(artifacts)
    report = overview.survey(lakehouse, glob)
    _print(report, overview.show, as_json=as_json)
    warn(lakehouse.policy_fault)
    if any(entry.error for entry in report.tables):
        sys.exit(1)


@main.command(short_help="Show a table and its snapshots.")
@_table
@click.option("--snapshots", type=click.IntRange(min=1), default=10, show_default=True, help="How many to show.")
@_json
@_on_a_lakehouse
def inspect(table: str, *, artifacts: Path | None, snapshots: int, as_json: bool) -> None:
    """Show a table: columns, partitioning, health, maintenance policy, properties, and its snapshots.

    Each snapshot names the Dagster run and the partition that made it.
    """
    from floe_dagster_iceberg.cli import inspection  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    report = inspection.inspect(Lakehouse.open(artifacts), table, snapshots=snapshots)
    _print(report, inspection.show, as_json=as_json)
    warn(*report.warnings)


@main.command(short_help="Say what maintenance would do.")
@_glob
@_operation(required=False)
@_engine
@_all
@_json
@_on_a_lakehouse
def plan(
    glob: str,
    *,
    artifacts: Path | None,
    operations: tuple[str, ...],
    engine: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Say what maintenance would do, and why, or why not. Changes nothing.

    The policy is that of the artifacts and of the tables' own properties.
    """
    _look_after(
        artifacts, glob, operations or OPERATIONS, dry_run=True, engine=engine, everything=everything, as_json=as_json
    )


@main.command(short_help="Do maintenance; a dry run by default.")
@click.argument("glob")
@_operation(required=True)
@click.option("--execute", is_flag=True, help="Really do it; without this it is only planned.")
@_engine
@_all
@_json
@_on_a_lakehouse
def maintain(
    glob: str,
    *,
    artifacts: Path | None,
    operations: tuple[str, ...],
    execute: bool,
    engine: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Do maintenance on tables: a dry run, unless --execute is given.

    The same as the maintenance assets in Dagster do, with the same policy and the same guardrails.
    Ends with exit code 1 when a table failed; the others have had their turn.
    """
    _look_after(artifacts, glob, operations, dry_run=not execute, engine=engine, everything=everything, as_json=as_json)


@main.command(short_help="Go back to an earlier snapshot.")
@_table
@click.option("--to", metavar="SNAPSHOT", help="Id of the snapshot to go back to, or name of a tag.")
@click.option("--as-of", metavar="TIME", help="Go back to what was there then; UTC unless it has an offset.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_on_a_lakehouse
def rollback(table: str, *, artifacts: Path | None, to: str | None, as_of: str | None, yes: bool) -> None:
    """Make an earlier snapshot of a table the current one again.

    Shows first what readers would no longer see, and asks. No file is deleted.
    """
    if (to is None) == (as_of is None):
        raise click.UsageError("Give either --to or --as-of.")
    from floe_dagster_iceberg.cli import rollback as rolling  # noqa: PLC0415
    from floe_dagster_iceberg.cli.console import open_console  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    lakehouse, console = Lakehouse.open(artifacts), open_console()
    foreseen = rolling.foresee(lakehouse, table, to=to, as_of=as_of)
    if not foreseen.undone:
        console.print(f"{foreseen.table} is at snapshot {foreseen.target.snapshot_id} already.")
        return
    rolling.show(foreseen, console)
    if not yes:
        click.confirm("Go back?", abort=True)
    rolling.roll_back(lakehouse, foreseen)
    console.print(f"{foreseen.table} is at snapshot {foreseen.target.snapshot_id} now.")


@main.command(short_help="Fetch Spark's jars into a folder.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--for",
    "places",
    type=click.Choice(["sqlite", "postgres", "s3", "gcs", "azure"]),
    multiple=True,
    help="Where tables or their catalog are; may be given several times.",
)
@_told_in_a_sentence
def jars(folder: Path, *, places: tuple[str, ...]) -> None:
    """Fetch the jars that Spark needs for Iceberg into FOLDER, as when building an image.

    $FLOE_SPARK_JARS then names that folder, and Spark starts without a network. REST catalogs
    need no jar of their own.
    """
    from floe_dagster_iceberg.spark.jar_fetch import fetch_jars  # noqa: PLC0415

    for jar in fetch_jars(places, folder):
        click.echo(jar)


@main.command(short_help="Write a small project to begin with.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@_told_in_a_sentence
def init(folder: Path) -> None:
    """Write a small project into FOLDER: two assets, their maintenance, and artifacts.

    Nothing that is there is overwritten. It needs neither Java nor a server.
    """
    from floe_dagster_iceberg.cli.starting import write_starter  # noqa: PLC0415

    for place in write_starter(folder):
        click.echo(f"wrote {place}")
    click.echo(f"\nNext:\n  cd {folder}")
    click.echo("  dagster asset materialize -f definitions.py --select orders --partition 2026-01-01")
    click.echo("  dagster asset materialize -f definitions.py --select revenue")
    click.echo("  floe-iceberg tables")
    click.echo("  dagster dev    # the same in the browser; pip install dagster-webserver")


def _look_after(
    artifacts: Path | None,
    glob: str,
    operations: tuple[str, ...],
    *,
    dry_run: bool,
    engine: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    from floe_dagster_iceberg.cli import upkeep  # noqa: PLC0415
    from floe_dagster_iceberg.cli.console import open_console  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415
    from floe_dagster_iceberg.models import MaintenanceOperation  # noqa: PLC0415

    report = upkeep.look_after(
        Lakehouse.open(artifacts),
        glob,
        [MaintenanceOperation(name) for name in OPERATIONS if name in operations],
        dry_run=dry_run,
        engine=None if engine is None else MaintenanceEngine(engine),
        errors=open_console(to_errors=True),
    )
    doing = functools.partial(upkeep.command_for, glob=glob, engine=engine, artifacts=artifacts)
    _print(report, functools.partial(upkeep.show, doing=doing, everything=everything), as_json=as_json)
    if any(entry.status is MaintenanceStatus.FAILED for entry in report.entries):
        sys.exit(1)


def _print(report: BaseModel, show: Callable[..., None], *, as_json: bool) -> None:
    if as_json:
        click.echo(redact(report.model_dump_json(indent=2)))
        return
    from floe_dagster_iceberg.cli.console import open_console  # noqa: PLC0415

    show(report, open_console())

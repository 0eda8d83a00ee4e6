"""Commands, options and exit codes. Commands import what they need when they run, so that `--help` stays fast."""

import functools
import logging
import sys
import traceback
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel

from floe_dagster_iceberg.cli import starter
from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenanceStatus
from floe_dagster_iceberg.secrets import redact

# In the order they run.
OPERATIONS: Final = ("retention", "compaction", "snapshot_expiry", "manifests", "orphan_files")
# Where `init` writes each file of the starter. In the package, names must not begin with a dot.
_STARTER_FILES: Final = {
    "definitions.py": "definitions.py",
    "workspace.yaml": "workspace.yaml",
    "compiled_artifacts.json": ".floe/compiled_artifacts.json",
    "gitignore": ".floe/.gitignore",
}

_NEXT_COMMANDS: Final = (
    # Without it, every command has an instance of its own, and the browser shows no run.
    'export DAGSTER_HOME="$PWD/.floe/dagster" && mkdir -p "$DAGSTER_HOME"',
    "dagster asset materialize -f definitions.py --select orders --partition 2026-01-01",
    "dagster asset materialize -f definitions.py --select revenue",
    "floe-iceberg tables",
    "dagster dev    # the same in the browser; pip install dagster-webserver",
)

Command = Callable[..., Any]
Project = dict[str, Any]

_glob = click.argument("glob", metavar="[GLOB]", default="*")
_table = click.argument("table")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_all = click.option("--all", "everything", is_flag=True, help="Also list tables that need nothing, with the reason.")
_engine = click.option(
    "--engine",
    type=click.Choice([engine.value for engine in MaintenanceEngine]),
    help="Engine to use. 'auto' takes PyIceberg where that is safe, and Spark elsewhere.",
)


def _operation(*, required: bool) -> Callable[[Command], Command]:
    return click.option(
        "--operation",
        "-o",
        "operations",
        type=click.Choice(OPERATIONS),
        multiple=True,
        required=required,
        help="Operation to run; can be repeated." + ("" if required else "  [default: all]"),
    )


def _with_cli_errors(function: Command) -> Command:
    """Turn the errors of a command into a message and exit code 1."""

    @functools.wraps(function)
    def run(*args: Any, debug: bool, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except FloeStorageError as error:
            from floe_dagster_iceberg.cli.console import CliError, cli_message  # noqa: PLC0415 - it loads rich

            if debug:
                click.echo(redact("".join(traceback.format_exception(error))), err=True)
            raise CliError(redact(cli_message(error))) from None

    return click.option("--debug", is_flag=True, help="Show the traceback of an error.")(run)


def _with_project(function: Command) -> Command:
    """Pass where the catalog and the policy come from as `project`, the arguments of `Lakehouse.open`."""

    @functools.wraps(function)
    def run(*args: Any, artifacts: Path | None, module: str | None, **kwargs: Any) -> None:
        if artifacts is not None and module is not None:
            raise click.UsageError("Give either --artifacts or --module.")
        function(*args, project={"artifacts": artifacts, "module": module}, **kwargs)

    by_module = click.option(
        "--module",
        "-m",
        metavar="NAME",
        help="Python module with Dagster definitions, as for 'dagster dev -m': its catalog, and the policy given in "
        "Python.",
    )
    by_artifacts = click.option(
        "--artifacts",
        type=click.Path(path_type=Path),
        help="Compiled artifacts (JSON or YAML).  [default: $FLOE_ARTIFACTS, then .floe/compiled_artifacts.json, "
        "then the embedded catalog]",
    )
    return by_module(by_artifacts(_with_cli_errors(run)))


class _InOrder(click.Group):
    """Lists commands in the order of this file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="floe-dagster-iceberg", prog_name="floe-iceberg")
def main() -> None:
    """Inspect, check and maintain the Iceberg tables of a Dagster project.

    Tables are named 'namespace.table'; a name without a namespace is in the default one. A GLOB is a
    name with * or ?, in quotes: 'bronze.*'.

    Only 'maintain', 'import' and 'delete-partition' with --execute, and 'rollback' change tables; 'adopt
    --execute' changes what Dagster knows of one.
    """
    # The log of operations is for services. Here every error is printed once, as a message.
    logging.getLogger("floe_dagster_iceberg").addHandler(logging.NullHandler())


@main.command(short_help="Check the environment of pipelines.")
@_json
@click.option("--spark/--no-spark", default=True, help="Whether to check Java and Spark's jars as well.")
@_with_project
def doctor(*, project: Project, as_json: bool, spark: bool) -> None:
    """Check the environment of pipelines: artifacts, code location, catalog, storage, permissions, Java and jars.

    Writes a small object to the storage and removes it again, and likewise a namespace in a SQL catalog.
    Exits with code 1 if a check fails; each failed check has a remedy.
    """
    from floe_dagster_iceberg.cli import doctor as checks  # noqa: PLC0415

    report = checks.run_checks(**project, spark=spark)
    _print(report, checks.show, as_json=as_json)
    if not report.healthy:
        sys.exit(1)


@main.command(short_help="List the tables.")
@_glob
@_json
@_with_project
def tables(glob: str, *, project: Project, as_json: bool) -> None:
    """List the tables with their sizes and the last run that wrote to them."""
    from floe_dagster_iceberg.cli import console, inspection  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    lakehouse = Lakehouse.open(**project)
    report = inspection.list_tables(lakehouse, glob)
    _print(report, inspection.show_tables, as_json=as_json)
    console.warn(lakehouse.policy_error)
    if any(entry.error for entry in report.tables):
        sys.exit(1)


@main.command(short_help="Show a table and its snapshots.")
@_table
@click.option(
    "--snapshots", type=click.IntRange(min=1), default=10, show_default=True, help="Number of snapshots to show."
)
@_json
@_with_project
def inspect(table: str, *, project: Project, snapshots: int, as_json: bool) -> None:
    """Show a table: columns, partitioning, health, maintenance policy, properties, and its snapshots.

    Each snapshot names the Dagster run and the partition that wrote it.
    """
    from floe_dagster_iceberg.cli import console, inspection  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    report = inspection.inspect(Lakehouse.open(**project), table, snapshots=snapshots)
    _print(report, inspection.show, as_json=as_json)
    console.warn(*report.warnings)


@main.command(short_help="Show what maintenance would do.")
@_glob
@_operation(required=False)
@_engine
@_all
@_json
@_with_project
def plan(glob: str, *, operations: tuple[str, ...], **options: Any) -> None:
    """Show what maintenance would do and why. Changes nothing.

    The policy comes from the artifacts and the tables' properties, and with --module from Python as well.
    """
    _maintain(glob, operations or OPERATIONS, dry_run=True, **options)


@main.command(short_help="Run maintenance; a dry run by default.")
@click.argument("glob")
@_operation(required=True)
@click.option("--execute", is_flag=True, help="Change the tables; without this, only plan.")
@_engine
@_all
@_json
@_with_project
def maintain(glob: str, *, operations: tuple[str, ...], execute: bool, **options: Any) -> None:
    """Run maintenance on tables: a dry run, unless --execute is given.

    Does what the maintenance assets in Dagster do, with the same policy and guardrails. Exits with
    code 1 when a table fails; the other tables are maintained all the same.
    """
    _maintain(glob, operations, dry_run=not execute, **options)


@main.command(short_help="Go back to an earlier snapshot.")
@_table
@click.option("--to", metavar="SNAPSHOT", help="Snapshot id or tag to go back to.")
@click.option("--as-of", metavar="TIME", help="Go back to the state at this time; UTC unless it has an offset.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_json
@_with_project
def rollback(table: str, *, project: Project, to: str | None, as_of: str | None, yes: bool, as_json: bool) -> None:
    """Make an earlier snapshot of a table the current one again.

    Shows what readers would no longer see and asks for confirmation. No file is deleted.
    """
    if (to is None) == (as_of is None):
        raise click.UsageError("Give either --to or --as-of.")
    from floe_dagster_iceberg.cli import rollback as rolling  # noqa: PLC0415
    from floe_dagster_iceberg.cli.console import open_console  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    lakehouse = Lakehouse.open(**project)
    planned = rolling.plan_rollback(lakehouse, table, to=to, as_of=as_of)
    if planned.undone:
        # With --json, only the report goes to standard output.
        rolling.show(planned, open_console(to_errors=as_json))
        if not yes:
            click.confirm("Go back?", abort=True, err=as_json)
        rolling.roll_back(lakehouse, planned)
    _print(planned.to_report(), rolling.show_outcome, as_json=as_json)


@main.group(cls=_InOrder)
def env() -> None:
    """List, compare, publish and drop environments, which are branches 'env-NAME' of tables."""


_environment = click.argument("environment")
_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@env.command("list", short_help="List environments, their tables and when they were last written.")
@_json
@_with_project
def env_list(*, project: Project, as_json: bool) -> None:
    """List environments, their tables and when they were last written."""
    from floe_dagster_iceberg.cli import environments  # noqa: PLC0415

    _print(environments.list_environments(_open(project)), environments.show_list, as_json=as_json)


@env.command("diff", short_help="Show how an environment differs from main.")
@_environment
@_json
@_with_project
def env_diff(environment: str, *, project: Project, as_json: bool) -> None:
    """Show the tables, rows, partitions and columns of an environment that differ from main.

    Reads metadata only.
    """
    from floe_dagster_iceberg.cli import environments  # noqa: PLC0415

    _print(environments.environments_of(_open(project)).diff(environment), environments.show_diff, as_json=as_json)


@env.command("publish", short_help="Put the changes of an environment onto main.")
@_environment
@_yes
@_json
@_with_project
def env_publish(environment: str, *, project: Project, yes: bool, as_json: bool) -> None:
    """Put the changes of an environment onto main, in all its tables at once, and remove its branches.

    Shows how it differs from main and asks for confirmation. What was written to main meanwhile stays.
    """
    from floe_dagster_iceberg.cli import environments  # noqa: PLC0415
    from floe_dagster_iceberg.cli.console import open_console  # noqa: PLC0415

    found = environments.environments_of(_open(project))
    if not yes:
        environments.show_diff(found.diff(environment), open_console(to_errors=as_json))
        click.confirm("Publish?", abort=True, err=as_json)
    _print(found.publish(environment), environments.show_published, as_json=as_json)


@env.command("drop", short_help="Remove the branches of an environment.")
@_environment
@_yes
@_json
@_with_project
def env_drop(environment: str, *, project: Project, yes: bool, as_json: bool) -> None:
    """Remove the branches of an environment from all tables. Its snapshots expire with the others."""
    from floe_dagster_iceberg.cli import environments  # noqa: PLC0415
    from floe_dagster_iceberg.cli.console import open_console  # noqa: PLC0415

    found = environments.environments_of(_open(project))
    if not yes:
        environments.show_diff(found.diff(environment), open_console(to_errors=as_json))
        click.confirm("Drop?", abort=True, err=as_json)
    _print(found.drop(environment), environments.show_dropped, as_json=as_json)


def _open(project: Project) -> Any:
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    return Lakehouse.open(**project)


@main.command(short_help="Write a listing of tables for observation.")
@click.argument("globs", nargs=-1, required=True)
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@_json
@_with_project
def discover(globs: tuple[str, ...], *, output: Path, project: Project, as_json: bool) -> None:
    """Write the tables that GLOBS match to a file, with columns, description and owner.

    'build_iceberg_observations' builds external assets from it without a connection. Tables that cannot be read are
    listed by name, and the command exits with code 1.
    """
    from floe_dagster_iceberg.cli import adoption  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    report = adoption.discover(Lakehouse.open(**project), globs, output)
    _print(report, adoption.show_discovered, as_json=as_json)
    if report.errors:
        sys.exit(1)


@main.command(short_help="Report what a table holds as materializations of an asset.")
@_table
@click.option("--asset", "asset_key", metavar="KEY", required=True, help="Key of the asset, as in 'shop/orders'.")
@click.option("--execute", is_flag=True, help="Report the materializations; without this, only show them.")
@_json
@_with_project
def adopt(table: str, *, asset_key: str, execute: bool, project: Project, as_json: bool) -> None:
    """Report materializations of the partitions that a table holds, so that its asset need not be backfilled.

    Reads the partition columns of the table. Partitions that have a materialization are left alone. Needs
    --module, for the asset, and $DAGSTER_HOME. A dry run, unless --execute is given.
    """
    from floe_dagster_iceberg.cli import adoption  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    report = adoption.adopt(Lakehouse.open(**project), table, asset_key, execute=execute)
    _print(report, adoption.show_adopted, as_json=as_json)


@main.command("delete-partition", short_help="Delete the rows of partitions of an asset.")
@_table
@click.argument("keys", metavar="PARTITION...", nargs=-1, required=True)
@click.option("--asset", "asset_key", metavar="KEY", required=True, help="Key of the asset, as in 'shop/orders'.")
@click.option("--execute", is_flag=True, help="Delete the rows; without this, only count them.")
@_json
@_with_project
def delete_partition(
    table: str, keys: tuple[str, ...], *, asset_key: str, execute: bool, project: Project, as_json: bool
) -> None:
    """Delete the rows of partitions of an asset from TABLE, in one commit.

    Reports an observation of each partition, with the rows that went. Earlier snapshots keep the rows until they
    expire. Needs --module, for the asset, and $DAGSTER_HOME. A dry run, unless --execute is given.
    """
    from floe_dagster_iceberg.cli import deletion  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    report = deletion.delete_partitions(Lakehouse.open(**project), table, asset_key, keys, execute=execute)
    _print(report, deletion.show, as_json=as_json)


@main.command("import", short_help="Add existing Parquet files to a table.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@_table
@click.option(
    "--partition-by",
    metavar="FIELD",
    multiple=True,
    help="Partitioning of a new table, as in 'region' or 'day(ts)'; can be repeated.",
)
@click.option("--create", is_flag=True, help="Create the table from the files' columns if it does not exist.")
@click.option("--skip-existing", is_flag=True, help="Leave out files that the table has; they are an error otherwise.")
@click.option("--keep-files", is_flag=True, help="Set gc.enabled=false on the table: nothing deletes its files then.")
@click.option("--execute", is_flag=True, help="Add the files; without this, only show them.")
@_json
@_with_project
def import_files(paths: tuple[str, ...], table: str, *, project: Project, as_json: bool, **options: Any) -> None:
    """Add the Parquet files at PATH, files or folders, to TABLE in one commit, without rewriting them.

    Partition values come from statistics, or from folders such as 'region=EU'. Files that cannot be right are refused
    with the reason. The files belong to the table from then on. A dry run, unless --execute is given.
    """
    from floe_dagster_iceberg.cli import importing  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    report = importing.import_files(Lakehouse.open(**project), paths, table, **options)
    _print(report, importing.show, as_json=as_json)


@main.command(short_help="Fetch Spark's jars into a folder.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--for",
    "places",
    type=click.Choice(["sqlite", "postgres", "s3", "gcs", "azure"]),
    multiple=True,
    help="Storage or catalog to fetch jars for; can be repeated.",
)
@_json
@_with_cli_errors
def jars(folder: Path, *, places: tuple[str, ...], as_json: bool) -> None:
    """Fetch the jars that Spark needs for Iceberg into FOLDER, for example when building an image.

    With $FLOE_SPARK_JARS set to that folder, Spark starts without a network. REST catalogs need no
    jar of their own.
    """
    from floe_dagster_iceberg.spark.environment import fetch_jars  # noqa: PLC0415

    fetched = fetch_jars(places, folder)
    if not as_json:
        click.echo("\n".join(map(str, fetched)))
        return
    from floe_dagster_iceberg.cli.reports import JarsReport  # noqa: PLC0415

    click.echo(JarsReport(folder=str(folder), jars=[str(jar) for jar in fetched]).model_dump_json(indent=2))


@main.command(short_help="Write a starter project.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@_json
@_with_cli_errors
def init(folder: Path, *, as_json: bool) -> None:
    """Write a starter project into FOLDER: two assets, a check, their maintenance, and artifacts.

    Existing files are not overwritten. The project needs neither Java nor a server.
    """
    written = [str(path) for path in _write_starter(folder)]
    if as_json:
        from floe_dagster_iceberg.cli.reports import StarterReport  # noqa: PLC0415

        report = StarterReport(folder=str(folder), files=written, next_commands=_NEXT_COMMANDS)
        click.echo(report.model_dump_json(indent=2))
        return
    for path in written:
        click.echo(f"wrote {path}")
    click.echo(f"\nNext:\n  cd {folder}")
    for command in _NEXT_COMMANDS:
        click.echo(f"  {command}")


def _maintain(
    glob: str,
    operations: tuple[str, ...],
    *,
    dry_run: bool,
    project: Project,
    engine: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    from floe_dagster_iceberg.cli import console, maintain  # noqa: PLC0415
    from floe_dagster_iceberg.cli.lakehouse import Lakehouse  # noqa: PLC0415

    report = maintain.maintain(
        Lakehouse.open(**project),
        glob,
        [MaintenanceOperation(name) for name in OPERATIONS if name in operations],
        dry_run=dry_run,
        engine=None if engine is None else MaintenanceEngine(engine),
        errors=console.open_console(to_errors=True),
    )
    command_for = functools.partial(maintain.command_for, glob=glob, engine=engine, **project)
    show = functools.partial(maintain.show, command_for=command_for, everything=everything)
    _print(report, show, as_json=as_json)
    if any(entry.status is MaintenanceStatus.FAILED for entry in report.entries):
        sys.exit(1)


def _write_starter(folder: Path) -> list[Path]:
    """Write the starter into a folder, all files or none, and return their paths."""
    paths = {name: folder / path for name, path in _STARTER_FILES.items()}
    if existing := [str(path) for path in paths.values() if path.exists()]:
        raise ValidationError(f"Files exist already and were not changed: {', '.join(existing)}. Name another folder.")
    try:
        for name, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((files(starter) / name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"'{folder}' is not writable: {error.strerror}. Name another folder.") from error
    return list(paths.values())


def _print(report: BaseModel, show: Callable[..., None], *, as_json: bool) -> None:
    if as_json:
        click.echo(redact(report.model_dump_json(indent=2)))
        return
    from floe_dagster_iceberg.cli.console import open_console  # noqa: PLC0415

    show(report, open_console())

"""`floe-iceberg doctor`: checks of the environment of pipelines."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from dagster import DagsterInvalidConfigError, DefaultScheduleStatus, Definitions, validate_run_config
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, NestedField
from rich.console import Console

from floe_dagster_iceberg.artifacts.sources import FILE_VARIABLE
from floe_dagster_iceberg.cli.console import Listing, cell
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.cli.reports import Check, CheckState, DoctorReport
from floe_dagster_iceberg.errors import CatalogConnectionError, FloeStorageError
from floe_dagster_iceberg.factory import create_iceberg_resources
from floe_dagster_iceberg.maintenance.assets import job_name
from floe_dagster_iceberg.models import MaintenanceOperation
from floe_dagster_iceberg.models.identifiers import split_parts
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.plugins.base import run_within
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.secrets import redact

# A working store responds within a second; a wrong address may never.
_STORAGE_SECONDS: Final = 20.0
_CATALOG_SECONDS: Final = 30.0
_STYLES: Final = {
    CheckState.OK: "green",
    CheckState.WARNING: "yellow",
    CheckState.FAILED: "bold red",
    CheckState.SKIPPED: "dim",
}
# A code location loads in seconds; one that waits for a server may never.
_LOADING_SECONDS: Final = 120.0
_PACKAGES: Final = ("floe-dagster-iceberg", "dagster", "pyiceberg", "pyspark", "pyarrow")

Finding = tuple[CheckState, str]


def run_checks(artifacts: Path | None = None, module: str | None = None, *, spark: bool) -> DoctorReport:
    """Run all checks, those of Java and jars only with `spark`; a failure is part of the report, never an error."""
    checks = list(_checks(artifacts, module, spark=spark))
    return DoctorReport(healthy=all(check.state is not CheckState.FAILED for check in checks), checks=checks)


def show(report: DoctorReport, console: Console) -> None:
    """Print a line per check."""
    listing = Listing("check", "state", "what was found", wrapped="what was found")
    for check in report.checks:
        listing.add(check.name, cell(check.state.value, _STYLES[check.state]), check.message)
    listing.print(console)
    failed = sum(check.state is CheckState.FAILED for check in report.checks)
    console.print()
    console.print("All checks passed." if report.healthy else f"{counted(failed, 'check')} failed, see above.")


def _checks(artifacts: Path | None, module: str | None, *, spark: bool) -> Iterator[Check]:
    yield _check("versions", _versions)
    opened: list[Lakehouse] = []
    if module is not None:
        yield _check("code location", lambda: _module(module, opened))
    else:
        yield _check("artifacts", lambda: _artifacts(artifacts, opened))
        if (named_in := _workspace()) is not None:
            yield _check("code location", lambda: _code_location(named_in))
    if not opened:
        yield Check(
            name="catalog",
            state=CheckState.SKIPPED,
            message="Without artifacts or definitions there is no catalog to check.",
        )
        return
    [lakehouse] = opened
    yield _check("maintenance settings", lambda: _maintenance_settings(lakehouse))
    catalog = _check("catalog", lambda: _catalog(lakehouse))
    yield catalog
    yield _unless_reported(catalog, _check("storage", lambda: _storage(lakehouse)))
    if catalog.state is CheckState.OK:
        yield _check("permissions", lambda: _permissions(lakehouse))
    if spark:
        yield _check("java", lambda: _java(lakehouse))
        yield _unless_reported(catalog, _check("jars", lambda: _jars(lakehouse)))


def _check(name: str, run: Callable[[], Finding]) -> Check:
    try:
        state, message = run()
    except FloeStorageError as error:
        state, message = CheckState.FAILED, str(error)
    return Check(name=name, state=state, message=redact(message))


def _unless_reported(earlier: Check, check: Check) -> Check:
    """Report the same error only once."""
    if check.state is CheckState.FAILED and check.message == earlier.message:
        return Check(name=check.name, state=CheckState.SKIPPED, message=f"Same error as {earlier.name}.")
    return check


def _versions() -> Finding:
    installed = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return CheckState.OK, f"{installed}, Python {platform.python_version()}"


def _artifacts(given: Path | None, opened: list[Lakehouse]) -> Finding:
    lakehouse = Lakehouse.open(given)
    opened.append(lakehouse)
    if lakehouse.file is None:
        return CheckState.OK, "None: the embedded default, a SQLite catalog and local files."
    named_by = "--artifacts" if given else f"${FILE_VARIABLE}" if os.environ.get(FILE_VARIABLE) else "its default path"
    catalog = lakehouse.iceberg
    return CheckState.OK, f"{lakehouse.file} (by {named_by}): {catalog.catalog_type} catalog '{catalog.catalog_name}'."


def _module(name: str, opened: list[Lakehouse]) -> Finding:
    lakehouse = Lakehouse.open(module=name)
    opened.append(lakehouse)
    if lakehouse.code is None:
        raise AssertionError("a lakehouse that was opened by a module has its code location")
    Definitions.validate_loadable(lakehouse.code.definitions)
    assets = len(list(lakehouse.code.definitions.resolve_all_asset_keys()))
    return CheckState.OK, f"Module '{name}' loads: {counted(assets, 'asset')}."


def _workspace() -> str | None:
    """The file in the working directory that names code locations to Dagster, if there is one."""
    if Path("workspace.yaml").is_file():
        return "workspace.yaml"
    project = Path("pyproject.toml")
    if project.is_file() and re.search(r"^\[tool\.(dagster|dg)\b", project.read_text(encoding="utf-8"), re.MULTILINE):
        return project.name
    return None


def _code_location(named_in: str) -> Finding:
    """Load it as Dagster does, in another process: it may change this one."""
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "--log-level", "error"]
    try:
        with TemporaryDirectory() as home:
            # Without one, Dagster creates it in the working directory, which may be read-only.
            known = {"DAGSTER_HOME": home, **os.environ}
            done = subprocess.run(  # noqa: S603 - Dagster's own
                command, capture_output=True, text=True, timeout=_LOADING_SECONDS, check=False, env=known
            )
    except subprocess.TimeoutExpired:
        return CheckState.FAILED, f"The code location of {named_in} did not load within {_LOADING_SECONDS:.0f} seconds."
    if done.returncode == 0:
        return CheckState.OK, f"The code location of {named_in} loads."
    lines = [line.strip() for line in done.stderr.splitlines() + done.stdout.splitlines()]
    # The last error is the cause of those before it.
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    reason = errors[-1] if errors else "its error is unknown"
    return CheckState.FAILED, (
        f"The code location of {named_in} does not load: {reason}. 'dagster definitions validate' shows the traceback."
    )


def _maintenance_settings(lakehouse: Lakehouse) -> Finding:
    """Build maintenance definitions with the policy, schedules, presets and executor of the artifacts."""
    if lakehouse.code is not None:
        warning = lakehouse.sources.resolve().warning
        return (CheckState.WARNING, warning) if warning else (CheckState.OK, "The policy given in Python is valid.")
    bundle = create_iceberg_resources(None if lakehouse.file is None else lakehouse.artifacts)
    definitions = bundle.definitions()
    Definitions.validate_loadable(definitions)
    try:
        # Dagster validates the executor's config only in a run.
        validate_run_config(definitions.resolve_job_def(job_name(MaintenanceOperation.COMPACTION)))
    except DagsterInvalidConfigError as error:
        # Only the path and the error; the value and all allowed fields follow.
        what = re.split(r"\. (?=Expected:|Value )|\n", error.errors[0].message, maxsplit=1)[0]
        return CheckState.FAILED, f"plugins.orchestrator.config.executor.config is not valid: {what}."
    running = sum(schedule.default_status is DefaultScheduleStatus.RUNNING for schedule in bundle.schedules)
    warning = lakehouse.sources.resolve().warning
    if warning is not None:
        return CheckState.WARNING, warning
    return CheckState.OK, f"They are valid. {running} of {len(bundle.schedules)} maintenance schedules are running."


def _catalog(lakehouse: Lakehouse) -> Finding:
    if (file := lakehouse.missing_file) is not None:
        return _not_there_yet(file)
    try:
        # Longer than a health check: the cause of an outage is known only after all retries.
        namespaces = run_within(_CATALOG_SECONDS, lakehouse.tables.list_namespaces)
    except TimeoutError as error:
        raise CatalogConnectionError(lakehouse.iceberg.catalog_name, reason=str(error)) from error
    return CheckState.OK, f"It responds. Namespaces: {len(namespaces)}."


def _not_there_yet(file: Path) -> Finding:
    folder = next(parent for parent in file.parents if parent.exists())
    if os.access(folder, os.W_OK):
        return CheckState.SKIPPED, f"It does not exist yet; the first materialization creates '{file}'."
    return CheckState.FAILED, f"'{folder}' is not writable, so '{file}' cannot be created. Set FLOE_HOME to a folder."


def _storage(lakehouse: Lakehouse) -> Finding:
    if lakehouse.missing_file is not None:
        return CheckState.SKIPPED, "It does not exist yet; it is created together with the catalog."
    if lakehouse.iceberg.storage_plugin is None:
        return CheckState.SKIPPED, "The catalog decides it table by table."
    try:
        run_within(_STORAGE_SECONDS, lakehouse.iceberg.check_storage)
    except TimeoutError as error:
        raise CatalogConnectionError(lakehouse.iceberg.catalog_name, reason=f"its storage gave {error}") from error
    return CheckState.OK, "A probe was written and removed."


def _permissions(lakehouse: Lakehouse) -> Finding:
    """Do what the first materialization of an asset will do, and leave nothing behind."""
    name, namespaces = lakehouse.iceberg.catalog_name, lakehouse.tables.list_namespaces()
    probe = f"floe_doctor_{uuid4().hex[:8]}"
    if lakehouse.iceberg.catalog_type == "sql":
        lakehouse.tables.create_namespace(probe)
        lakehouse.tables.drop_namespace(probe)
        return CheckState.OK, "Namespaces can be created and dropped."
    if not namespaces:
        return CheckState.SKIPPED, "There is no namespace to check it in yet."
    namespace = lakehouse.iceberg.default_namespace
    namespace = namespace if namespace in namespaces else namespaces[0]
    # A server checks the permissions of a staged table; without a commit, no table is created.
    with translate_errors(name, table=f"{namespace}.{probe}"):
        column = NestedField(1, "probe", BooleanType(), required=False)
        lakehouse.iceberg.catalog.create_table_transaction((*split_parts(namespace), probe), Schema(column))
    return CheckState.OK, f"Tables can be created in namespace '{namespace}'."


def _java(lakehouse: Lakehouse) -> Finding:
    if lakehouse.spark.remote is not None:
        return CheckState.SKIPPED, "Spark runs on a Connect server; Java is not needed here."
    from floe_dagster_iceberg.spark.environment import ensure_java  # noqa: PLC0415 - Spark is optional here

    return CheckState.OK, f"Java {ensure_java()}"


def _jars(lakehouse: Lakehouse) -> Finding:
    if lakehouse.spark.remote is not None:
        return CheckState.SKIPPED, "Spark runs on a Connect server, which has its own."
    from floe_dagster_iceberg.spark.environment import find_jars  # noqa: PLC0415 - it loads PySpark

    found = find_jars(lakehouse.iceberg.spark_packages(), lakehouse.spark.spark_config)
    if not found.missing:
        return CheckState.OK, found.source
    return CheckState.WARNING, (
        f"Spark fetches {', '.join(found.missing)} when it first starts. Without a network, put the jars into a folder "
        "and name it by FLOE_SPARK_JARS."
    )

"""`floe-iceberg doctor`: checks of the environment of pipelines."""

import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
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
from floe_dagster_iceberg.maintenance.schedules import job_name
from floe_dagster_iceberg.models import MaintenanceOperation
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
_PACKAGES: Final = ("floe-dagster-iceberg", "dagster", "pyiceberg", "pyspark", "pyarrow")

Finding = tuple[CheckState, str]


def run_checks(artifacts: Path | None, *, spark: bool) -> DoctorReport:
    """Run all checks, those of Java and jars only with `spark`; a failure is part of the report, never an error."""
    checks = list(_checks(artifacts, spark=spark))
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


def _checks(artifacts: Path | None, *, spark: bool) -> Iterator[Check]:
    yield _check("versions", _versions)
    opened: list[Lakehouse] = []
    yield _check("artifacts", lambda: _artifacts(artifacts, opened))
    if not opened:
        yield Check(name="catalog", state=CheckState.SKIPPED, message="Without artifacts there is no catalog to check.")
        return
    [lakehouse] = opened
    yield _check("definitions", lambda: _definitions(lakehouse))
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


def _definitions(lakehouse: Lakehouse) -> Finding:
    """Load a code location with these artifacts: policy, schedules, presets and executor."""
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
    return CheckState.OK, f"They load. {running} of {len(bundle.schedules)} maintenance schedules are running."


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
        lakehouse.iceberg.catalog.create_table_transaction((*namespace.split("."), probe), Schema(column))
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

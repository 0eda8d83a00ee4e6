"""Commits through Spark SQL, for tables that PyIceberg cannot commit to."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import SparkSession, functions as sf

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.spark import table_changes
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, FailureKind, kind_of, name_of, redacted, to_error
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.procedures import SparkProvider
from floe_dagster_iceberg.spark.table_changes import Statement
from floe_dagster_iceberg.spark.types import check_types, spark_table
from floe_dagster_iceberg.table.commit.commit import load_table_or_none, refresh
from floe_dagster_iceberg.table.names import table_name, to_identifier
from floe_dagster_iceberg.table.storage import delete_many
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, step

# What Iceberg and Spark say where another writer was faster; the change is planned again on what it left.
_OVERTAKEN: Final = (
    "Cannot fast-forward",
    "Still referenced by refs",
    "already exists",
    "ALREADY_EXISTS",
    "does not exist: ",
    "is not an ancestor",
)
_TABLE_EXISTS: Final = ("TABLE_OR_VIEW_ALREADY_EXISTS", "AlreadyExistsException", "Table already exists")


class SparkCommitter:
    """Changes tables of a newer format version than PyIceberg can commit to.

    Args:
        session: Returns a session with the catalog; called when it is first needed, which is what starts Spark.
    """

    def __init__(self, session: SparkProvider) -> None:
        self._session = session

    def create_table(
        self,
        catalog: Catalog,
        table: TableIdentifier,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
        *,
        location: str | None = None,
    ) -> Table:
        """Create an empty table, in the format version that its properties name.

        Raises:
            TableAlreadyExistsError: There is a table of that name.
            EngineCapabilityError: Spark does not have a type of the schema.
        """
        name = spark_table(catalog.name, table)
        create, *changes = table_changes.create_table(name, schema, spec, properties, location=location)
        try:
            self._run(catalog.name, table, [create])
        except errors.CommitConflictError as lost:
            if any(word in str(getattr(lost.__cause__, "original", "")) for word in _TABLE_EXISTS):
                raise errors.TableAlreadyExistsError(table) from lost.__cause__
            raise
        try:
            self._run(catalog.name, table, changes)
        except BaseException:
            _drop_if_empty(catalog, table)
            raise
        with translate_errors(catalog.name, table=table):
            return catalog.load_table(table.as_tuple)

    def change_table(self, table: Table, after: TableMetadata) -> None:
        """Turn a table into another version, and refresh the handle. Each statement is a commit.

        Raises:
            CommitConflictError: The table is no longer the one that the change was planned on.
            EngineCapabilityError: Spark has no statement for a change, or no type for a column.
        """
        name, catalog, before = spark_table(table.catalog.name, to_identifier(table)), table.catalog, table.metadata
        check_types(before.schema(), table_name(table))
        statements = list(table_changes.change_table(name, catalog.name, before, after))
        planned_on = table.metadata_location
        # Statements cannot require what the change was planned on. This leaves a short time for other writers, in
        # which only the checks of Iceberg's own statements apply.
        refresh(table)
        if table.metadata_location != planned_on:
            raise errors.CommitConflictError(table_name(table), attempts=1, reason="the table changed meanwhile")
        try:
            self._run(catalog.name, to_identifier(table), statements)
        finally:
            refresh(table)

    def upgrade_format(self, table: Table, version: int) -> None:
        """Upgrade a table to a newer format version, and refresh the handle."""
        self._alter(table, lambda name: table_changes.upgrade_format(name, version))

    def create_first_branch(self, table: Table, branch: str) -> None:
        """Create a branch of a table without snapshots, and refresh the handle."""
        self._alter(table, lambda name: table_changes.create_first_branch(name, branch))

    def _alter(self, table: Table, statement: Callable[[str], Statement]) -> None:
        identifier, catalog = to_identifier(table), table.catalog.name
        check_types(table.schema(), identifier)
        self._run(catalog, identifier, [statement(spark_table(catalog, identifier))])
        refresh(table)

    def _run(self, catalog: str, table: TableIdentifier, statements: Iterable[Statement]) -> None:
        session, name = self._session(), spark_table(catalog, table)
        for statement in statements:
            try:
                with step("change_table", {**describe_table(table), attrs.ENGINE: "spark"}):
                    run_action(session, partial(_execute, session, statement, name))
            except SPARK_ERRORS as error:
                raise _to_error(error, catalog=catalog, table=table) from redacted(error)


def _drop_if_empty(catalog: Catalog, table: TableIdentifier) -> None:
    """Undo a creation of which only the first statements were executed."""
    try:
        created = load_table_or_none(catalog, table)
        if created is None or created.metadata.snapshots:
            return
        with translate_errors(catalog.name, table=table):
            catalog.drop_table(table.as_tuple)
            delete_many(created.io, sorted(metadata_files(created)))
    except errors.FloeStorageError:
        # The first failure is the one to report; an empty table does no harm.
        return


def metadata_files(table: Table) -> set[str]:
    """Metadata files of all versions that a table knows."""
    return {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}


def _execute(session: SparkSession, statement: Statement, table: str) -> None:
    if statement.reserved:
        _set_reserved(session, table, statement.reserved)
        return
    values = {
        name: sf.array(*map(sf.lit, value)) if isinstance(value, list) else value
        for name, value in statement.values.items()
    }
    with warnings.catch_warnings():
        # PySpark leaves the socket of a result to the garbage collector, which warns about it.
        warnings.filterwarnings("ignore", message="unclosed <socket", category=ResourceWarning)
        session.sql(statement.text, args=values).collect()


def _set_reserved(session: SparkSession, table: str, properties: Mapping[str, str]) -> None:
    """Set table properties that Spark's parser refuses, through Iceberg itself; Spark Connect cannot."""
    jvm, java_session = getattr(session, "_jvm", None), getattr(session, "_jsparkSession", None)
    if jvm is None or java_session is None:
        raise errors.EngineCapabilityError(
            f"Spark Connect cannot set the table property {', '.join(map(repr, properties))}: its name is reserved by "
            "Spark. Leave it out, or give it another name.",
            engine="spark",
        )
    update = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java_session, table).updateProperties()
    for key, value in properties.items():
        update.set(key, value)
    update.commit()


def _to_error(error: BaseException, *, catalog: str, table: TableIdentifier) -> errors.FloeStorageError:
    match kind_of(error):
        case FailureKind.ROWS_CHANGED | FailureKind.COMMIT_LOST:
            return errors.CommitConflictError(table, attempts=1, reason="other writers were faster")
        case FailureKind.OUTCOME_UNKNOWN:
            return errors.CommitOutcomeUnknownError(table, snapshot_id=None, reason=name_of(error))
        case FailureKind.TABLE_GONE:
            return errors.NoSuchTableError(table)
        case FailureKind.NO_ACCESS | FailureKind.NO_CATALOG | FailureKind.NO_RUNTIME:
            return to_error(error, catalog=catalog, table=table)
    if any(words in str(error) for words in _OVERTAKEN):
        return errors.CommitConflictError(table, attempts=1, reason="another writer made the same change")
    return errors.IcebergError(
        f"Spark could not change table '{table}' ({name_of(error)}). See the cause below.", table=table
    )

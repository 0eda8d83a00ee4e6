"""A DataFrame is written into its table exactly once: the mirror of `table/write/exactly_once.py`.

PyIceberg creates the table and changes its schema, Spark writes the rows: two commits where Arrow
needs one. A first write that fails drops the table again. Rows are checked before they change a
table's columns, but if Spark fails for another reason after that, the new columns stay, and are NULL.
"""

import logging
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.models import SnapshotInfo
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.spark.committer import SparkCommitter, metadata_files
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, redacted, to_error
from floe_dagster_iceberg.spark.frame_rows import stored_columns
from floe_dagster_iceberg.spark.types import to_arrow_schema
from floe_dagster_iceberg.spark.write import write_rows
from floe_dagster_iceberg.table.commit.commit import NEWEST_FORMAT_OF_PYICEBERG, CommitBudget, load_table_or_none
from floe_dagster_iceberg.table.schema.convert import check_format_version, to_iceberg_schema, with_docs
from floe_dagster_iceberg.table.storage import FileLocation, delete_many, list_files
from floe_dagster_iceberg.table.write.create_table import (
    check_new_table,
    ensure_namespace,
    open_new_table,
    properties_of_new_table,
    spec_of_new_table,
)
from floe_dagster_iceberg.table.write.exactly_once import already_written, sort_columns
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, traced_step

_METADATA_SUFFIX = ".metadata.json"
_logger = logging.getLogger(__name__)


def write_once(
    catalog: Catalog,
    frame: DataFrame,
    write: TableWrite,
    budget: CommitBudget,
    *,
    loaded: Table | None = None,
    columns: pa.Schema | None = None,
) -> TableWriteResult:
    """Write a DataFrame's rows into their table. Readers see all of them or none.

    A failure leaves no new table and no snapshot. Repeating the write finds the first one and
    writes nothing.

    Args:
        catalog: The catalog.
        frame: The rows.
        write: How they are written.
        budget: How often to try against other writers.
        loaded: The table, if the caller has just loaded it.
        columns: Columns of a new table, if they are not those of the DataFrame.

    Raises:
        NoSuchTableError: The table is missing and may not be created.
        SchemaEvolutionError: The rows do not fit the table and may not change it.
        RowsOutsidePartitionError: Rows lie outside the partitions, and that is an error.
        CommitConflictError: Other writers won, or changed the rows being replaced.
        CommitOutcomeUnknownError: The catalog or Spark went away in the middle.
        WriteError: The DataFrame could not be computed, or the storage refused its files.
    """
    try:
        for _ in range(budget.retries):
            try:
                return _write(catalog, frame, write, budget, loaded=loaded, columns=columns)
            except errors.NoSuchTableError:
                if not write.create:
                    raise
                # Another process created the table, failed, and dropped it meanwhile.
                loaded = None
        return _write(catalog, frame, write, budget, loaded=None, columns=columns)
    except SPARK_ERRORS as error:
        # Rows that fail their check; and over Spark Connect a DataFrame is only analysed here.
        raise to_error(error, catalog=catalog.name, table=write.table) from redacted(error)


def _write(
    catalog: Catalog,
    frame: DataFrame,
    write: TableWrite,
    budget: CommitBudget,
    *,
    loaded: Table | None,
    columns: pa.Schema | None,
) -> TableWriteResult:
    table = loaded or load_table_or_none(catalog, write.table)
    schema = to_arrow_schema(frame.schema) if columns is None else columns
    schema = stored_columns(schema, write, None if table is None else table.schema())
    write = replace(write, sort_by=sort_columns(schema, write, table))
    if table is not None:
        return already_written(table, write) or write_rows(table, frame, write, budget)
    if not write.create:
        raise errors.NoSuchTableError(write.table)
    try:
        creation = _open_creation(catalog, frame, schema, write)
    except errors.TableAlreadyExistsError:
        # A REST catalog refuses to stage a table that another process has created since it was looked up.
        if (table := load_table_or_none(catalog, write.table)) is None:
            raise
        return already_written(table, write) or write_rows(table, frame, write, budget)
    table = creation.commit()
    try:
        result = already_written(table, write) or write_rows(table, frame, write, budget)
        return replace(result, created=creation.is_ours and not result.deduplicated)
    except errors.CommitOutcomeUnknownError:
        raise
    except BaseException:
        creation.undo()
        raise


def _describe(creation: "_Creation") -> dict[str, Any]:
    return {**describe_table(creation.name), attrs.ENGINE: creation.engine}


def _open_creation(catalog: Catalog, frame: DataFrame, columns: pa.Schema, write: TableWrite) -> "_Creation":
    check_format_version(write.table, to_iceberg_schema(write.table, columns), write.format_version)
    with translate_errors(catalog.name, table=write.table):
        check_new_table(catalog, write.table)
        ensure_namespace(catalog, write.table.namespace_parts)
        if write.format_version > NEWEST_FORMAT_OF_PYICEBERG:
            return _CreationBySpark(catalog, columns, write, SparkCommitter(lambda: frame.sparkSession))
        return _CreationByPyIceberg(catalog, columns, write)


class _Creation(ABC):
    """A new table, dropped again if its first write fails."""

    engine: ClassVar[str]

    def __init__(self, catalog: Catalog, write: TableWrite) -> None:
        self._catalog, self.name = catalog, write.table
        self._files_before: set[str] = set()
        self.is_ours = False

    @abstractmethod
    def _create(self) -> Table:
        """Create the empty table."""

    @traced_step("create_table", _describe)
    def commit(self) -> Table:
        """Return the empty table, or the one that another process created at the same time."""
        try:
            with translate_errors(self._catalog.name, table=self.name):
                table = self._create()
        except (errors.TableAlreadyExistsError, errors.CommitConflictError):
            existing = load_table_or_none(self._catalog, self.name)
            if existing is None:
                raise
            return existing
        self.is_ours = True
        return table

    def undo(self) -> None:
        """Drop the table and delete its files, unless another process created it or wrote to it."""
        try:
            table = load_table_or_none(self._catalog, self.name) if self.is_ours else None
            snapshots = [] if table is None else map(SnapshotInfo.from_pyiceberg_snapshot, table.metadata.snapshots)
            if table is None or any(snapshot.added_files for snapshot in snapshots):
                return
            with translate_errors(self._catalog.name, table=self.name):
                files = self._own_files(table)
                self._catalog.drop_table(self.name.as_tuple)
                delete_many(table.io, sorted(files))
        except errors.FloeStorageError:
            # The first failure is the one to report; an empty table does no harm.
            return

    def _own_files(self, table: Table) -> set[str]:
        """The files that the table wrote itself, as far as that is certain.

        Iceberg's Spark writer leaves the files of tasks that had finished when another one failed, and their names do
        not tell whose they are. Another table may keep its files in the same place: one that was renamed, or one of a
        nested namespace. So everything below the location is the table's own only if nothing was there before, and
        no other table's metadata is there now. Otherwise it is only the metadata.
        """
        metadata = metadata_files(table)
        known, found = {FileLocation.of(file) for file in metadata}, _list_files(table)
        others = [file for file in found if file.endswith(_METADATA_SUFFIX) and FileLocation.of(file) not in known]
        if not self._files_before and not others:
            return found
        _logger.warning(
            "The first write to '%s' failed. Other tables may have files below its location %s, so its data files were "
            "not deleted.",
            self.name,
            table.location(),
        )
        return metadata


class _CreationByPyIceberg(_Creation):
    engine = "pyiceberg"

    def __init__(self, catalog: Catalog, columns: pa.Schema, write: TableWrite) -> None:
        super().__init__(catalog, write)
        self._transaction = open_new_table(catalog, columns, write)
        self._files_before = _list_files(self._transaction.table)

    def _create(self) -> Table:
        return self._transaction.commit_once()


class _CreationBySpark(_Creation):
    """For format versions that PyIceberg cannot write."""

    engine = "spark"

    def __init__(self, catalog: Catalog, columns: pa.Schema, write: TableWrite, spark: SparkCommitter) -> None:
        super().__init__(catalog, write)
        self._spark = spark
        self._schema = with_docs(to_iceberg_schema(write.table, columns), write.column_docs)
        self._spec, self._properties = spec_of_new_table(self._schema, write), properties_of_new_table(write)

    def _create(self) -> Table:
        table = self._spark.create_table(self._catalog, self.name, self._schema, self._spec, self._properties)
        # Its location is known only now. Hadoop writes checksums beside local files.
        names = [location.rpartition("/")[2] for location in metadata_files(table)]
        self._files_before = {each for each in _list_files(table) if not any(name in each for name in names)}
        return table


def _list_files(table: Table) -> set[str]:
    return {file.location for file in list_files(table.io, table.location())}

"""A DataFrame is written into its table exactly once: the mirror of `table/write/exactly_once.py`.

PyIceberg creates the table and changes its schema, Spark writes the rows: two commits where Arrow
needs one. A first write that fails drops the table again. Rows are checked before they change a
table's columns, but if Spark fails for another reason after that, the new columns stay, and are NULL.
"""

from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.models import SnapshotInfo
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, redacted, to_error
from floe_dagster_iceberg.spark.types import to_arrow_schema
from floe_dagster_iceberg.spark.write import write_rows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, load_table_or_none
from floe_dagster_iceberg.table.storage import delete_many, list_files
from floe_dagster_iceberg.table.write.create_table import ensure_namespace, open_new_table
from floe_dagster_iceberg.table.write.exactly_once import already_written, sort_columns
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, traced_step


def write_once(catalog: Catalog, frame: DataFrame, write: TableWrite, budget: CommitBudget) -> TableWriteResult:
    """Write a DataFrame's rows into their table. Readers see all of them or none.

    A failure leaves no new table and no snapshot. Repeating the write finds the first one and
    writes nothing.

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
                return _write(catalog, frame, write, budget)
            except errors.NoSuchTableError:
                if not write.create:
                    raise
                # Another process created the table, failed, and dropped it meanwhile.
        return _write(catalog, frame, write, budget)
    except SPARK_ERRORS as error:
        # Rows that fail their check; and over Spark Connect a DataFrame is only analysed here.
        raise to_error(error, catalog=catalog.name, table=write.table) from redacted(error)


def _write(catalog: Catalog, frame: DataFrame, write: TableWrite, budget: CommitBudget) -> TableWriteResult:
    table, columns = load_table_or_none(catalog, write.table), to_arrow_schema(frame.schema)
    write = replace(write, sort_by=sort_columns(columns, write, table))
    if table is not None:
        return already_written(table, write) or write_rows(table, frame, write, budget)
    if not write.create:
        raise errors.NoSuchTableError(write.table)
    try:
        creation = _Creation(catalog, columns, write)
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
    return {**describe_table(creation.name), attrs.ENGINE: "pyiceberg"}


class _Creation:
    """A new table, dropped again if its first write fails."""

    def __init__(self, catalog: Catalog, columns: pa.Schema, write: TableWrite) -> None:
        self._catalog, self.name = catalog, write.table
        with translate_errors(catalog.name, table=write.table):
            ensure_namespace(catalog, write.table.namespace_parts)
            self._transaction = open_new_table(catalog, columns, write)
            self._files_before = self._list_files()
        self.is_ours = False

    @traced_step("create_table", _describe)
    def commit(self) -> Table:
        """Return the empty table, or the one that another process created at the same time."""
        try:
            with translate_errors(self._catalog.name, table=self.name):
                table = self._transaction.commit_once()
        except (errors.TableAlreadyExistsError, errors.CommitConflictError):
            existing = load_table_or_none(self._catalog, self.name)
            if existing is None:
                raise
            return existing
        self.is_ours = True
        return table

    def undo(self) -> None:
        """Drop the table and delete its files, unless another process created it or wrote to it.

        Iceberg's Spark writer leaves the files of tasks that had finished when another one failed. In
        a new table those are the files that were not there before.
        """
        try:
            table = load_table_or_none(self._catalog, self.name) if self.is_ours else None
            snapshots = [] if table is None else map(SnapshotInfo.from_pyiceberg_snapshot, table.metadata.snapshots)
            if table is None or any(snapshot.added_files for snapshot in snapshots):
                return
            with translate_errors(self._catalog.name, table=self.name):
                files = self._list_files() - self._files_before
                self._catalog.drop_table(self.name.as_tuple)
                delete_many(table.io, sorted(files))
        except errors.FloeStorageError:
            # The first failure is the one to report; an empty table does no harm.
            return

    def _list_files(self) -> set[str]:
        staged = self._transaction.table
        return {file.location for file in list_files(staged.io, staged.location())}

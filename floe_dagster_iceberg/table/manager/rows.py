"""The table manager's operations on rows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.models import CommitStrategy, RowFilter, SnapshotInfo, WriteConfig, WriteMode
from floe_dagster_iceberg.models.writing import EvolutionMode, OnMatch, OnMissing
from floe_dagster_iceberg.table.arrow_input import to_arrow_rows
from floe_dagster_iceberg.table.filter.row_filter import to_row_filter
from floe_dagster_iceberg.table.manager.base import MetadataSession, table_attributes
from floe_dagster_iceberg.table.names import TableRef, to_identifier
from floe_dagster_iceberg.table.write.add_files import FileImport, FileImportPlan, import_files, plan_import
from floe_dagster_iceberg.table.write.delete import delete_rows
from floe_dagster_iceberg.table.write.handover import hand_over
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite, check_write, write_rows
from floe_dagster_iceberg.telemetry import annotate, attributes as attrs, set_written_attributes, traced


def _mode_attributes(mode: WriteMode) -> Callable[..., dict[str, Any]]:
    def describe(table: TableRef, *_: Any, **__: Any) -> dict[str, Any]:
        return {**table_attributes(table), attrs.WRITE_MODE: mode.value}

    return describe


def _config_attributes(
    table: TableRef, data: Any = None, config: WriteConfig | None = None, **keywords: Any
) -> dict[str, Any]:
    del data
    mode = config.mode if config is not None else keywords.get("mode", WriteMode.APPEND)
    return {**table_attributes(table), attrs.WRITE_MODE: str(mode)}


class RowOperations(MetadataSession):
    """Writing and deleting rows. Each call is one commit that readers see whole or not at all."""

    @traced("append", _mode_attributes(WriteMode.APPEND), report=set_written_attributes)
    def append(
        self,
        table: TableRef,
        data: Any,
        *,
        evolve_schema: bool = True,
        commit_strategy: CommitStrategy | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> SnapshotInfo:
        """Add rows to a table.

        Args:
            table: The table.
            data: Arrow table, batch or reader, pandas or polars DataFrame. A reader is streamed with bounded memory.
            evolve_schema: Whether new columns, wider types and NULLs in required columns change the schema.
            commit_strategy: How manifests are treated; the manager's default if not given.
            snapshot_properties: Properties of the snapshot summary.
            branch: Branch to write to; a new one starts at main.

        Raises:
            NoSuchTableError: There is no such table.
            SchemaEvolutionError: The rows do not fit and may not change the schema.
            CommitConflictError: Other writers won more often than the retry budget allows.
        """
        return self._write(
            table,
            data,
            mode=WriteMode.APPEND,
            commit_strategy=commit_strategy,
            snapshot_properties=snapshot_properties,
            branch=branch,
            evolve_schema=evolve_schema,
        )

    @traced("overwrite", _mode_attributes(WriteMode.OVERWRITE), report=set_written_attributes)
    def overwrite(
        self,
        table: TableRef,
        data: Any,
        *,
        overwrite_filter: RowFilter | None = None,
        evolve_schema: bool = True,
        commit_strategy: CommitStrategy | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> SnapshotInfo:
        """Replace the rows matching a filter, or all rows, in one snapshot.

        Readers see the old rows or the new ones, never a mixture. Running the same call again
        replaces what the first run wrote. Rows matching the filter that another writer commits
        after the table was loaded are a conflict; with the table property
        `write.update.isolation-level=snapshot`, rows that were only added stay.

        Args:
            table: The table. A handle counts as loaded when its holder loaded it.
            data: The new rows; may be empty.
            overwrite_filter: Which rows to replace, as text or PyIceberg expression; all if not given.
            evolve_schema: Whether the rows may change the schema.
            commit_strategy: How manifests are treated; the manager's default if not given.
            snapshot_properties: Properties of the snapshot summary.
            branch: Branch to write to; a new one starts at main.

        Raises:
            NoSuchTableError: There is no such table.
            SchemaEvolutionError: The rows do not fit and may not change the schema.
            CommitConflictError: Others changed the same rows, or won more often than the budget allows.
        """
        return self._write(
            table,
            data,
            mode=WriteMode.OVERWRITE,
            overwrite_filter=overwrite_filter,
            commit_strategy=commit_strategy,
            snapshot_properties=snapshot_properties,
            branch=branch,
            evolve_schema=evolve_schema,
        )

    @traced("upsert", _mode_attributes(WriteMode.UPSERT), report=set_written_attributes)
    def upsert(
        self,
        table: TableRef,
        data: Any,
        join_columns: Sequence[str],
        *,
        evolve_schema: bool = True,
        commit_strategy: CommitStrategy | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> SnapshotInfo:
        """Update the rows whose key exists, add the others.

        The rows are held in memory. Columns that they lack keep their values in updated rows.
        Two upserts of the same new key at the same time make one row.

        Args:
            table: The table.
            data: The rows; no two may share a key.
            join_columns: Columns that identify a row; NULL in them is refused.
            evolve_schema: Whether the rows may change the schema.
            commit_strategy: How manifests are treated; the manager's default if not given.
            snapshot_properties: Properties of the snapshot summary.
            branch: Branch to write to; a new one starts at main.

        Raises:
            ValidationError: A join column is missing or holds NULL, or rows repeat a key.
            SchemaEvolutionError: The rows do not fit and may not change the schema.
            CommitConflictError: Other writers won more often than the retry budget allows.
        """
        return self._write(
            table,
            data,
            mode=WriteMode.UPSERT,
            join_columns=join_columns,
            commit_strategy=commit_strategy,
            snapshot_properties=snapshot_properties,
            branch=branch,
            evolve_schema=evolve_schema,
        )

    @traced("merge", _mode_attributes(WriteMode.UPSERT), report=set_written_attributes)
    def merge(
        self,
        table: TableRef,
        data: Any,
        join_columns: Sequence[str],
        *,
        delete_when: RowFilter | None = None,
        order_by: Sequence[str] = (),
        on_match: OnMatch = "update",
        update_columns: Sequence[str] = (),
        on_missing: OnMissing = "keep",
        evolve_schema: bool = True,
        commit_strategy: CommitStrategy | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> SnapshotInfo:
        """Update, insert and delete rows by key, in one snapshot; without options, this is `upsert`.

        Args:
            table: The table.
            data: The rows, which are held in memory.
            join_columns: Columns that identify a row; NULL in them is refused.
            delete_when: Which rows of the data delete the row of their key: the name of a boolean column, which is not
                stored unless the table has it, or a filter such as "op = 'D'".
            order_by: Columns that say which row is newer. Of several rows with one key the newest counts, and only if
                it is not older than that of the table.
            on_match: "ignore" leaves rows whose key is in the data as they are.
            update_columns: The columns that an update changes; all that the data has if not given.
            on_missing: "delete" deletes all rows of the table whose key is not in the data.
            evolve_schema: Whether the rows may change the schema.
            commit_strategy: How manifests are treated; the manager's default if not given.
            snapshot_properties: Properties of the snapshot summary.
            branch: Branch to write to; a new one starts at main.

        Raises:
            ValidationError: A column is missing, a key or order is NULL, rows of one key cannot be told apart, or the
                options contradict each other.
            SchemaEvolutionError: The rows do not fit and may not change the schema.
            CommitConflictError: Other writers won more often than the retry budget allows.
        """
        return self._write(
            table,
            data,
            mode=WriteMode.UPSERT,
            join_columns=join_columns,
            delete_when=delete_when,
            order_by=order_by,
            on_match=on_match,
            update_columns=update_columns,
            on_missing=on_missing,
            commit_strategy=commit_strategy,
            snapshot_properties=snapshot_properties,
            branch=branch,
            evolve_schema=evolve_schema,
        )

    @traced("delete", table_attributes, report=set_written_attributes)
    def delete(
        self,
        table: TableRef,
        row_filter: RowFilter,
        *,
        snapshot_properties: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> SnapshotInfo | None:
        """Delete the rows matching a filter; None when there are none and nothing was committed.

        Rows for which the filter is NULL stay.

        Args:
            table: The table, in its newest version even when a handle is given.
            row_filter: Which rows to delete, as text or PyIceberg expression.
            snapshot_properties: Properties of the snapshot summary.
            branch: Branch to delete from; a new one starts at main.

        Raises:
            ValidationError: The filter is invalid, or names a column that does not exist.
            CommitConflictError: Other writers won more often than the retry budget allows.
        """
        settings = _write_config(table, None, {"snapshot_properties": snapshot_properties, "branch": branch})
        # In the version of a stale handle there might be nothing to delete.
        loaded = self._load_newest(table)
        where = to_row_filter(loaded, row_filter)
        properties, on = settings.snapshot_properties, settings.branch or MAIN_BRANCH
        try:
            snapshot = delete_rows(loaded, where, self.budget, snapshot_properties=properties, branch=on)
        except EngineCapabilityError as limit:
            spark, _ = hand_over(limit, self._handover)
            return spark.delete(loaded, where, self.budget, snapshot_properties=properties, branch=on)
        return None if snapshot is None else SnapshotInfo.from_pyiceberg_snapshot(snapshot)

    @traced("write_data", _config_attributes, report=set_written_attributes)
    def write_data(
        self,
        table: TableRef,
        data: Any,
        config: WriteConfig | None = None,
        *,
        evolve_schema: bool = True,
        **keywords: Any,
    ) -> SnapshotInfo:
        """Write rows as a `WriteConfig` says, or as its fields given as keywords say.

        Args:
            table: The table.
            data: Arrow table, batch or reader, pandas or polars DataFrame.
            config: Mode, filter, keys, strategy, snapshot properties and branch.
            evolve_schema: Whether the rows may change the schema.
            **keywords: Fields of WriteConfig, instead of `config`.

        Raises:
            ValidationError: The settings contradict each other, or name columns that do not exist.
            NoSuchTableError: There is no such table.
            SchemaEvolutionError: The rows do not fit and may not change the schema.
            CommitConflictError: Other writers won, or changed the rows being replaced.
        """
        return self._write(table, data, config, evolve_schema=evolve_schema, **keywords)

    @traced("plan_add_files", table_attributes)
    def plan_add_files(self, table: TableRef, paths: Sequence[str | Path], **settings: Any) -> FileImportPlan:
        """Check what `add_files` with the same arguments would add. Changes nothing.

        Args:
            table: The table.
            paths: Files, and folders with files.
            **settings: Further arguments of `add_files`.

        Raises:
            NoSuchTableError: There is no such table, and `create` is not set.
            ValidationError: A file cannot be part of the table; the message says why.
        """
        return plan_import(self.catalog, self._file_import(table, paths, **settings))

    @traced("add_files", table_attributes, report=set_written_attributes)
    def add_files(
        self,
        table: TableRef,
        paths: Sequence[str | Path],
        *,
        partition_by: Sequence[str] = (),
        create: bool = False,
        skip_existing: bool = False,
        keep_files: bool = False,
        snapshot_properties: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> SnapshotInfo | None:
        """Make existing Parquet files part of a table, without rewriting them, in one commit.

        Only footers are read. Files without field ids get a name mapping on the table. Partition values come from
        statistics, or from folders such as 'region=EU' for columns that the files lack. The files belong to the table
        from then on: expiry and `drop_table(purge=True)` delete them like any other.

        Args:
            table: The table.
            paths: Files, and folders with files; names that begin with '_' or '.' are left out.
            partition_by: Partitioning of a new table, such as ["region", "day(ts)"].
            create: Whether a missing table is created with the files' columns.
            skip_existing: Whether files that the table has are left out. Otherwise they are an error.
            keep_files: Whether to set `gc.enabled=false`: no engine then deletes files of the table, and it is not
                expired.
            snapshot_properties: Properties of the snapshot summary.
            branch: Branch to add to; a new one starts at main.

        Returns:
            The snapshot; None if all files were left out.

        Raises:
            NoSuchTableError: There is no such table, and `create` is not set.
            ValidationError: A file is not Parquet, is in the table already, has other columns or types, or its
                partition is not certain. Nothing was changed.
            EngineCapabilityError: PyIceberg does not write the table's format version.
            CommitConflictError: Other writers won more often than the retry budget allows.
        """
        wanted = self._file_import(
            table,
            paths,
            partition_by=partition_by,
            create=create,
            skip_existing=skip_existing,
            keep_files=keep_files,
            snapshot_properties=snapshot_properties,
            branch=branch,
        )
        return import_files(self.catalog, wanted, self.budget)

    def _file_import(
        self,
        table: TableRef,
        paths: Sequence[str | Path],
        *,
        snapshot_properties: Mapping[str, str] | None = None,
        branch: str | None = None,
        **settings: Any,
    ) -> FileImport:
        checked = _write_config(table, None, {"snapshot_properties": snapshot_properties, "branch": branch})
        return FileImport(
            to_identifier(table),
            [paths] if isinstance(paths, str | Path) else list(paths),
            default_properties=self.config.default_table_properties,
            snapshot_properties=checked.snapshot_properties,
            branch=checked.branch or MAIN_BRANCH,
            **settings,
        )

    def _write(
        self, table: TableRef, data: Any, config: WriteConfig | None = None, *, evolve_schema: bool, **keywords: Any
    ) -> SnapshotInfo:
        settings = _write_config(table, config, keywords)
        rows = to_arrow_rows(data)
        loaded = self._load_to_write(table)
        strategy = settings.commit_strategy or self.config.default_commit_strategy
        annotate({attrs.COMMIT_STRATEGY: strategy.value})
        where = settings.overwrite_filter
        write = TableWrite(
            to_identifier(loaded),
            settings.mode,
            scope=RowScope(row_filter=AlwaysTrue() if where is None else to_row_filter(loaded, where)),
            merge=settings.merge_rules,
            evolution=EvolutionMode.WIDEN if evolve_schema else EvolutionMode.NONE,
            snapshot_properties=settings.snapshot_properties,
            branch=settings.branch or MAIN_BRANCH,
            merge_manifests=strategy is CommitStrategy.MERGE_COMMIT,
        )
        budget, catalog = self.budget, self.catalog
        try:
            check_write(loaded, write)
            result = write_rows(loaded, rows, write, budget)
        except EngineCapabilityError as limit:
            spark, _ = hand_over(limit, self._handover, possible=rows.readable)
            result = spark.write(catalog, rows, write, budget, loaded=loaded)
        annotate({attrs.ATTEMPTS: result.attempts})
        return result.snapshot


def _write_config(table: TableRef, config: WriteConfig | None, keywords: dict[str, Any]) -> WriteConfig:
    identifier = to_identifier(table)
    if config is not None and keywords:
        raise ValidationError(
            f"A write to '{identifier}' takes a WriteConfig or keywords, not both: {', '.join(sorted(keywords))}.",
            table=identifier,
        )
    given = {name: value for name, value in keywords.items() if value is not None}
    try:
        return config or WriteConfig(**given)
    except pydantic.ValidationError as error:
        problems = "; ".join(": ".join([*map(str, problem["loc"]), problem["msg"]]) for problem in error.errors())
        raise ValidationError(
            f"A write to '{identifier}' cannot be done as asked: {problems}.", table=identifier
        ) from None

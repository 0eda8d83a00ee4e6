"""Existing Parquet files become part of a table in one commit, without being rewritten."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AssertCurrentSchemaId

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import CreateTransaction, StagedTransaction
from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.models import SnapshotInfo, TableIdentifier
from floe_dagster_iceberg.plugins.base import GC_ENABLED
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import (
    CommitBudget,
    NewTable,
    commit,
    load_table_or_none,
    new_snapshot_id,
    refuse_newer_format,
)
from floe_dagster_iceberg.table.commit.refs import fork_branch, head_of
from floe_dagster_iceberg.table.properties import check_properties, format_version_of
from floe_dagster_iceberg.table.schema.convert import to_iceberg_schema, to_iceberg_spec
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout
from floe_dagster_iceberg.table.storage import FileLocation
from floe_dagster_iceberg.table.write import parquet_files
from floe_dagster_iceberg.table.write.create_table import check_new_table, ensure_namespace
from floe_dagster_iceberg.table.write.write import committed_snapshot

NAME_MAPPING: Final = TableProperties.DEFAULT_NAME_MAPPING
_WHOLE_NUMBER: Final = re.compile(r"0|-?[1-9]\d{0,17}")
_DATE: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


@dataclass(frozen=True)
class FileImport:
    """Files that are to become part of a table.

    Attributes:
        table: The table.
        paths: Files and folders.
        partition_by: Partitioning of a new table in Iceberg's notation; an existing one must have it.
        create: Whether a missing table, and its namespace, is created.
        skip_existing: Whether files that the table has are left out; they are refused otherwise.
        keep_files: Whether the table gets `gc.enabled=false`, so that no engine deletes files of it.
        default_properties: Properties of a new table.
        snapshot_properties: Properties of the snapshot summary.
        branch: Branch to add to.
    """

    table: TableIdentifier
    paths: Sequence[str | Path]
    partition_by: Sequence[str] = ()
    create: bool = False
    skip_existing: bool = False
    keep_files: bool = False
    default_properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    branch: str = MAIN_BRANCH

    @cached_property
    def layout(self) -> PartitionLayout:
        """The partitioning that is asked for.

        Raises:
            ValidationError: A field cannot be parsed.
        """
        try:
            return PartitionLayout.from_strings(self.partition_by)
        except ValueError as error:
            raise ValidationError(
                f"The partitioning of '{self.table}' cannot be parsed: {error}", table=self.table
            ) from None


@dataclass(frozen=True)
class FileImportPlan:
    """What adding files does, checked against the table as it is. Nothing is changed yet.

    Attributes:
        table: The table.
        created: Whether the table is created.
        files: The data files to add.
        partitions: Rows by partition, such as 'region=EU'; the only key is empty without partitions.
        skipped: Files that the table has already.
        empty: How many files have no rows; they are left out.
        sets_name_mapping: Whether the table gets a name mapping, because files have no field ids.
    """

    table: TableIdentifier
    created: bool
    # Not in repr: bounds are values of rows.
    files: tuple[DataFile, ...] = field(repr=False)
    partitions: Mapping[str, int]
    skipped: tuple[str, ...]
    empty: int
    sets_name_mapping: bool

    @property
    def rows(self) -> int:
        return sum(file.record_count for file in self.files)

    @property
    def total_bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in self.files)


def plan_import(catalog: Catalog, wanted: FileImport) -> FileImportPlan:
    """Check files against their table. Changes nothing.

    Raises:
        NoSuchTableError: The table is missing and may not be created.
        ValidationError: A file cannot be part of the table; the message says why.
    """
    with translate_errors(catalog.name, table=wanted.table):
        return _Importer(catalog, wanted).plan()


def import_files(catalog: Catalog, wanted: FileImport, budget: CommitBudget) -> SnapshotInfo | None:
    """Add files to their table in one commit; None if the table has them all.

    Raises:
        NoSuchTableError: The table is missing and may not be created.
        EngineCapabilityError: PyIceberg does not write the table's format version.
        ValidationError: A file cannot be part of the table; the message says why.
        CommitConflictError: Other writers won more often than the budget allows.
    """
    with translate_errors(catalog.name, table=wanted.table):
        return _Importer(catalog, wanted).run(budget)


class _Importer:
    """The footers of one import, checked anew against every version of the table that a commit is tried on."""

    def __init__(self, catalog: Catalog, wanted: FileImport) -> None:
        self._catalog, self._wanted, self._nothing_staged = catalog, wanted, False
        if not wanted.paths:
            raise ValidationError(f"No files for '{wanted.table}' are given. Name Parquet files or folders.")
        self._table = load_table_or_none(catalog, wanted.table)
        if self._table is None and not wanted.create:
            raise NoSuchTableError(wanted.table)
        io = self._io()
        found = parquet_files.find_files(io, wanted.paths)
        self._files = parquet_files.read_footers(io, found)
        self._empty = len(found) - len(self._files)
        if not self._files:
            raise ValidationError(f"The files for '{wanted.table}' have no rows.", table=wanted.table)

    def _io(self) -> FileIO:
        if self._table is not None:
            return self._table.io
        return load_file_io(dict(self._catalog.properties), parquet_files.to_location(self._wanted.paths[0]))

    def plan(self) -> FileImportPlan:
        if self._table is None:
            check_new_table(self._catalog, self._wanted.table)
            metadata, new = self._new_metadata(), self._files
            skipped: list[str] = []
        else:
            self._check_existing(self._table)
            metadata = self._table.metadata
            new, skipped = self._split(self._read_manifests(metadata))
        files = self._to_data_files(metadata, new)
        return FileImportPlan(
            self._wanted.table,
            created=self._table is None,
            files=tuple(files),
            partitions=_rows_by_partition(metadata, files),
            skipped=tuple(skipped),
            empty=self._empty,
            sets_name_mapping=NAME_MAPPING in self._properties(metadata, new),
        )

    def run(self, budget: CommitBudget) -> SnapshotInfo | None:
        if self._table is None:
            check_new_table(self._catalog, self._wanted.table)
            # Before anything is created.
            self._to_data_files(self._new_metadata(), self._files)
            ensure_namespace(self._catalog, self._wanted.table.namespace_parts)
            snapshot_id, target = new_snapshot_id(), NewTable(self._catalog, self._wanted.table, self._open)
            committed = commit(target, partial(self._stage, snapshot_id), budget=budget, snapshot_id=snapshot_id)
            if committed.committed_by_this_process:
                return committed_snapshot(committed, snapshot_id)
            # Another process created the table meanwhile.
            self._table = committed.table
        return self._add_to_existing(self._table, budget)

    def _add_to_existing(self, table: Table, budget: CommitBudget) -> SnapshotInfo | None:
        self._check_existing(table)
        snapshot_id = new_snapshot_id()
        committed = commit(table, partial(self._stage, snapshot_id), budget=budget, snapshot_id=snapshot_id)
        if committed.table.metadata.snapshot_by_id(snapshot_id) is None and self._nothing_staged:
            return None
        return committed_snapshot(committed, snapshot_id)

    def _check_existing(self, table: Table) -> None:
        wanted, metadata = self._wanted, table.metadata
        refuse_newer_format(wanted.table, metadata.format_version)
        check_properties(metadata.properties, wanted.table)
        if not wanted.partition_by:
            return
        asked = wanted.layout.to_pyiceberg_spec(metadata.schema())
        if [(each.source_id, each.transform) for each in asked.fields] != [
            (each.source_id, each.transform) for each in metadata.spec().fields
        ]:
            raise ValidationError(
                f"Table '{wanted.table}' exists and is not partitioned by {wanted.layout}. Leave the partitioning "
                "out to use that of the table.",
                table=wanted.table,
            )

    def _new_metadata(self) -> TableMetadata:
        """The new table as catalogs create it; nothing is created."""
        schema, spec, properties = self._new_table()
        return new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, "", properties)

    def _open(self) -> CreateTransaction:
        schema, spec, properties = self._new_table()
        return CreateTransaction.open(self._catalog, self._wanted.table.as_tuple, schema, spec, properties)

    def _new_table(self) -> tuple[Schema, PartitionSpec, dict[str, str]]:
        wanted = self._wanted
        properties = dict(wanted.default_properties)
        refuse_newer_format(wanted.table, format_version_of(properties, wanted.table))
        check_properties(properties, wanted.table)
        schema = self._new_schema()
        spec = to_iceberg_spec(wanted.table, schema, wanted.layout.to_pyiceberg_spec(schema))
        return schema, spec, properties

    def _new_schema(self) -> Schema:
        """The columns of all files, and those that only their paths have."""
        wanted = self._wanted
        try:
            columns = pa.unify_schemas(
                [_without_metadata(file.arrow_schema) for file in self._files], promote_options="permissive"
            )
        except pa.ArrowException:
            raise ValidationError(
                f"The files for '{wanted.table}' have a column of the same name with different types. Import them into "
                "different tables, or write some of them again.",
                table=wanted.table,
            ) from None
        layout_columns = {each.column for each in wanted.layout.fields}
        for key in dict.fromkeys(key for file in self._files for key in file.hive_values):
            if key in columns.names:
                continue
            if key not in layout_columns:
                raise ValidationError(
                    f"Column '{key}' is only in the paths of the files for '{wanted.table}'. Partition the new table "
                    f"by it ('{key}'), or create the table before, without the column.",
                    table=wanted.table,
                )
            values = [file.hive_values[key] for file in self._files if key in file.hive_values]
            columns = columns.append(pa.field(key, _type_of(values)))
        return to_iceberg_schema(wanted.table, columns)

    def _stage(self, snapshot_id: int, transaction: StagedTransaction) -> None:
        wanted, metadata = self._wanted, transaction.table_metadata
        head = head_of(metadata, wanted.branch, str(wanted.table))
        changes = self._read_manifests(metadata) if head is not None else FileChanges()
        new, _ = self._split(changes)
        self._nothing_staged = not new
        if not new:
            return
        if properties := self._properties(metadata, new):
            transaction.set_properties(properties)
        # Against the table with its name mapping.
        changes.added = self._to_data_files(transaction.table_metadata, new)
        if not isinstance(transaction, CreateTransaction):
            transaction.stage([], [AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id)])
        fork_branch(transaction, wanted.branch, head)
        SnapshotProducer(
            transaction,
            changes,
            operation=changes.operation,
            snapshot_id=snapshot_id,
            snapshot_properties=dict(wanted.snapshot_properties),
            branch=wanted.branch,
        ).commit()

    def _read_manifests(self, metadata: TableMetadata) -> FileChanges:
        head = head_of(metadata, self._wanted.branch, str(self._wanted.table))
        return FileChanges.read(metadata, self._io(), head, may_hold=AlwaysTrue())

    def _split(self, changes: FileChanges) -> tuple[list[parquet_files.ParquetFile], list[str]]:
        """The files that the table does not have, and the locations of the others."""
        present = {FileLocation.of(entry.data_file.file_path) for entry in changes.live_entries()}
        new = [file for file in self._files if FileLocation.of(file.location) not in present]
        known = [file.location for file in self._files if FileLocation.of(file.location) in present]
        if known and not self._wanted.skip_existing:
            raise parquet_files.refused(
                known[0],
                f"'{self._wanted.table}' has it already, and its rows would be there twice; {len(known)} of "
                f"{len(self._files)} files are in the table (skip_existing, or --skip-existing, leaves them out)",
            )
        return new, known

    def _to_data_files(self, metadata: TableMetadata, files: Sequence[parquet_files.ParquetFile]) -> list[DataFile]:
        table_files = parquet_files.TableFiles(metadata)
        return [table_files.to_data_file(file) for file in files]

    def _properties(self, metadata: TableMetadata, files: Sequence[parquet_files.ParquetFile]) -> dict[str, str]:
        """Table properties that the files need."""
        properties: dict[str, str] = {}
        if metadata.name_mapping() is None and not all(file.has_field_ids for file in files):
            properties[NAME_MAPPING] = metadata.schema().name_mapping.model_dump_json()
        if self._wanted.keep_files and metadata.properties.get(GC_ENABLED) != "false":
            properties[GC_ENABLED] = "false"
        return properties


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    # Field ids are assigned anew. A column that other files lack holds NULL for them.
    return pa.schema([pa.field(column.name, column.type) for column in schema])


def _type_of(values: Sequence[str | None]) -> pa.DataType:
    """The type of values in paths, as Spark would read them."""
    texts = [value for value in values if value is not None]
    if texts and all(map(_WHOLE_NUMBER.fullmatch, texts)):
        return pa.int64()
    if texts and all(map(_DATE.fullmatch, texts)):
        return pa.date32()
    return pa.string()


def _rows_by_partition(metadata: TableMetadata, files: Sequence[DataFile]) -> dict[str, int]:
    spec, schema = metadata.spec(), metadata.schema()
    rows: dict[str, int] = {}
    for file in files:
        name = "" if spec.is_unpartitioned() else spec.partition_to_path(file.partition, schema)
        rows[name] = rows.get(name, 0) + file.record_count
    return rows

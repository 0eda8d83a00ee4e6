"""The table manager's operations that read rows."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import SnapshotLogEntry

from floe_dagster_iceberg._pyiceberg.arrow_reader import FileReader
from floe_dagster_iceberg._pyiceberg.foreign_types import foreign_columns
from floe_dagster_iceberg._pyiceberg.manifest_reader import reading_files
from floe_dagster_iceberg._pyiceberg.scan_planner import NullSafeScan
from floe_dagster_iceberg.environments import branch_of
from floe_dagster_iceberg.errors import EngineCapabilityError, SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.models import RowFilter
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import NEWEST_FORMAT_OF_PYICEBERG
from floe_dagster_iceberg.table.commit.refs import to_timestamp_ms
from floe_dagster_iceberg.table.filter import row_filter as row_filters
from floe_dagster_iceberg.table.manager.base import CatalogSession, table_attributes
from floe_dagster_iceberg.table.names import TableRef, table_name
from floe_dagster_iceberg.table.write.handover import hand_over
from floe_dagster_iceberg.telemetry import Operation, attributes as attrs, running_operation, traced
from floe_dagster_iceberg.telemetry.metrics import count_read

_logger = logging.getLogger(__name__)


def _scan_attributes(table: TableRef, columns: Sequence[str] | None = None, *_: Any, **__: Any) -> dict[str, Any]:
    return table_attributes(table) | ({attrs.COLUMNS: list(columns)} if columns is not None else {})


def _set_rows_attributes(operation: Operation, rows: pa.Table) -> None:
    operation.set_attributes({attrs.RECORDS_READ: rows.num_rows, attrs.BYTES_READ: rows.nbytes})
    count_read(rows.num_rows, rows.nbytes, operation.attributes)


class ScanOperations(CatalogSession):
    """Reading rows, now or as they were."""

    @traced("scan", _scan_attributes, report=_set_rows_attributes)
    def scan(
        self,
        table: TableRef,
        columns: Sequence[str] | None = None,
        row_filter: RowFilter | row_filters.CheckedFilter | None = None,
        snapshot_id: int | None = None,
        limit: int | None = None,
        *,
        as_of: datetime | None = None,
        ref: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        only_added: bool = False,
        current_columns: bool = False,
    ) -> pa.Table:
        """Read rows into memory; files and columns that cannot matter are skipped.

        Args:
            table: The table.
            columns: Columns to read; all if not given.
            row_filter: Rows to read, as text or PyIceberg expression; all if not given.
            snapshot_id: Read the table as this snapshot left it.
            limit: At most this many rows.
            as_of: Read the table as it was at this time, which must have a time zone.
            ref: Read a branch or tag.
            branch: Read a branch.
            tag: Read a tag.
            only_added: Of that version, read only the rows in files that its snapshot added.
            current_columns: Of that version, read the rows in the table's current columns. Its own names are those of
                its time.

        Raises:
            NoSuchTableError: There is no such table.
            ValidationError: A column or the filter does not fit the table, or two versions are asked for.
            SnapshotNotFoundError: There is no such snapshot, branch or tag, or none at that time.
            ScanError: A file of the table cannot be read.
        """
        loaded = self._load(table)
        version = version_to_read(loaded, snapshot_id=snapshot_id, as_of=as_of, ref=ref, branch=branch, tag=tag)
        scan = _data_scan(
            loaded, version, columns, row_filter, limit, only_added=only_added, current_columns=current_columns
        )
        try:
            return _read(loaded, scan)
        except EngineCapabilityError as limit_of_engine:
            return self._read_with_spark(loaded, scan, limit_of_engine)

    @traced("scan_batches", _scan_attributes)
    def scan_batches(
        self,
        table: TableRef,
        columns: Sequence[str] | None = None,
        row_filter: RowFilter | row_filters.CheckedFilter | None = None,
        snapshot_id: int | None = None,
        *,
        as_of: datetime | None = None,
        ref: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        only_added: bool = False,
        current_columns: bool = False,
    ) -> pa.RecordBatchReader:
        """Read rows as a stream, one file after the other, whatever the size of the table.

        The arguments and errors are those of `scan`; errors of files are raised while the stream is read. The
        version that is read is fixed by this call.
        """
        loaded = self._load(table)
        version = version_to_read(loaded, snapshot_id=snapshot_id, as_of=as_of, ref=ref, branch=branch, tag=tag)
        scan = _data_scan(
            loaded, version, columns, row_filter, None, only_added=only_added, current_columns=current_columns
        )
        # The operation that opens the stream has ended when it is read.
        operation = running_operation()
        attributes = {} if operation is None else operation.attributes
        try:
            return _stream(loaded, scan, attributes)
        except EngineCapabilityError as limit:
            return self._read_with_spark(loaded, scan, limit).to_reader()

    def _read_with_spark(self, table: Table, scan: NullSafeScan, limit: EngineCapabilityError) -> pa.Table:
        spark, reason = hand_over(limit, self._handover)
        _logger.info("Spark reads '%s', because %s.", table_name(table), reason)
        columns = () if scan.selected_fields == ("*",) else scan.selected_fields
        rows = spark.read(
            table,
            snapshot_id=scan.snapshot_id,
            row_filter=scan.row_filter,
            columns=columns,
            only_added=scan.only_added,
            current_columns=scan.current_columns,
        )
        return rows.slice(0, scan.limit)


def _read(table: Table, scan: DataScan) -> pa.Table:
    if row_filters.compares_uuids(_every_column(scan), scan.row_filter):
        schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
        batches = list(_batches(table, scan, _plan(table, scan), schema))
        return pa.Table.from_batches(batches, schema=schema).slice(0, scan.limit)
    with translate_errors(table.catalog.name, table=table_name(table)), reading_files(table.location()):
        return scan.to_arrow()


def _stream(table: Table, scan: DataScan, attributes: dict[str, Any]) -> pa.RecordBatchReader:
    schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    # Planned at once, so that what PyIceberg cannot read is known before the first batch.
    batches = _batches(table, scan, _plan(table, scan), schema)
    return pa.RecordBatchReader.from_batches(schema, _counted(batches, attributes))


def refuse_foreign_columns(
    table: Table, schema: Schema, *, remedy: str = "Read the other columns, or read it as a Spark DataFrame."
) -> None:
    """Refuse to read columns of types that PyIceberg does not know.

    Raises:
        EngineCapabilityError: There is one.
    """
    if columns := foreign_columns(schema):
        name, column = table_name(table), columns[0]
        raise EngineCapabilityError(
            f"Column '{column}' of '{name}' is of type {schema.find_type(column)}, which Arrow cannot read. {remedy}",
            engine="arrow",
            table=name,
        )


def _counted(batches: Iterator[pa.RecordBatch], attributes: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        count_read(batch.num_rows, batch.nbytes, attributes)
        yield batch


def _batches(
    table: Table, scan: DataScan, tasks: Iterable[FileScanTask], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    every_column = _every_column(scan)
    filters_itself = row_filters.compares_uuids(every_column, scan.row_filter)
    rows = FileReader(
        table_metadata=scan.table_metadata,
        io=scan.io,
        projected_schema=every_column if filters_itself else scan.projection(),
        row_filter=AlwaysTrue() if filters_itself else scan.row_filter,
    )
    with translate_errors(table.catalog.name, table=table_name(table)):
        for batch in rows.stream(tasks):
            found = pa.Table.from_batches([batch])
            if filters_itself:
                found = found.filter(row_filters.mask_rows(found, every_column, scan.row_filter)).select(schema.names)
            yield from found.cast(schema).to_batches()


def _plan(table: Table, scan: DataScan) -> Iterable[FileScanTask]:
    """Files that may hold matching rows; by our own pruning if the filter compares UUIDs."""
    with translate_errors(table.catalog.name, table=table_name(table)):
        if not row_filters.compares_uuids(_every_column(scan), scan.row_filter):
            return scan.plan_files()
        matches = row_filters.FileMatcher(scan.table_metadata, scan.row_filter)
        planned = scan.update(row_filter=AlwaysTrue()).plan_files()
    return [task for task in planned if not matches.no_row(task.file)]


def _every_column(scan: DataScan) -> Schema:
    return scan.update(selected_fields=("*",)).projection()


def _data_scan(
    table: Table,
    snapshot_id: int | None,
    columns: Sequence[str] | None,
    row_filter: RowFilter | row_filters.CheckedFilter | None,
    limit: int | None,
    *,
    only_added: bool,
    current_columns: bool,
) -> NullSafeScan:
    name = table_name(table)
    match row_filter:
        case None:
            where: BooleanExpression = AlwaysTrue()
        case row_filters.CheckedFilter(expression):
            where = expression
        case _:
            where = row_filters.to_row_filter(table, row_filter)
    if isinstance(columns, str):
        raise ValidationError(f"Columns of '{name}' are given as a list of names, like ['{columns}'].", table=name)
    if limit is not None and limit < 0:
        raise ValidationError(f"A scan of '{name}' cannot be limited to {limit} rows. Give 0 or more.", table=name)
    scan = NullSafeScan.of_table(
        table,
        only_added=only_added,
        current_columns=current_columns,
        row_filter=where,
        selected_fields=tuple(columns) if columns is not None else ("*",),
        snapshot_id=snapshot_id,
        limit=limit,
    )
    known = (table.schema() if snapshot_id is None or current_columns else _schema_at(table, snapshot_id)).column_names
    if missing := [column for column in columns or () if column not in known]:
        raise ValidationError(
            f"Table '{name}' has no column {', '.join(map(repr, missing))}. It has: {', '.join(known)}.",
            table=name,
        )
    if table.metadata.format_version > NEWEST_FORMAT_OF_PYICEBERG:
        refuse_foreign_columns(table, scan.projection())
    return scan


def _schema_at(table: Table, snapshot_id: int) -> Any:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    schema_id = None if snapshot is None else snapshot.schema_id
    return table.schemas().get(schema_id, table.schema()) if schema_id is not None else table.schema()


def branch_to_read(table: Table, branch: str | None, environment: str | None) -> str | None:
    """The branch of an environment where the table has one, else the given one."""
    own = None if environment is None else branch_of(environment)
    return own if own in table.metadata.refs else branch


def version_to_read(
    table: Table,
    *,
    snapshot_id: int | None,
    as_of: datetime | None,
    ref: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
) -> int | None:
    """The snapshot to read; None is the newest of main.

    Raises:
        ValidationError: More than one version is asked for, a time without a zone, or a branch as a tag.
        SnapshotNotFoundError: The table has no such version.
    """
    name = table_name(table)
    asked = {"snapshot_id": snapshot_id, "as_of": as_of, "ref": ref, "branch": branch, "tag": tag}
    given = [word for word, value in asked.items() if value is not None]
    if len(given) > 1:
        raise ValidationError(f"A scan of '{name}' takes one of {', '.join(given)}, not several.", table=name)
    if snapshot_id is not None and table.metadata.snapshot_by_id(snapshot_id) is None:
        raise SnapshotNotFoundError(name, snapshot_id)
    if (known := ref or branch or tag) is not None and known != MAIN_BRANCH:
        if (found := table.metadata.refs.get(known)) is None:
            raise SnapshotNotFoundError(name, known, refs=table.metadata.refs)
        kind = found.snapshot_ref_type.value
        if known != ref and (known == branch) != (kind == "branch"):
            raise ValidationError(f"'{known}' of '{name}' is a {kind}. Read it with {kind}='{known}'.", table=name)
        return found.snapshot_id
    if as_of is not None:
        return _snapshot_at(table, name, as_of)
    return snapshot_id


def _snapshot_at(table: Table, name: str, as_of: datetime) -> int:
    timestamp = to_timestamp_ms(as_of, argument="as_of", table=name)
    log = table.metadata.snapshot_log
    current = next((entry for entry in reversed(log) if entry.timestamp_ms <= timestamp), None)
    following = next((entry for entry in log if entry.timestamp_ms > timestamp), None)
    if current is None or _expired_between(table, current, following):
        raise SnapshotNotFoundError(name, as_of.isoformat())
    return current.snapshot_id


def _expired_between(table: Table, current: SnapshotLogEntry, following: SnapshotLogEntry | None) -> bool:
    """Whether snapshots after an entry have expired: the log drops them without leaving a gap."""
    made = None if following is None else table.metadata.snapshot_by_id(following.snapshot_id)
    if following is None or made is None or made.timestamp_ms != following.timestamp_ms:
        # Nothing came after, or a rollback did, which has no parent to compare.
        return False
    return made.parent_snapshot_id != current.snapshot_id

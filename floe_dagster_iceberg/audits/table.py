"""What a check gets: one version of a table, read by metadata where that suffices."""
# ruff: noqa: PLC0415 - code locations name this class, and must not load PyIceberg and Arrow

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from floe_dagster_iceberg.models import SnapshotInfo, TableIdentifier
from floe_dagster_iceberg.models.partition_slice import PartitionSlice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from floe_dagster_iceberg.io_managers.managers import IcebergIOManagerBase
    from floe_dagster_iceberg.table.write.row_scope import RowScope


@dataclass(frozen=True)
class AuditedTable:
    """The rows that an audited asset is about to publish, in the version that was written.

    These are the rows of the partitions that the run writes, or all rows of an asset without partitions. Nothing is
    read before it is asked for.

    Attributes:
        identifier: The table.
        branch: The branch that holds the version; None for the version that `previous` returns.
        snapshot: The version.
        scope: The rows.
    """

    identifier: TableIdentifier
    branch: str | None
    snapshot: SnapshotInfo
    scope: "RowScope"
    _table: "Table"
    _io_manager: "IcebergIOManagerBase"
    _target: str = "main"

    @property
    def slice(self) -> PartitionSlice:
        """The rows of the partitions that the run writes."""
        return self.scope.rows

    @property
    def schema(self) -> "Schema":
        """The table's columns."""
        return self._table.schema()

    def scan(self, columns: Sequence[str] = (), row_filter: "str | BooleanExpression | None" = None) -> "pa.Table":
        """Read the rows into memory; columns and filter are pushed down."""
        import pyarrow as pa

        rows: pa.Table = self.read_as(pa.Table, columns, row_filter)
        return rows

    def scan_batches(
        self, columns: Sequence[str] = (), row_filter: "str | BooleanExpression | None" = None
    ) -> "pa.RecordBatchReader":
        """Read the rows as a stream; columns and filter are pushed down."""
        import pyarrow as pa

        rows: pa.RecordBatchReader = self.read_as(pa.RecordBatchReader, columns, row_filter)
        return rows

    def read_as(
        self, annotation: Any, columns: Sequence[str] = (), row_filter: "str | BooleanExpression | None" = None
    ) -> Any:
        """Read the rows as a type that inputs may be annotated with."""
        from floe_dagster_iceberg.asset_settings import InputSettings
        from floe_dagster_iceberg.errors import ValidationError
        from floe_dagster_iceberg.io_managers.engines import ReadRequest

        settings = InputSettings.model_validate(
            {
                "columns": list(columns),
                "iceberg/row_filter": row_filter,
                "iceberg/snapshot_id": self.snapshot.snapshot_id,
            }
        )
        request = ReadRequest(
            table=self.identifier, rows=self.slice, settings=settings, naive_timezone=self.scope.naive_timezone
        )
        engines = self._io_manager.engines()
        engine = next((engine for engine in engines if engine.loads(annotation)), None)
        if engine is None:
            loadable = ", ".join(engine.loadable_types for engine in engines)
            raise ValidationError(
                f"A check cannot be given a {annotation}. Annotate its argument as one of: {loadable}."
            )
        return engine.read(request, annotation)

    def previous(self) -> "AuditedTable | None":
        """The version that readers have now; None if the table had no rows before."""
        from floe_dagster_iceberg._pyiceberg.transaction import history_of

        metadata = self._table.metadata
        target = metadata.refs.get(self._target)
        theirs = history_of(metadata, None if target is None else metadata.snapshot_by_id(target.snapshot_id))
        shared = {snapshot.snapshot_id for snapshot in theirs}
        ours = history_of(metadata, metadata.snapshot_by_id(self.snapshot.snapshot_id))
        before = next((each for each in ours if each.snapshot_id in shared - {self.snapshot.snapshot_id}), None)
        if before is None:
            return None
        snapshot = SnapshotInfo.from_pyiceberg_snapshot(before)
        if snapshot.parent_snapshot_id is None and not snapshot.total_records:
            # The empty first snapshot that a branch of a new table begins at.
            return None
        return AuditedTable(
            self.identifier, None, snapshot, self.scope, self._table, self._io_manager, _target=self._target
        )

    def row_count(self) -> tuple[int, bool]:
        """How many rows there are, and whether data files had to be read to know."""
        if self.files is not None:
            return sum(file.record_count for file in self.files), False
        return self.count_matching(None), True

    def null_count(self, column: str) -> tuple[int, bool]:
        """How many rows have NULL in a column, and whether data files had to be read to know."""
        from pyiceberg.expressions import IsNull, Reference

        from floe_dagster_iceberg.errors import ValidationError

        if column not in self.schema.column_names:
            raise ValidationError(
                f"'{self.identifier}' has no column '{column}', only: {', '.join(self.schema.column_names)}.",
                table=self.identifier,
            )
        field_id = self.schema.find_field(column).field_id
        counts = [(file.null_value_counts or {}).get(field_id) for file in self.files or ()]
        if self.files is not None and None not in counts:
            return sum(count or 0 for count in counts), False
        return self.count_matching(IsNull(term=Reference(column))), True

    def count_matching(self, row_filter: "BooleanExpression | None") -> int:
        """How many rows match a filter, by a scan of one column."""
        column = next(iter(self.slice.columns), None) or self.schema.fields[0].name
        return sum(batch.num_rows for batch in self.scan_batches([column], row_filter))

    @cached_property
    def files(self) -> "list[DataFile] | None":
        """The data files with the rows; None if they hold other rows as well, or deleted ones."""
        from pyiceberg.manifest import ManifestContent

        from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
        from floe_dagster_iceberg.table.commit.commit import NEWEST_FORMAT_OF_PYICEBERG
        from floe_dagster_iceberg.table.filter.row_filter import FileMatcher

        metadata = self._table.metadata
        if metadata.format_version > NEWEST_FORMAT_OF_PYICEBERG:
            return None
        where = self.scope.expression(self.schema)
        snapshot = metadata.snapshot_by_id(self.snapshot.snapshot_id)
        found = FileChanges.read(metadata, self._table.io, snapshot, may_hold=where)
        if any(manifest.content == ManifestContent.DELETES for manifest in found.unopened):
            return None
        matches = FileMatcher(metadata, where)
        files: list[DataFile] = []
        for entry in found.live_entries():
            if matches.no_row(entry.data_file):
                continue
            if not matches.all_rows(entry.data_file):
                return None
            files.append(entry.data_file)
        return files

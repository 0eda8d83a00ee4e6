"""Delete files as Spark writes them in merge-on-read tables, which PyIceberg reads but cannot write."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles

POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _DeleteFileProducer(_FastAppendFiles):
    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _DeleteManifestWriter(
            metadata.spec(), self.schema(), output, self._snapshot_id, self._compression
        ) as writer:
            for file in self._added_data_files:
                writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file))
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_positions(table: Table, data_file: DataFile, *positions: int) -> None:
    """Delete rows of a data file by their position, without touching the file."""
    location = f"{table.location()}/data/{table.metadata.new_snapshot_id()}-deletes.parquet"
    rows = pa.table([[data_file.file_path] * len(positions), sorted(positions)], schema=POSITIONS)
    _commit(table, data_file, _write(table, location, rows), DataFileContent.POSITION_DELETES, len(positions))


def delete_by_equality(table: Table, data_file: DataFile, column: str, value: Any) -> None:
    """Delete rows wherever a column has a value, which PyIceberg cannot even read."""
    field = table.schema().find_field(column)
    location = f"{table.location()}/data/{table.metadata.new_snapshot_id()}-deletes.parquet"
    schema = pa.schema([pa.field(column, pa.int64(), metadata={"PARQUET:field_id": str(field.field_id)})])
    written = _write(table, location, pa.table([[value]], schema=schema))
    _commit(table, data_file, written, DataFileContent.EQUALITY_DELETES, 1, equality_ids=[field.field_id])


def _write(table: Table, location: str, rows: pa.Table) -> tuple[str, int]:
    output = table.io.new_output(location)
    with output.create() as stream:
        pq.write_table(rows, stream)
    return location, len(output)


def _commit(
    table: Table,
    data_file: DataFile,
    written: tuple[str, int],
    content: DataFileContent,
    records: int,
    *,
    equality_ids: list[int] | None = None,
) -> None:
    location, size = written
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=data_file.partition,
        record_count=records,
        file_size_in_bytes=size,
        spec_id=data_file.spec_id,
        equality_ids=equality_ids,
    )
    file.spec_id = data_file.spec_id
    with table.transaction() as transaction:
        producer = _DeleteFileProducer(Operation.DELETE, transaction, table.io)
        producer.append_data_file(file)
        producer.commit()

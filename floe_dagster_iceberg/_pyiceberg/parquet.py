"""Data files, written through PyIceberg's Arrow half."""
# ruff: noqa: SLF001 - private parts are what this folder is for

from collections.abc import Collection

import pyarrow as pa
from pyiceberg.io import OutputFile
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import ParquetFormatWriter, _pyarrow_to_schema_without_ids, parquet_path_to_id_mapping
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.typedef import TableVersion

from floe_dagster_iceberg._pyiceberg.evaluators import project

_UNKNOWN_TO_PYICEBERG = (TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, "write.parquet.bloom-filter-")


def open_parquet_writer(output: OutputFile, schema: Schema, properties: dict[str, str]) -> ParquetFormatWriter:
    """A writer of one Parquet data file whose columns carry the schema's field ids."""
    model = FileFormatFactory.get(FileFormat.PARQUET)
    # PyIceberg would warn that it does not know them. Row-group bytes are honoured by DataFileWriter; and filters of
    # warnings belong to the whole process, whose other threads run the user's code.
    known = {key: value for key, value in properties.items() if not key.startswith(_UNKNOWN_TO_PYICEBERG)}
    writer = model.create_writer(output, schema, known)
    if not isinstance(writer, ParquetFormatWriter):
        raise TypeError(f"PyIceberg's Parquet writer is a {type(writer).__name__}")
    return writer


def leave_without_dictionary(writer: ParquetFormatWriter, columns: Collection[str]) -> None:
    """Write the values of some columns as they are; for a writer that has got no rows yet."""
    if columns:
        paths = parquet_path_to_id_mapping(writer._file_schema)
        writer._parquet_writer_kwargs["use_dictionary"] = [path for path in paths if path not in columns]


def bytes_written(writer: ParquetFormatWriter) -> int:
    """Bytes of the file so far, as they are on disk."""
    return 0 if writer._fos is None else int(writer._fos.tell())


def close_quietly(writer: ParquetFormatWriter) -> None:
    """Let go of a writer whose file is about to be deleted."""
    if writer._writer is not None:
        # Or Arrow would try to end the file properly once it is collected, and complain that it cannot.
        writer._writer.is_open = False
    if writer._fos is not None:
        try:
            writer._fos.close()
        except (OSError, ValueError, pa.ArrowException):
            return


def project_batch(batch: pa.RecordBatch, *, batch_schema: Schema, table_schema: Schema) -> pa.RecordBatch:
    """The batch in the table's column order and types, with field ids, missing optional columns filled with NULL."""
    model = FileFormatFactory.get(FileFormat.PARQUET)
    return project(
        batch, file_schema=batch_schema, requested_schema=table_schema, include_field_ids=True, format_model=model
    )


def arrow_schema_without_ids(schema: pa.Schema, *, format_version: TableVersion) -> Schema:
    """The Iceberg schema an Arrow schema stands for, field ids not assigned yet."""
    return _pyarrow_to_schema_without_ids(schema, format_version=format_version)

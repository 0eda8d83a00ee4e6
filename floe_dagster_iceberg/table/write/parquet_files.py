"""Existing Parquet files: found in storage, checked against a table, and described as its data files.

Only footers are read. What a footer cannot prove is refused: a table with a wrong partition value or type returns
wrong rows without any error.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions.literals import literal
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType, IcebergType, IntegerType, LongType, NestedField

from floe_dagster_iceberg._pyiceberg.metadata_errors import is_cut_off
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.table.schema.convert import nodes_by_id
from floe_dagster_iceberg.table.storage import FileLocation, StoredFile, in_parallel, list_files

_MAGIC_BYTES: Final = 4
_MAGIC: Final = b"PAR1"
_ENCRYPTED: Final = b"PARE"
_FIELD_ID: Final = b"PARQUET:field_id"
_HIVE_KEY: Final = re.compile(r"(?P<key>[^/=]+)=(?P<value>[^/]*)")
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# Spark, Hive and Dagster write files of their own beside the data.
_HIDDEN: Final = ("_", ".")
_FULL_STATISTICS: Final = {TableProperties.DEFAULT_WRITE_METRICS_MODE: "full"}
# As readers widen them. Others, such as decimals with more digits, are stored in another way.
_WIDENED: Final[Mapping[type[IcebergType], type[IcebergType]]] = {IntegerType: LongType, FloatType: DoubleType}


def refused(location: str, reason: str) -> ValidationError:
    """The error about a file that cannot become part of a table."""
    return ValidationError(f"File '{location}' cannot be added: {reason}. Nothing was changed.")


def to_location(path: str | Path) -> str:
    """A path as locations are written in metadata, so that every engine opens the same file."""
    text = str(path).rstrip("/")
    return text if re.match(r"\w+:", text) else f"file://{Path(text).absolute()}"


def find_files(io: FileIO, paths: Sequence[str | Path]) -> list[StoredFile]:
    """The files of paths, each a file or a folder with subfolders; without hidden ones, each once.

    Raises:
        ValidationError: A path does not exist, or has no files.
    """
    found: dict[FileLocation, StoredFile] = {}
    for location in map(to_location, paths):
        files = [file for file in _list(io, location) if not _is_hidden(file.location.removeprefix(location))]
        if not files:
            raise ValidationError(f"'{location}' does not exist or has no files. Name a Parquet file or a folder.")
        found |= {FileLocation.of(file.location): file for file in files}
    return sorted(found.values(), key=lambda file: file.location)


def _list(io: FileIO, location: str) -> list[StoredFile]:
    if is_cut_off(location):
        raise refused(location, "PyIceberg ends paths at '?' and '#'; rename it")
    try:
        if files := list_files(io, location):
            return files
    except OSError:
        # It is a file, on a disk that has folders.
        pass
    file = io.new_input(location)
    try:
        return [StoredFile(location, len(file))] if file.exists() else []
    except (OSError, TypeError):
        return []


def _is_hidden(below: str) -> bool:
    # Folders such as '_temporary'; but not '_key=value', which is a partition.
    return any(part.startswith(_HIDDEN) and "=" not in part for part in below.split("/"))


@dataclass(frozen=True)
class ParquetFile:
    """A file and its footer."""

    location: str
    size_bytes: int
    footer: pq.FileMetaData

    @classmethod
    def read(cls, io: FileIO, file: StoredFile) -> "ParquetFile":
        """Read the footer.

        Raises:
            ValidationError: It is not a Parquet file, or is encrypted or corrupt.
        """
        if is_cut_off(file.location):
            raise refused(file.location, "PyIceberg ends paths at '?' and '#'; rename it")
        if file.size_bytes <= 2 * _MAGIC_BYTES:
            raise refused(file.location, "it is not a Parquet file")
        with io.new_input(file.location).open() as stream:
            stream.seek(file.size_bytes - 2 * _MAGIC_BYTES)
            length, magic = stream.read(_MAGIC_BYTES), stream.read(_MAGIC_BYTES)
            if magic == _ENCRYPTED:
                raise refused(file.location, "it is encrypted")
            if magic != _MAGIC:
                raise refused(file.location, "it is not a Parquet file, or was not written to its end")
            try:
                footer = pq.read_metadata(stream)
            except (OSError, pa.ArrowException):
                raise refused(file.location, "its footer is corrupt") from None
        if footer.serialized_size != int.from_bytes(length, "little"):
            # Only columns are encrypted, and the footer is signed. Arrow aborts the process when it looks at them.
            raise refused(file.location, "columns of it are encrypted")
        return cls(file.location, file.size_bytes, footer)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns, as Parquet's own types say."""
        return self.footer.schema.to_arrow_schema()

    @cached_property
    def hive_values(self) -> dict[str, str | None]:
        """Values in folders such as 'region=EU'."""
        folders = (_HIVE_KEY.fullmatch(part) for part in self.location.split("/")[:-1])
        found = {unquote(each["key"]): unquote(each["value"]) for each in folders if each is not None}
        return {key: None if value == _HIVE_NULL else value for key, value in found.items()}

    @cached_property
    def has_field_ids(self) -> bool:
        """Whether columns carry field ids.

        Raises:
            ValidationError: Some of them do.
        """
        ids = [_FIELD_ID in (field.metadata or {}) for field in _all_fields(self.arrow_schema)]
        if any(ids) and not all(ids):
            raise refused(self.location, "some of its columns have field ids and others have none")
        return all(ids)

    def check_types(self) -> None:
        """Refuse types that Iceberg does not have.

        Raises:
            ValidationError: With the column.
        """
        for field in _all_fields(self.arrow_schema):
            if reason := _unsupported(field.type):
                raise refused(self.location, f"column '{field.name}' holds {reason}")


def read_footers(io: FileIO, files: Sequence[StoredFile]) -> list[ParquetFile]:
    """Read the footers, several at a time; files without rows are left out.

    Raises:
        ValidationError: A file is not Parquet, is encrypted or corrupt, or has types that Iceberg does not have.
    """
    found: list[ParquetFile] = list(in_parallel(lambda file: ParquetFile.read(io, file), files))
    for file in found:
        file.check_types()
    return [file for file in found if file.footer.num_rows]


def _all_fields(schema: pa.Schema) -> Iterator[pa.Field]:
    fields = list(schema)
    while fields:
        field = fields.pop()
        yield field
        kind = field.type
        if pa.types.is_struct(kind):
            fields += [kind.field(at) for at in range(kind.num_fields)]
        elif pa.types.is_map(kind):
            fields += [kind.key_field, kind.item_field]
        elif pa.types.is_nested(kind):
            fields.append(kind.value_field)


def _unsupported(kind: pa.DataType) -> str | None:
    if pa.types.is_unsigned_integer(kind):
        return "unsigned integers, which Iceberg does not have"
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        # Iceberg's Java reads milliseconds, but compares filters with their statistics as if they were microseconds,
        # so that rows are missing.
        return "timestamps as INT96, in nanoseconds or in milliseconds; write them in microseconds"
    if pa.types.is_time(kind) and kind.unit != "us":
        return "times that are not in microseconds"
    if pa.types.is_null(kind) or pa.types.is_float16(kind):
        return f"values of type {kind}, which Iceberg does not have"
    return None


class TableFiles:
    """Files as data files of one version of a table."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata, self._schema, self._spec = metadata, metadata.schema(), metadata.spec()
        self._nodes = nodes_by_id(self._schema)
        self._mapping = metadata.name_mapping()

    def to_data_file(self, file: ParquetFile) -> DataFile:
        """Check a file and describe it, with partition values and statistics.

        Raises:
            ValidationError: It does not fit the table.
        """
        columns = self._columns(file)
        self._check_columns(file, columns)
        statistics = self._statistics(file, columns, self._metadata.properties)
        partition, full = Record(), statistics
        if not self._spec.is_unpartitioned() or any(field.required for field in self._schema.fields):
            full = self._statistics(file, columns, _FULL_STATISTICS)
        self._check_nulls(file, columns, full)
        if not self._spec.is_unpartitioned():
            partition = Record(*(self._partition_value(file, columns, full, field) for field in self._spec.fields))
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.location,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=self._metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _columns(self, file: ParquetFile) -> Schema:
        """The file's columns with the ids by which readers find them."""
        version = self._metadata.format_version
        mapping = None if file.has_field_ids else self._mapping or self._schema.name_mapping
        known = {field.name for field in self._schema.fields}
        unknown = [name for name in file.arrow_schema.names if name not in known]
        if unknown and not file.has_field_ids:
            raise refused(file.location, f"the table has no column '{unknown[0]}'; add it with evolve_schema()")
        try:
            return pyarrow_to_schema(file.arrow_schema, name_mapping=mapping, format_version=version)
        except (ValueError, TypeError, NotImplementedError):
            raise refused(
                file.location, "it has nested fields or types that the table or its name mapping does not have"
            ) from None

    def _check_columns(self, file: ParquetFile, columns: Schema) -> None:
        for field_id, node in nodes_by_id(columns).items():
            name, own = columns.find_column_name(field_id), self._nodes.get(field_id)
            if own is None or self._schema.find_column_name(field_id) != name:
                raise refused(
                    file.location,
                    f"its column '{name}' has field id {field_id}, which is not that column in the table: the file was "
                    "written for another table",
                )
            if not _is_readable(node.field.field_type, own.field.field_type):
                raise refused(
                    file.location,
                    f"its column '{name}' is {_kind(node.field)}, and that of the table is {_kind(own.field)}",
                )
            if own.field.required and not node.field.required and own.parent_id is not None:
                raise refused(file.location, f"field '{name}' is required and may be NULL in the file")
        for field_id, node in self._nodes.items():
            is_missing = field_id not in columns.field_ids
            if is_missing and (node.parent_id is None or node.parent_id in columns.field_ids):
                self._check_missing(file, node.field)

    def _check_missing(self, file: ParquetFile, field: NestedField) -> None:
        is_partition = self._is_identity(field.field_id)
        if field.name in file.hive_values and field.field_id in self._top_level and not is_partition:
            raise refused(
                file.location,
                f"column '{field.name}' is only in its path, and the table is not partitioned by it, so that readers "
                "would see NULL",
            )
        if field.required and not (is_partition and file.hive_values.get(field.name) is not None):
            raise refused(file.location, f"the required column '{field.name}' is missing")

    @cached_property
    def _top_level(self) -> frozenset[int]:
        return frozenset(field.field_id for field in self._schema.fields)

    def _is_identity(self, field_id: int) -> bool:
        return any(
            isinstance(field.transform, IdentityTransform) and field.source_id == field_id
            for field in self._spec.fields
        )

    def _statistics(self, file: ParquetFile, columns: Schema, properties: Mapping[str, str]) -> DataFileStatistics:
        # By position: the names of list elements and map entries differ from writer to writer.
        leaves = [id_ for id_, node in nodes_by_id(columns).items() if node.field.field_type.is_primitive]
        parquet = file.footer.schema
        paths = {parquet.column(at).path: field_id for at, field_id in enumerate(leaves)}
        try:
            return data_file_statistics_from_parquet_metadata(
                file.footer, compute_statistics_plan(self._schema, dict(properties)), paths
            )
        except ValueError:
            raise refused(
                file.location, "a column is stored in a way that Iceberg does not allow for its type"
            ) from None

    def _check_nulls(self, file: ParquetFile, columns: Schema, full: DataFileStatistics) -> None:
        for field in self._schema.fields:
            if not field.required or not field.field_type.is_primitive or field.field_id not in columns.field_ids:
                continue
            if not columns.find_field(field.field_id).required and full.null_value_counts.get(field.field_id) != 0:
                raise refused(
                    file.location,
                    f"column '{field.name}' is required, and the file has NULLs in it, or no statistics about them",
                )

    def _partition_value(
        self, file: ParquetFile, columns: Schema, full: DataFileStatistics, field: PartitionField
    ) -> Any:
        if isinstance(field.transform, VoidTransform):
            return None
        if isinstance(field.transform, UnknownTransform):
            raise refused(file.location, f"PyIceberg does not know the transform of partition field '{field.name}'")
        source, name = self._schema.find_field(field.source_id), self._schema.find_column_name(field.source_id) or ""
        is_identity = isinstance(field.transform, IdentityTransform)
        in_path = file.hive_values.get(name) if is_identity else None
        is_in_path = is_identity and name in file.hive_values
        expected = _from_text(file, name, source.field_type, in_path) if is_in_path else None
        if field.source_id not in columns.field_ids:
            if not is_in_path:
                raise refused(file.location, f"neither its columns nor its path have partition column '{name}'")
            return expected
        value = self._value_in_rows(file, full, field, source)
        if is_in_path and value != expected:
            raise refused(file.location, f"the values of partition column '{name}' are not the one in its path")
        return value

    def _value_in_rows(
        self, file: ParquetFile, full: DataFileStatistics, field: PartitionField, source: NestedField
    ) -> Any:
        nulls, bounds = full.null_value_counts.get(source.field_id), full.column_aggregates.get(source.field_id)
        if nulls == full.record_count:
            return None
        if nulls is None or bounds is None or bounds.current_min is None or bounds.current_max is None:
            raise refused(
                file.location, f"it has no statistics of column '{source.name}', from which its partition would follow"
            )
        if isinstance(source.field_type, FloatType | DoubleType):
            raise refused(
                file.location, f"statistics of column '{source.name}' do not count NaN, so its partition is not known"
            )
        try:
            low, high = (
                partition_record_value(field, value, self._schema) for value in (bounds.current_min, bounds.current_max)
            )
        except (TypeError, ValueError):
            raise refused(file.location, f"its partition cannot be computed from column '{source.name}'") from None
        transform = field.transform.transform(source.field_type)
        # Between two values of one bucket lie those of others.
        is_one = low == high or (field.transform.preserves_order and transform(low) == transform(high))
        if nulls or not is_one:
            raise refused(
                file.location,
                f"its rows belong to several partitions by '{field.name}'; write it again with append(), or import it "
                "into a table with another partitioning",
            )
        return transform(low)


def _from_text(file: ParquetFile, name: str, kind: IcebergType, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return literal(text).to(kind).value
    except (ValueError, TypeError, ArithmeticError):
        raise refused(file.location, f"the value of '{name}' in its path is not of type {kind}") from None


def _is_readable(stored: IcebergType, wanted: IcebergType) -> bool:
    if not stored.is_primitive or not wanted.is_primitive:
        return type(stored) is type(wanted)
    return stored == wanted or _WIDENED.get(type(stored)) is type(wanted)


def _kind(field: NestedField) -> str:
    return str(field.field_type) if field.field_type.is_primitive else type(field.field_type).__name__

"""Manifests, written with cached encoders and in one piece.

PyIceberg derives an encoder and an Avro schema from the partition spec for every manifest, compresses every entry
separately, sends the header in hundreds of pieces, and asks the storage for the length of the file.

It derives the type of a partition from the current schema. A dropped column has an unknown type there, which becomes an
Avro union of NULL with NULL: no reader accepts a manifest with it. So partition types are derived here, too.
"""

import io
import json
import math
import os
import struct
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast
from uuid import UUID

from pydantic import PrivateAttr
from pyiceberg import manifest as formats
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO, AvroCompressionCodec
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV1,
    ManifestWriterV2,
    PartitionFieldSummary,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import BinaryType, FixedType, IcebergType, NestedField, StructType, UnknownType, UUIDType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from floe_dagster_iceberg._pyiceberg.manifest_reader import SCHEMA_KEY

# A process writes to a few specs per table.
_SHAPES_KEPT: Final = 256
# Some fifty entries: enough to compress well, and little against the size at which a manifest is closed.
_BLOCK_BYTES: Final = 16_000
_HEAD: Final = construct_writer(META_SCHEMA)

# Java compares UUIDs as two numbers with a sign.
_JAVA_UUID: Final = struct.Struct(">qq")

# The numbers that Avro writes in one or two bytes.
_SMALL: Final = [bytes([2 * number]) for number in range(64)] + [
    bytes([2 * number & 0x7F | 0x80, number >> 6]) for number in range(64, 8192)
]


class _Shape(NamedTuple):
    """How entries of a partition type are written. It is stateless, so threads may share it."""

    avro_schema: str
    writer: Writer


class _Encoder(BinaryEncoder):
    """Looks up the numbers of which an entry has dozens: column ids, lengths, counts."""

    def write_int(self, integer: int) -> None:
        if 0 <= integer < len(_SMALL):
            self.write(_SMALL[integer])
        else:
            super().write_int(integer)


class _ManifestFile(AvroOutputFile[ManifestEntry]):
    """An Avro file that is built in memory, and stored when it is complete."""

    def __init__(self, output_file: OutputFile, shape: _Shape, metadata: dict[str, str]) -> None:
        # Not PyIceberg's own, which would build an encoder.
        self.output_file, self.metadata, self.sync_bytes = output_file, metadata, os.urandom(SYNC_SIZE)
        self._avro_schema, self.writer = shape
        self._content, self._block, self._entries_in_block = io.BytesIO(), io.BytesIO(), 0
        self.encoder, self._block_encoder = _Encoder(self._content), _Encoder(self._block)

    def __enter__(self) -> Self:
        codec = to_avro_codec(self.metadata[AVRO_CODEC_KEY])
        meta = {**self.metadata, SCHEMA_KEY: self._avro_schema, AVRO_CODEC_KEY: codec}
        _HEAD.write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))
        return self

    def write_block(self, objects: list[ManifestEntry]) -> None:
        for entry in objects:
            self.writer.write(self._block_encoder, entry)
        self._entries_in_block += len(objects)
        if self._block.tell() >= _BLOCK_BYTES:
            self._end_block()

    def tell(self) -> int:
        """The minimum length of the file."""
        return self._content.tell()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            return
        self._end_block()
        content = self._content.getvalue()
        with self.output_file.create(overwrite=True) as stream:
            stream.write(content)
        # PyIceberg only asks for its length, which the storage would have to be asked for.
        self.output_file = content  # type: ignore[assignment]

    def _end_block(self) -> None:
        if not self._entries_in_block:
            return
        content, codec = self._block.getvalue(), self.compression_codec()
        if codec is not None:
            content, _ = codec.compress(content)
        self.encoder.write_int(self._entries_in_block)
        self.encoder.write_bytes(content)
        self.encoder.write(self.sync_bytes)
        self._block.seek(0)
        self._block.truncate()
        self._entries_in_block = 0


class _InMemory(ManifestWriter):
    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        shape = shape_of(self.version, self._spec.partition_type(self._schema))
        return _ManifestFile(self._output_file, shape, self._meta)

    def to_manifest_file(self) -> ManifestFile:
        fields = self._spec.partition_type(self._schema).fields
        for at, field in enumerate(fields):
            if isinstance(field.field_type, UnknownType):
                self._partitions = [_with_null(partition, at) for partition in self._partitions]
        manifest = super().to_manifest_file()
        for at, field in enumerate(fields):
            if isinstance(field.field_type, UUIDType) and manifest.partitions:
                values = [partition[at] for partition in self._partitions if partition[at] is not None]
                manifest.partitions[at] = _summary_of_uuids(values, manifest.partitions[at])
        return manifest


def _with_null(partition: Record, position: int) -> Record:
    """As a partition with a field of unknown type is written."""
    return Record(*(None if at == position else partition[at] for at in range(len(partition))))


def _summary_of_uuids(values: list[UUID | bytes], summary: PartitionFieldSummary) -> PartitionFieldSummary:
    """The summary with bounds in the order of Iceberg's Java, which would skip manifests by bounds in another one."""
    if not values:
        return summary
    stored = [value.bytes if isinstance(value, UUID) else value for value in values]
    lower, upper = min(stored, key=_JAVA_UUID.unpack), max(stored, key=_JAVA_UUID.unpack)
    return PartitionFieldSummary(summary.contains_null, summary.contains_nan, lower, upper)


class _InMemoryV1(_InMemory, ManifestWriterV1):
    pass


class _InMemoryV2(_InMemory, ManifestWriterV2):
    pass


def manifest_writer(  # noqa: PLR0917 - like PyIceberg's own
    version: TableVersion,
    spec: PartitionSpec,
    schema: Schema,
    output_file: OutputFile,
    snapshot_id: int,
    compression: AvroCompressionCodec,
) -> ManifestWriter:
    """A writer of a data manifest, like `pyiceberg.manifest.write_manifest`."""
    match version:
        case 1:
            return _InMemoryV1(spec, schema, output_file, snapshot_id, compression)
        case 2:
            return _InMemoryV2(spec, schema, output_file, snapshot_id, compression)
        case _:
            raise ValueError(f"Cannot write manifest for table version: {version}")


def to_avro_codec(name: str) -> AvroCompressionCodec:
    """Avro's name of a codec that a table property names as Iceberg does."""
    named: dict[str, str] = {**CODEC_MAPPING_ICEBERG_TO_AVRO, "uncompressed": "null"}
    return cast("AvroCompressionCodec", named.get(name.lower(), name.lower()))


@lru_cache(_SHAPES_KEPT)
def shape_of(version: TableVersion, partition: StructType) -> _Shape:
    written, held = _entry_schema(version, partition), _entry_schema(formats.DEFAULT_READ_VERSION, partition)
    avro = json.dumps(AvroSchemaConversion().iceberg_to_avro(written, schema_name="manifest_entry"))
    return _Shape(avro, resolve_writer(record_schema=held, file_schema=written))


def _entry_schema(version: TableVersion, partition: StructType) -> Schema:
    return formats.manifest_entry_schema_with_data_file(version, formats.data_file_with_partition(partition, version))


class WrittenSpec(PartitionSpec):
    """A spec of a table, with the type in which its manifests hold partitions.

    A column that was dropped has the type that it had last. As in Iceberg's Java, every field is optional: a void
    transform yields NULL also for a required column.
    """

    _as_written: StructType = PrivateAttr()

    @classmethod
    def of(cls, metadata: TableMetadata, spec: PartitionSpec) -> "WrittenSpec":
        written = cls(*spec.fields, spec_id=spec.spec_id)
        written._as_written = StructType(*map(partial(_written_field, metadata), spec.fields))
        return written

    def partition_type(self, schema: Schema) -> StructType:
        del schema
        return self._as_written


def _written_field(metadata: TableMetadata, field: PartitionField) -> NestedField:
    current, source_id = metadata.schema(), field.source_id
    source = current.find_type(source_id) if source_id in current.field_ids else _last_type(metadata, source_id)
    if source is None:
        # No schema of the table has the column any more. Java writes NULL then, and without a union.
        return NestedField(field.field_id, field.name, UnknownType(), required=True)
    result = field.transform.result_type(source)
    # Iceberg's Java reads and writes a fixed value with its length in front, as Avro does for bytes but not for fixed.
    # Declared as bytes, every reader reads it.
    kind = BinaryType() if isinstance(result, FixedType) else result
    return NestedField(field.field_id, field.name, kind, required=False)


def _last_type(metadata: TableMetadata, field_id: int) -> IcebergType | None:
    having_it = [schema for schema in metadata.schemas if field_id in schema.field_ids]
    return max(having_it, key=lambda schema: schema.schema_id).find_type(field_id) if having_it else None


def dropped_fields(metadata: TableMetadata, spec_id: int) -> list[int]:
    """Positions of the partition fields whose source column was dropped; not of void ones, which hold nothing."""
    columns = metadata.schema().field_ids
    return [
        position
        for position, field in enumerate(metadata.specs()[spec_id].fields)
        if field.source_id not in columns and not isinstance(field.transform, VoidTransform)
    ]


class PartitionKeys:
    """The partitions of files as they can be compared, to find the position deletes of a file.

    Values of dropped columns do not count: Iceberg's Java loses them when it merges manifests, so a file and its
    deletes may differ in them. And NaN equals NaN.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        self._dropped = {spec_id: dropped_fields(metadata, spec_id) for spec_id in metadata.specs()}

    def of(self, file: DataFile) -> Record:
        partition, dropped = file.partition, self._dropped[file.spec_id]
        return Record(*(None if at in dropped else same_nan(partition[at]) for at in range(len(partition))))


def same_nan(value: Any) -> Any:
    """The value; for any NaN the same object, so that records that hold it are equal."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value

"""Manifests, written with cached encoders and in one piece.

PyIceberg derives an encoder and an Avro schema from the partition spec for every manifest, compresses every entry
separately, sends the header in hundreds of pieces, and asks the storage for the length of the file.
"""

import io
import json
import os
from functools import lru_cache
from types import TracebackType
from typing import Final, NamedTuple, Self

from pyiceberg import manifest as formats
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO, AvroCompressionCodec
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import ManifestEntry, ManifestWriter, ManifestWriterV1, ManifestWriterV2
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from floe_dagster_iceberg._pyiceberg.manifest_reader import SCHEMA_KEY

# A process writes to a few specs per table.
_SHAPES_KEPT: Final = 256
# Some fifty entries: enough to compress well, and little against the size at which a manifest is closed.
_BLOCK_BYTES: Final = 16_000
_HEAD: Final = construct_writer(META_SCHEMA)

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


class _Length:
    """Stands for a written file, of which PyIceberg only needs the length."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class _ManifestFile(AvroOutputFile[ManifestEntry]):
    """An Avro file that is built in memory, and stored when it is complete."""

    def __init__(self, output_file: OutputFile, shape: _Shape, metadata: dict[str, str]) -> None:
        # Not PyIceberg's own, which would build an encoder.
        self.output_file, self.metadata, self.sync_bytes = output_file, metadata, os.urandom(SYNC_SIZE)
        self._avro_schema, self.writer = shape
        self._content, self._block, self._entries_in_block = io.BytesIO(), io.BytesIO(), 0
        self.encoder, self._block_encoder = _Encoder(self._content), _Encoder(self._block)

    def __enter__(self) -> Self:
        codec = self.metadata[AVRO_CODEC_KEY]
        meta = {
            **self.metadata,
            SCHEMA_KEY: self._avro_schema,
            AVRO_CODEC_KEY: CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec) or codec,
        }
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
        self.output_file = _Length(len(content))  # type: ignore[assignment]  # PyIceberg asks for nothing else

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


@lru_cache(_SHAPES_KEPT)
def shape_of(version: TableVersion, partition: StructType) -> _Shape:
    written, held = _entry_schema(version, partition), _entry_schema(formats.DEFAULT_READ_VERSION, partition)
    avro = json.dumps(AvroSchemaConversion().iceberg_to_avro(written, schema_name="manifest_entry"))
    return _Shape(avro, resolve_writer(record_schema=held, file_schema=written))


def _entry_schema(version: TableVersion, partition: StructType) -> Schema:
    return formats.manifest_entry_schema_with_data_file(version, formats.data_file_with_partition(partition, version))

"""Manifests and manifest lists, read with cached readers; and the error for corrupt files.

PyIceberg converts the Avro schema of every file and builds a reader from it, which takes longer than reading a
hundred entries. All manifests of a table have the same few schemas.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import pyarrow as pa
from pyiceberg import manifest as formats
from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import BinaryReader, DoubleReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor, construct_reader
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile, _inherit_from_manifest
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DoubleType, FixedType, IcebergType
from pyiceberg.utils.concurrent import ExecutorFactory

from floe_dagster_iceberg._pyiceberg.file_io import FloeFileIO, StoredObject
from floe_dagster_iceberg.errors import ScanError

R = TypeVar("R", ManifestEntry, ManifestFile)
# Schemas hold the table's partition fields, so there are a few per table.
_READERS_KEPT: Final = 256
SCHEMA_KEY: Final = "avro.schema"
_HEAD: Final = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
# What Arrow's Parquet reader and PyIceberg's Avro reader raise when bytes are not what they should be.
_CORRUPT: Final = (pa.ArrowInvalid, EOFError, SystemError, UnicodeDecodeError, zlib.error)


@contextmanager
def reading_files(location: str) -> Iterator[None]:
    """Report corrupt data files and manifests of the table at a location as `ScanError`."""
    try:
        yield
    except _CORRUPT as error:
        # Not chained: Arrow's messages may show a value.
        raise ScanError(
            f"A file of the table in '{location}' is corrupt and cannot be read ({type(error).__name__}). "
            "Restore it, or roll the table back to a snapshot that does not need it."
        ) from None


def read_entries(
    manifest: ManifestFile,
    io: FileIO,
    *,
    discard_deleted: bool = True,
    keep: Callable[[DataFile], bool] = lambda _: True,
) -> list[ManifestEntry]:
    """The entries of a manifest, like `ManifestFile.fetch_manifest_entry`, whose file `keep` accepts."""
    entries = _read(io.new_input(manifest.manifest_path), ManifestEntry)
    if not entries and (manifest.added_files_count or manifest.existing_files_count):
        raise EOFError("A manifest that lists files is empty.")
    return [
        _inherit_from_manifest(entry, manifest)
        for entry in entries
        if (not discard_deleted or entry.status != formats.ManifestEntryStatus.DELETED) and keep(entry.data_file)
    ]


def read_all_entries(manifests: Sequence[ManifestFile], io: FileIO) -> Iterator[list[ManifestEntry]]:
    """The live entries of each manifest, several of which are read at a time if that takes requests."""
    read = partial(read_entries, io=io)
    if len(manifests) > 1 and isinstance(io, FloeFileIO):
        return ExecutorFactory.get_or_create().map(read, manifests)
    return map(read, manifests)


def read_manifests(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """The manifests of a snapshot, like `Snapshot.manifests`; none of no snapshot."""
    if snapshot is None or not snapshot.manifest_list:
        return []
    return _read(io.new_input(snapshot.manifest_list), ManifestFile)


def added_files(table: Table, snapshot_id: int) -> list[DataFile]:
    """The data files that a snapshot added."""
    manifests = read_manifests(table.metadata.snapshot_by_id(snapshot_id), table.io)
    own = [
        each
        for each in manifests
        if each.added_snapshot_id == snapshot_id and each.content == formats.ManifestContent.DATA
    ]
    entries = [entry for manifest in own for entry in read_entries(manifest, table.io)]
    return [entry.data_file for entry in entries if entry.status == formats.ManifestEntryStatus.ADDED]


def _read(file: InputFile, record_type: type[R]) -> list[R]:
    if isinstance(file, StoredObject):
        content = file.read_immutable()
    else:
        with file.open() as stream:
            content = stream.read()
    # PyIceberg's fast decoder reads past the end of its input, so that a truncated file may look like a shorter one.
    # It only gets blocks that are complete.
    if not content.startswith(MAGIC):
        raise EOFError("This is not an Avro file.")
    outside = StreamingBinaryDecoder(content)
    header = _HEAD.read(outside)
    if SCHEMA_KEY not in header.meta:
        raise ValueError("No schema found in Avro file headers")
    return reader_of(record_type, header.meta[SCHEMA_KEY]).read(list(_blocks(outside, header, len(content))))


def _blocks(decoder: BinaryDecoder, header: AvroFileHeader, length: int) -> Iterator[tuple[int, bytes]]:
    """How many records each block holds, and its bytes, decompressed."""
    codec = header.compression_codec()
    while decoder.tell() < length:
        count, block = decoder.read_int(), decoder.read_bytes()
        if count < 0 or decoder.read(SYNC_SIZE) != header.sync:
            raise EOFError("A block does not end where it should.")
        yield count, codec.decompress(block) if codec else block


class _RecordReader(NamedTuple):
    """Reads records of a schema. It is stateless, so threads may share it.

    Attributes:
        by_avro: Reads what Avro asks for.
        by_java: For schemas with a fixed type, None for others: in manifests, Iceberg's Java writes the length of such
            a value in front of it.
    """

    by_avro: Reader
    by_java: Reader | None

    def read(self, blocks: list[tuple[int, bytes]]) -> list[Any]:
        if self.by_java is None:
            read, decoders = self.by_avro.read, [(new_decoder(block), count) for count, block in blocks]
            return [read(decoder) for decoder, count in decoders for _ in range(count)]
        try:
            return _exact_records(self.by_avro, blocks)
        except (EOFError, ValueError):
            return _exact_records(self.by_java, blocks)


def _exact_records(reader: Reader, blocks: list[tuple[int, bytes]]) -> list[Any]:
    """Records of blocks that may be written in another way: then their end is not the end of the block."""
    found: list[Any] = []
    for count, block in blocks:
        decoder = StreamingBinaryDecoder(block)
        found += [reader.read(decoder) for _ in range(count)]
        if decoder.tell() != len(block):
            raise EOFError("A record does not end where it should.")
    return found


@lru_cache(_READERS_KEPT)
def reader_of(record_type: type[ManifestEntry | ManifestFile], avro_schema: str) -> _RecordReader:
    """The reader for records of a schema."""
    # PyIceberg writes this for a partition field whose column was dropped, and fails to read it.
    readable = avro_schema.replace('["null", "null"]', '["null", {"type": "null"}]')
    written = AvroFileHeader(b"", {SCHEMA_KEY: readable}, b"").get_schema()
    types: dict[int, Any]
    enums: dict[int, Any]
    if record_type is ManifestEntry:
        wanted = formats.MANIFEST_ENTRY_SCHEMAS[formats.DEFAULT_READ_VERSION]
        types = {-1: ManifestEntry, 2: DataFile}
        enums = {0: formats.ManifestEntryStatus, 101: formats.FileFormat, 134: formats.DataFileContent}
    else:
        wanted = formats.MANIFEST_LIST_FILE_SCHEMAS[formats.DEFAULT_READ_VERSION]
        types = {-1: ManifestFile, 508: formats.PartitionFieldSummary}
        enums = {517: formats.ManifestContent}
    resolver = _Resolver(types, enums)
    reader = resolver.resolve(written, wanted)
    return _RecordReader(reader, _JavaResolver(types, enums).resolve(written, wanted) if resolver.found_fixed else None)


class _Resolver(ReadSchemaResolver):
    """Builds PyIceberg's readers, but for the one that loses digits."""

    found_fixed = False

    def resolve(self, written: Schema, wanted: Schema) -> Reader:
        resolved: Any = visit_with_partner(written, wanted, self, SchemaPartnerAccessor())  # type: ignore[misc]
        return cast("Reader", resolved)

    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> Reader:
        del double_type, partner
        return _ExactDoubleReader()  # type: ignore[no-untyped-call]

    def visit_fixed(self, fixed_type: FixedType, partner: IcebergType | None) -> Reader:
        self.found_fixed = True
        return super().visit_fixed(fixed_type, partner)


class _JavaResolver(_Resolver):
    def visit_fixed(self, fixed_type: FixedType, partner: IcebergType | None) -> Reader:
        del fixed_type, partner
        return BinaryReader()  # type: ignore[no-untyped-call]


class _ExactDoubleReader(DoubleReader):
    """PyIceberg's fast decoder reads a double as a float."""

    def read(self, decoder: BinaryDecoder) -> float:
        return float(STRUCT_DOUBLE.unpack(decoder.read(STRUCT_DOUBLE.size))[0])

"""Manifests and manifest lists, read with cached readers; and the error for corrupt files.

PyIceberg converts the Avro schema of every file and builds a reader from it, which takes longer than reading a
hundred entries. All manifests of a table have the same few schemas.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyiceberg import manifest as formats
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile, _inherit_from_manifest, _manifest_cache
from pyiceberg.table.snapshots import Snapshot

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
    entries = list(_read(io.new_input(manifest.manifest_path), ManifestEntry))
    if not entries and (manifest.added_files_count or manifest.existing_files_count):
        raise EOFError("A manifest that lists files is empty.")
    return [
        _inherit_from_manifest(entry, manifest)
        for entry in entries
        if (not discard_deleted or entry.status != formats.ManifestEntryStatus.DELETED) and keep(entry.data_file)
    ]


def read_manifests(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """The manifests of a snapshot, like `Snapshot.manifests`; none of no snapshot."""
    if snapshot is None or not snapshot.manifest_list:
        return []
    found = _read(io.new_input(snapshot.manifest_list), ManifestFile)
    return [_manifest_cache.get_or_cache(manifest) for manifest in found]


def _read(file: InputFile, record_type: type[R]) -> Iterator[R]:
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
    reader, codec = reader_of(record_type, header.meta[SCHEMA_KEY]), header.compression_codec()
    for count, block in _blocks(outside, header.sync, len(content)):
        inside = new_decoder(codec.decompress(block) if codec else block)
        for _ in range(count):
            yield reader.read(inside)


def _blocks(decoder: BinaryDecoder, sync: bytes, length: int) -> Iterator[tuple[int, bytes]]:
    """How many records each block holds, and its bytes."""
    while decoder.tell() < length:
        count, block = decoder.read_int(), decoder.read_bytes()
        if count < 0 or decoder.read(SYNC_SIZE) != sync:
            raise EOFError("A block does not end where it should.")
        yield count, block


@lru_cache(_READERS_KEPT)
def reader_of(record_type: type[ManifestEntry | ManifestFile], avro_schema: str) -> Reader:
    """The reader for records of a schema. It is stateless, so threads may share it."""
    written = AvroFileHeader(b"", {SCHEMA_KEY: avro_schema}, b"").get_schema()
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
    return resolve_reader(written, wanted, types, enums)

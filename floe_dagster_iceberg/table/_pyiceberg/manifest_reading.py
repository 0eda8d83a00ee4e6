"""Manifests and lists of them, read without working out again how such a file is read.

PyIceberg turns the Avro schema in the head of every file into one of its own and builds a reader from
that, which takes longer than reading a hundred entries. All manifests of a table have the same few schemas.
"""

from functools import lru_cache
from typing import Any, Final, TypeVar

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import _SCHEMA_KEY, META_SCHEMA, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
    _manifest_cache,
)
from pyiceberg.table.snapshots import Snapshot

R = TypeVar("R", ManifestEntry, ManifestFile)

# Schemas hold the table's partition fields, so a process meets a few per table.
_READERS_KEPT: Final = 256
_HEAD: Final = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def read_entries(manifest: ManifestFile, io: FileIO, *, discard_deleted: bool = True) -> list[ManifestEntry]:
    """What a manifest lists, like `ManifestFile.fetch_manifest_entry`."""
    return [
        _inherit_from_manifest(entry, manifest)
        for entry in _AvroFile(io.new_input(manifest.manifest_path), ManifestEntry)
        if not discard_deleted or entry.status != ManifestEntryStatus.DELETED
    ]


def read_manifests(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """The manifests of a snapshot, like `Snapshot.manifests`; none of no snapshot."""
    if snapshot is None or not snapshot.manifest_list:
        return []
    found = _AvroFile(io.new_input(snapshot.manifest_list), ManifestFile)
    return [_manifest_cache.get_or_cache(manifest) for manifest in found]


class _AvroFile(AvroFile[R]):
    """A file that is open as soon as it is made: PyIceberg reads it into memory anyway."""

    def __init__(self, input_file: InputFile, record_type: type[R]) -> None:
        super().__init__(input_file)
        with input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = _HEAD.read(self.decoder)
        if _SCHEMA_KEY not in self.header.meta:
            raise ValueError("No schema found in Avro file headers")
        self.reader = _reader_of(record_type, self.header.meta[_SCHEMA_KEY])


@lru_cache(_READERS_KEPT)
def _reader_of(record_type: type[ManifestEntry | ManifestFile], avro_schema: str) -> Reader:
    """The reader of files with a schema. Readers hold no state, so threads may share one."""
    written = AvroFileHeader(b"", {_SCHEMA_KEY: avro_schema}, b"").get_schema()
    types: dict[int, Any]
    enums: dict[int, Any]
    if record_type is ManifestEntry:
        wanted = MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION]
        types = {-1: ManifestEntry, 2: DataFile}
        enums = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    else:
        wanted = MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION]
        types = {-1: ManifestFile, 508: PartitionFieldSummary}
        enums = {517: ManifestContent}
    return resolve_reader(written, wanted, types, enums)

"""Why a table's metadata cannot be parsed: it is missing, it is truncated, or PyIceberg does not know a part of it.

Only the first two are damage. In the third case another engine wrote something newer, and the table must never be
repaired or replaced.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlparse

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor, FromByteStream, FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType

from floe_dagster_iceberg._pyiceberg.file_io import StoredObject
from floe_dagster_iceberg._pyiceberg.foreign_types import parse_metadata
from floe_dagster_iceberg.errors import StaleTableMetadataError, UnsupportedMetadataError
from floe_dagster_iceberg.secrets import scrub_exception

NEWEST_FORMAT_VERSION: Final = 3
PATH_PROPERTIES: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Properties that put files of a table outside its location."""
# Names of types and nothing else: they end up in messages.
_TYPE_NAME: Final = re.compile(r"[\w(), .:-]{1,60}")
_MOST_NAMED: Final = 5


def read_metadata(table: object, file_io: FileIO, location: str) -> TableMetadata:
    """Read a metadata file, also one with columns of types that PyIceberg does not know.

    Raises:
        StaleTableMetadataError: It is missing or truncated.
        UnsupportedMetadataError: It is complete, and cannot be parsed for another reason.
    """
    try:
        file = file_io.new_input(location)
        if not isinstance(file, StoredObject):
            return FromInputFile.table_metadata(file)
        return FromByteStream.table_metadata(io.BytesIO(file.read()), compression=Compressor.get_compressor(location))
    # Of the file, of its compression, and of PyIceberg, which does not say which file it was.
    except (FileNotFoundError, ValueError, EOFError, gzip.BadGzipFile, zlib.error, ValidationError) as error:
        return _read_again(table, file_io, location, scrub_exception(error))


def _read_again(table: object, file_io: FileIO, location: str, cause: BaseException | None) -> TableMetadata:
    """Read a file that PyIceberg cannot parse, perhaps only because of the type of a column."""
    with suppress(OSError, ValueError, ValidationError), file_io.new_input(location).open() as stream:
        return parse_metadata(parse_document(stream.read(), location))
    raise to_metadata_error(table, file_io, location) from cause


def to_metadata_error(
    table: object, file_io: FileIO, location: str
) -> StaleTableMetadataError | UnsupportedMetadataError:
    """The error for a metadata file that PyIceberg cannot parse; the file is read again to find out why."""
    try:
        with file_io.new_input(location).open() as stream:
            content = stream.read()
    except FileNotFoundError:
        if is_cut_off(location):
            reason = "its location has a '?' or '#', where PyIceberg ends the path"
            return UnsupportedMetadataError(table, reason=reason, metadata_location=location)
        return StaleTableMetadataError(table, metadata_location=location, reason="the file is missing")
    if not content:
        return StaleTableMetadataError(table, metadata_location=location, reason="the file is empty")
    try:
        document = parse_document(content, location)
    except ValueError:
        return StaleTableMetadataError(table, metadata_location=location, reason="it is truncated or not JSON")
    return to_unsupported_error(table, document, metadata_location=location)


def is_cut_off(location: str) -> bool:
    """Whether PyIceberg takes the end of a location for the query or fragment of a URI, and opens another path."""
    return bool(set("?#") & set(location)) and bool(urlparse(location).scheme)


def parse_document(content: bytes, location: str) -> Any:
    """The JSON of a metadata file.

    Raises:
        ValueError: It is truncated, or not JSON.
    """
    try:
        with Compressor.get_compressor(location).stream_decompressor(io.BytesIO(content)) as stream:
            return json.loads(stream.read())
    except (OSError, EOFError, zlib.error) as error:
        # What gzip raises for content that is no archive, and for one that ends too early.
        raise ValueError(f"{location} cannot be decompressed") from error


def to_unsupported_error(
    table: object, document: Any, *, metadata_location: str | None = None
) -> UnsupportedMetadataError:
    """The error for metadata that is valid JSON and that PyIceberg cannot parse.

    Args:
        table: Name of the table.
        document: The parsed JSON of the metadata file.
        metadata_location: Where it was read from.
    """
    metadata = document if isinstance(document, Mapping) else {}
    return UnsupportedMetadataError(
        table,
        reason=describe_unsupported(document),
        metadata_location=metadata_location,
        format_version=_format_version(metadata),
        locations=tuple(_locations(metadata)),
        document=metadata,
    )


def describe_unsupported(document: Any) -> str:
    """What PyIceberg does not know in the parsed JSON of a metadata file, as the end of a sentence.

    >>> fields = [{"id": 1, "name": "v", "required": False, "type": "variant"}]
    >>> describe_unsupported({"format-version": 3, "schemas": [{"type": "struct", "fields": fields}]})
    "column 'v' has type 'variant'"
    """
    if not isinstance(document, Mapping):
        return "it is not the metadata of a table"
    version = _format_version(document)
    if version is None:
        return "it has no format version"
    if version > NEWEST_FORMAT_VERSION:
        return f"it has format version {version}"
    unknown = list(dict.fromkeys(_unknown_columns(document)))
    if not unknown:
        return f"it has a part that PyIceberg does not know (format version {version})"
    more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    return ", ".join(f"column '{column}' has type '{kind}'" for column, kind in unknown[:_MOST_NAMED]) + more


def _unknown_columns(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Columns of all schemas, and types that PyIceberg does not know; the current schema's first."""
    schemas = [schema for schema in _list(metadata.get("schemas")) if isinstance(schema, Mapping)]
    current = metadata.get("current-schema-id")
    for schema in sorted(schemas, key=lambda schema: schema.get("schema-id") != current):
        yield from _unknown_types(schema, ())


def _unknown_types(kind: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    match kind:
        case str() if _is_known(kind):
            return
        case {"fields": list(fields)}:
            for field in fields:
                if isinstance(field, Mapping):
                    yield from _unknown_types(field.get("type"), (*path, str(field.get("name"))))
        case {"type": "list", "element": element}:
            yield from _unknown_types(element, (*path, "element"))
        case {"type": "map", "key": key, "value": value}:
            yield from _unknown_types(key, (*path, "key"))
            yield from _unknown_types(value, (*path, "value"))
        case _:
            name = kind.get("type") if isinstance(kind, Mapping) else kind
            yield ".".join(path), name if isinstance(name, str) and _TYPE_NAME.fullmatch(name) else "unknown"


def _is_known(kind: str) -> bool:
    try:
        IcebergType.model_validate(kind)
    except ValueError:
        return False
    return True


def _format_version(metadata: Mapping[str, Any]) -> int | None:
    version = metadata.get("format-version")
    return version if isinstance(version, int) else None


def _locations(metadata: Mapping[str, Any]) -> Iterator[str]:
    properties = metadata.get("properties")
    paths = [properties.get(path) for path in PATH_PROPERTIES] if isinstance(properties, Mapping) else []
    yield from (place for place in (metadata.get("location"), *paths) if isinstance(place, str))


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []

"""Table properties that decide how a table is written: values that cannot be used are refused before any file is."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

import pyarrow as pa
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.types import strtobool

from floe_dagster_iceberg._pyiceberg.manifest_writer import to_avro_codec
from floe_dagster_iceberg.errors import ValidationError

_FORMAT_VERSIONS: Final = ("1", "2", "3")
_LARGEST: Final = 2**63 - 1
_UNCOMPRESSED: Final = ("uncompressed", "none")
_METRICS_MODE: Final = re.compile(r"none|counts|full|truncate\((?!0+\))\d+\)")
_METRICS: Final = (
    TableProperties.DEFAULT_WRITE_METRICS_MODE,
    f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.",
)
_PARQUET_CODEC: Final = TableProperties.PARQUET_COMPRESSION
_PARQUET_LEVEL: Final = TableProperties.PARQUET_COMPRESSION_LEVEL

# Properties that PyIceberg or this package converts to a number, and the smallest one allowed.
_SMALLEST: Final[Mapping[str, int]] = {
    TableProperties.WRITE_TARGET_FILE_SIZE_BYTES: 1,
    TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES: 1,
    TableProperties.PARQUET_ROW_GROUP_LIMIT: 1,
    TableProperties.PARQUET_PAGE_SIZE_BYTES: 1,
    TableProperties.PARQUET_PAGE_ROW_LIMIT: 1,
    TableProperties.PARQUET_DICT_SIZE_BYTES: 1,
    TableProperties.MANIFEST_TARGET_SIZE_BYTES: 1,
    TableProperties.MANIFEST_MIN_MERGE_COUNT: 0,
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: 0,
    TableProperties.WRITE_PARTITION_SUMMARY_LIMIT: 0,
}
_BOOLEANS: Final = (
    TableProperties.OBJECT_STORE_ENABLED,
    TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS,
    TableProperties.MANIFEST_MERGE_ENABLED,
)
FOR_METADATA: Final = (
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
    TableProperties.OBJECT_STORE_ENABLED,
    TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS,
    TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL,
)
"""Those without which no metadata file can be written, by a client that writes it itself."""


def format_version_of(properties: Mapping[str, str], table: object) -> int:
    """The format version that properties ask for; Iceberg's default if they ask for none.

    Raises:
        ValidationError: There is no such version.
    """
    version = properties.get(TableProperties.FORMAT_VERSION, str(TableProperties.DEFAULT_FORMAT_VERSION))
    if version not in _FORMAT_VERSIONS:
        raise _invalid(TableProperties.FORMAT_VERSION, version, f"one of {', '.join(_FORMAT_VERSIONS)}", table)
    return int(version)


def check_properties(properties: Mapping[str, str], table: object, *, only: Collection[str] | None = None) -> None:
    """Refuse values of table properties that cannot be used; of those in `only`, if given.

    Raises:
        ValidationError: A value is invalid. The message names the property and the value.
    """
    for key, given in properties.items():
        value = str(given)
        if only is not None and key not in only:
            continue
        if key in _SMALLEST and not (value.isdecimal() and _SMALLEST[key] <= int(value) <= _LARGEST):
            raise _invalid(key, value, f"a whole number from {_SMALLEST[key]} to {_LARGEST}", table)
        if key in _BOOLEANS:
            _check(lambda: strtobool(value), key, value, "true or false", table)  # noqa: B023 - called at once
        elif key.startswith(_METRICS) and not _METRICS_MODE.fullmatch(value.strip().lower()):
            raise _invalid(key, value, "none, counts, full or a truncate(16) of any length", table)
        elif key == TableProperties.WRITE_AVRO_COMPRESSION:
            _check(lambda: _compress_avro(value), key, value, "gzip, zstd, snappy or uncompressed", table)  # noqa: B023
        elif key == TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL:
            impl = "a class that can be imported"
            _check(lambda: load_location_provider("file:///", dict(properties)), key, value, impl, table)
        elif key == _PARQUET_CODEC:
            _check(lambda: _parquet_codec(properties), key, value, "zstd, snappy, gzip, brotli, lz4 or none", table)
        elif key == _PARQUET_LEVEL and value:
            level = "a level that the codec has"
            _check(lambda: _parquet_codec(properties, int(value)), key, value, level, table)  # noqa: B023


def _parquet_codec(properties: Mapping[str, str], level: int | None = None) -> None:
    codec = properties.get(_PARQUET_CODEC, TableProperties.PARQUET_COMPRESSION_DEFAULT).lower()
    if codec not in _UNCOMPRESSED:
        pa.Codec(codec, compression_level=level)


def _compress_avro(name: str) -> None:
    codec = KNOWN_CODECS[to_avro_codec(name)]
    if codec is not None:
        # Some need a library that may not be installed.
        codec.compress(b"")


def _check(use: Callable[[], object], key: str, value: str, wanted: str, table: object) -> None:
    try:
        use()
    except (ValueError, TypeError, LookupError, OverflowError, ImportError, OSError, pa.ArrowException):
        raise _invalid(key, value, wanted, table) from None


def _invalid(key: str, value: str, wanted: str, table: object) -> ValidationError:
    return ValidationError(
        f"Property '{key}' of table '{table}' is '{value}', and must be {wanted}. Correct or remove it.", table=table
    )

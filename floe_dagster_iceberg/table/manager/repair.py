"""Repair of tables whose metadata file is missing or invalid: the newest readable version is registered again.

Only with `stale_table_recovery_mode="repair"`: later commits are lost to the table, though their files stay. If no
version is left, the catalog's entry is removed, so that the next write may create the table.
"""

import logging
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError as PyIcebergValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile

from floe_dagster_iceberg.errors import FloeStorageError, StaleTableMetadataError
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.storage import list_files
from floe_dagster_iceberg.telemetry import describe_table, traced_step

_SUFFIX = ".metadata.json"
_logger = logging.getLogger(__name__)


def _describe(_: Catalog, identifier: TableIdentifier, *__: object) -> dict[str, Any]:
    return describe_table(identifier)


@traced_step("repair_table", _describe)
def repair_table(catalog: Catalog, identifier: TableIdentifier, stale: StaleTableMetadataError) -> None:
    """Register the newest readable version of a table in place of the one that cannot be read.

    Raises:
        StaleTableMetadataError: The location of the versions is unknown, or they cannot be listed.
    """
    if stale.metadata_location is None:
        raise stale
    try:
        with translate_errors(catalog.name, table=identifier):
            newest = _newest_readable(catalog, stale.metadata_location)
            catalog.drop_table(identifier.as_tuple)
            if newest is not None:
                catalog.register_table(identifier.as_tuple, newest)
    except FloeStorageError as error:
        raise stale from error
    what = f"it is registered again as of {newest}" if newest else "no version is left, so its entry was removed"
    _logger.warning("The metadata of table '%s' could not be read (%s): %s.", identifier, stale.metadata_location, what)


def _newest_readable(catalog: Catalog, metadata_location: str) -> str | None:
    folder, _, broken = metadata_location.rpartition("/")
    io = load_file_io(catalog.properties, metadata_location)
    names = {file.location.rpartition("/")[2] for file in list_files(io, folder) if file.location.endswith(_SUFFIX)}
    versions = sorted((name for name in names - {broken} if _version(name) >= 0), key=_version, reverse=True)
    return next((f"{folder}/{name}" for name in versions if _is_readable(io, f"{folder}/{name}")), None)


def _version(name: str) -> int:
    """Number of a version: catalogs write `00012-<uuid>.metadata.json`; -1 for names of another form."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _is_readable(io: FileIO, location: str) -> bool:
    try:
        FromInputFile.table_metadata(io.new_input(location))
    # A version that is not even JSON raises Pydantic's error, which is a ValueError.
    except (PyIcebergValidationError, ValueError, FileNotFoundError):
        return False
    return True

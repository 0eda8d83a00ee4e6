"""Trouble with the storage of a table, told as errors of this package: full, closed, away, a file that is missing."""

import errno
from http import HTTPStatus

from floe_dagster_iceberg.errors import (
    CatalogConnectionError,
    FloeStorageError,
    IcebergError,
    ScanError,
    StaleTableMetadataError,
    WriteError,
)
from floe_dagster_iceberg.plugins.failures import Failed

_STORAGE_FULL = (errno.ENOSPC, errno.EDQUOT)
# How object stores, through PyArrow, spell the same.
_STORAGE_FULL_WORDS = ("HTTP status 507", "StorageFull", "QuotaExceeded", "InsufficientStorage")
_STORAGE_REFUSES_WORDS = (
    "ACCESS_DENIED",
    "ExpiredToken",
    "HTTP status 403",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "SIGNATURE_DOES_NOT_MATCH",
)
_STORAGE_REFUSES = (errno.EACCES, errno.EPERM, errno.EROFS)
# How PyArrow spells trouble with an object store that may be over in a minute.
_STORAGE_AWAY = ("NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "REQUEST_TIMEOUT", "curlCode")


def storage_failed(failed: Failed) -> FloeStorageError:
    """Storage that is full, refuses, does not answer, or fails otherwise."""
    number, text = getattr(failed.error, "errno", None), str(failed.error)
    if number in _STORAGE_FULL or any(word in text for word in _STORAGE_FULL_WORDS):
        return WriteError(
            f"The storage of {failed.subject} is full ({failed.reason}). Free some space, then run it again.",
            table=failed.table,
        )
    refused = number in _STORAGE_REFUSES or any(word in text for word in _STORAGE_REFUSES_WORDS)
    if refused or isinstance(failed.error, PermissionError):
        return WriteError(
            f"The storage of {failed.subject} denied access ({failed.reason}). "
            "Check the permissions of the warehouse location and the storage credentials.",
            table=failed.table,
        )
    if any(word in text for word in _STORAGE_AWAY):
        return CatalogConnectionError(failed.catalog, reason=f"its storage does not answer ({failed.reason})")
    return IcebergError(f"The storage of {failed.subject} failed: {failed.reason}.", table=failed.table)


def file_missing(failed: Failed) -> FloeStorageError:
    """A file of a table is not where it should be."""
    if failed.metadata_file is not None:
        return stale_metadata(failed)
    return ScanError(
        f"A file of {failed.subject} is missing from storage ({failed.reason}). "
        "Restore it, or roll the table back to a snapshot that does not need it.",
        table=failed.table,
    )


def stale_metadata(failed: Failed) -> FloeStorageError:
    """The metadata file that the catalog points to is missing, or is none."""
    missing = isinstance(failed.error, FileNotFoundError) or failed.status == HTTPStatus.NOT_FOUND
    reason = "the file is missing" if missing else "it makes no sense"
    return StaleTableMetadataError(failed.table, metadata_location=failed.metadata_file, reason=reason)

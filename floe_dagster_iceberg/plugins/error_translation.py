"""Exceptions of PyIceberg and the libraries below it as errors of this package."""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from textwrap import shorten
from typing import Any, Final
from urllib.parse import urlsplit

import pydantic

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.models.identifiers import join_parts, namespace_of
from floe_dagster_iceberg.secrets import scrub_exception, scrub_text

# By parts of class names of requests, urllib3 and Python, the most specific first.
_HTTP_FAILURES: Final = {
    "NameResolutionError": "has an unknown host name",
    "gaierror": "has an unknown host name",
    "ConnectionRefusedError": "refused the connection",
    "ConnectTimeout": "did not accept the connection in time",
    "ReadTimeout": "did not respond in time",
    "SSLError": "cannot be trusted: its certificate or protocol was not accepted",
    "ProxyError": "cannot be reached through the proxy",
    "RemoteDisconnected": "closed the connection without a response",
    "ConnectionResetError": "closed the connection without a response",
    "IncompleteRead": "closed the connection in the middle of its response",
    "ChunkedEncodingError": "closed the connection in the middle of its response",
    "NewConnectionError": "cannot be connected to",
}


def _describe_http_failure(error: BaseException) -> str | None:
    """The server and what it did, as in 'http://catalog:8181 refused the connection'; None if unknown.

    Only scheme, host and port of the address: the rest may hold secrets.
    """
    url = getattr(getattr(error, "request", None), "url", None)
    if not isinstance(url, str):
        return None
    classes = [type(cause).__name__ for cause in _chain(error)]
    failures = (text for name, text in _HTTP_FAILURES.items() if any(name in each for each in classes))
    failure, parts = next(failures, None), urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return None if failure is None else f"{parts.scheme}://{parts.hostname}{port} {failure}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and its causes; requests and urllib3 pass theirs as arguments."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        linked = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        waiting += [each for each in linked if isinstance(each, BaseException)]


_METADATA_FILE = re.compile(r"[^\s'\"<>()\[\]]+\.metadata\.json")
_LONGEST_REASON = 200


@dataclass(frozen=True)
class ForeignError:
    """An exception of another library, and what it was raised for."""

    error: BaseException
    catalog: str
    table: object
    namespace: object

    @property
    def table_or_catalog(self) -> object:
        return self.catalog if self.table is None else self.table

    @property
    def subject(self) -> str:
        return f"catalog '{self.catalog}'" if self.table is None else f"table '{self.table}'"

    @property
    def status(self) -> int | None:
        """HTTP status, if the exception stands for a response."""
        for error in (self.error, self.error.__cause__):
            if (status := getattr(getattr(error, "response", None), "status_code", None)) is not None:
                return int(status)
        return None

    @property
    def reason(self) -> str:
        """What went wrong, without text of the server."""
        kind = type(self.error).__name__
        if self.status is not None:
            return f"HTTP {self.status} ({kind})"
        if (description := _describe_http_failure(self.error)) is not None:
            return description
        text = _first_line(str(getattr(self.error, "orig", None) or self.error))
        return f"{kind}: {text}" if text else kind

    @property
    def metadata_file(self) -> str | None:
        """The table's metadata file that the exception names, if any."""
        found = None if self.table is None else _METADATA_FILE.search(str(self.error))
        return None if found is None else found[0]

    @property
    def namespace_name(self) -> str:
        if self.namespace is not None:
            return _dotted(self.namespace)
        name = _dotted(self.table)
        return namespace_of(name) or name


def _first_line(text: str) -> str:
    lines = scrub_text(text).strip().splitlines()
    return shorten(lines[0], _LONGEST_REASON, placeholder=" …").rstrip(". ") if lines else ""


def _dotted(identifier: Any) -> str:
    return join_parts(identifier) if isinstance(identifier, tuple) else str(identifier)


# Error numbers of file systems, and messages of object stores through PyArrow.
_STORAGE_FULL = (errno.ENOSPC, errno.EDQUOT)
_STORAGE_FULL_WORDS = ("HTTP status 507", "StorageFull", "QuotaExceeded", "InsufficientStorage")
_STORAGE_REFUSES = (errno.EACCES, errno.EPERM, errno.EROFS)
_STORAGE_REFUSES_WORDS = (
    "ACCESS_DENIED",
    "ExpiredToken",
    "HTTP status 403",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "SIGNATURE_DOES_NOT_MATCH",
)
# Those that may be over in a minute.
_STORAGE_AWAY = ("NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "REQUEST_TIMEOUT", "curlCode")


def _storage_failed(failed: ForeignError) -> errors.FloeStorageError:
    number, text = getattr(failed.error, "errno", None), str(failed.error)
    if number in _STORAGE_FULL or any(word in text for word in _STORAGE_FULL_WORDS):
        return errors.WriteError(
            f"The storage of {failed.subject} is full ({failed.reason}). Free some space, then run it again.",
            table=failed.table,
        )
    refused = number in _STORAGE_REFUSES or any(word in text for word in _STORAGE_REFUSES_WORDS)
    if refused or isinstance(failed.error, PermissionError):
        return errors.WriteError(
            f"The storage of {failed.subject} denied access ({failed.reason}). "
            "Check the permissions of the warehouse location and the storage credentials.",
            table=failed.table,
        )
    if any(word in text for word in _STORAGE_AWAY):
        return errors.CatalogConnectionError(failed.catalog, reason=f"its storage is unreachable ({failed.reason})")
    return errors.IcebergError(f"The storage of {failed.subject} failed: {failed.reason}.", table=failed.table)


def _file_missing(failed: ForeignError) -> errors.FloeStorageError:
    if failed.metadata_file is not None:
        return _stale_metadata(failed)
    return errors.ScanError(
        f"A file of {failed.subject} is missing from storage ({failed.reason}). "
        "Restore it, or roll the table back to a snapshot that does not need it.",
        table=failed.table,
    )


def _stale_metadata(failed: ForeignError) -> errors.FloeStorageError:
    missing = isinstance(failed.error, FileNotFoundError) or failed.status == HTTPStatus.NOT_FOUND
    reason = "the file is missing" if missing else "it is invalid"
    return errors.StaleTableMetadataError(failed.table, metadata_location=failed.metadata_file, reason=reason)


Translation = Callable[[ForeignError], errors.FloeStorageError | None]


@contextmanager
def translate_errors(catalog: str, *, table: object = None, namespace: object = None) -> Iterator[None]:
    """Raise exceptions of the body as errors of this package.

    Args:
        catalog: Name of the catalog that the body uses.
        table: The table that the error names, if there is one.
        namespace: The namespace, if it is not the table's.
    """
    try:
        yield
    except errors.FloeStorageError:
        raise
    # Exceptions that `TRANSLATIONS` does not list pass unchanged.
    except BaseException as error:
        translate = _translation_of(error)
        translated = None if translate is None else translate(ForeignError(error, catalog, table, namespace))
        if translated is None:
            raise
        raise translated from scrub_exception(error)


def _connection_lost(failed: ForeignError) -> errors.FloeStorageError:
    return errors.CatalogConnectionError(failed.catalog, reason=failed.reason)


def _refused_credentials(failed: ForeignError) -> errors.FloeStorageError:
    return errors.CatalogAuthenticationError(failed.catalog, reason=failed.reason)


def _conflict(failed: ForeignError) -> errors.FloeStorageError:
    return errors.CommitConflictError(failed.table_or_catalog, attempts=1, reason=failed.reason)


def _outcome_unknown(failed: ForeignError) -> errors.FloeStorageError:
    return errors.CommitOutcomeUnknownError(failed.table_or_catalog, snapshot_id=None, reason=failed.reason)


def _no_such_table(failed: ForeignError) -> errors.FloeStorageError:
    if failed.metadata_file is not None:
        # A server that lacks the metadata file of a table responds with 404, too.
        return _stale_metadata(failed)
    return errors.NoSuchTableError("(unnamed)" if failed.table is None else failed.table)


def _no_such_namespace(failed: ForeignError) -> errors.FloeStorageError:
    if failed.metadata_file is not None:
        return _stale_metadata(failed)
    return errors.NoSuchNamespaceError(failed.namespace_name)


def _table_exists(failed: ForeignError) -> errors.FloeStorageError:
    return errors.TableAlreadyExistsError("(unnamed)" if failed.table is None else failed.table)


def _refused(failed: ForeignError) -> errors.FloeStorageError:
    return errors.ValidationError(f"The request for {failed.subject} was refused: {failed.reason}.", table=failed.table)


def _namespace_exists(failed: ForeignError) -> errors.FloeStorageError:
    return errors.ValidationError(
        f"Namespace '{failed.namespace_name}' already exists in catalog '{failed.catalog}'. Use it as it is."
    )


def _namespace_not_empty(failed: ForeignError) -> errors.FloeStorageError:
    return errors.ValidationError(
        f"Namespace '{failed.namespace_name}' of catalog '{failed.catalog}' still holds tables. Drop them first."
    )


def _view_exists(failed: ForeignError) -> errors.FloeStorageError:
    return errors.ValidationError(f"A view named like {failed.subject} already exists. Choose another name.")


def _rest_error(failed: ForeignError) -> errors.FloeStorageError:
    # PyIceberg has no classes for most responses, so the status decides.
    if failed.status is None or failed.status >= 500:  # noqa: PLR2004 - the first status that blames the server
        return _server_failed(failed)
    if failed.status == HTTPStatus.NOT_FOUND and failed.table is not None:
        return _no_such_table(failed)
    if failed.status == HTTPStatus.NOT_FOUND and failed.namespace is not None:
        # PyIceberg has a class for a missing namespace; here its parent is missing.
        return errors.NoSuchNamespaceError(namespace_of(failed.namespace_name) or failed.namespace_name)
    return errors.ValidationError(
        f"The request for {failed.subject} was refused: {failed.reason}. "
        "Check the catalog's URI and warehouse, and that the server supports this operation.",
        table=failed.table,
    )


def _server_failed(failed: ForeignError) -> errors.FloeStorageError:
    return _connection_lost(failed) if failed.metadata_file is None else _stale_metadata(failed)


def _bad_metadata(failed: ForeignError) -> errors.FloeStorageError:
    # PyIceberg raises one class for metadata that is truncated, for metadata that it does not know, and for an
    # incompatible schema. Our own catalogs look into the metadata; this is for all others.
    if (reason := _unsupported(failed.error)) is not None:
        return errors.UnsupportedMetadataError(
            failed.table_or_catalog, reason=reason, metadata_location=failed.metadata_file
        )
    return _stale_metadata(failed) if "TableMetadata" in str(failed.error) else _refused(failed)


_UNKNOWN_TYPE = re.compile(r"(?:Unsupported field type: '|Type not recognized: )(?P<type>[\w(), .:-]{1,60})")


def _unsupported(error: BaseException) -> str | None:
    """What PyIceberg does not know in a table's metadata; None if it is something else, or not even JSON."""
    parsing = next((each for each in _chain(error) if isinstance(each, pydantic.ValidationError)), None)
    if parsing is None or parsing.title not in ("TableMetadataWrapper", "TableResponse"):
        return None
    entries = parsing.errors(include_input=False, include_context=False, include_url=False)
    if parsing.title == "TableResponse":
        entries = [entry for entry in entries if entry["loc"][:1] == ("metadata",)]
    if not entries or any(entry["type"] == "json_invalid" for entry in entries):
        return None
    found = (_UNKNOWN_TYPE.search(entry["msg"]) for entry in entries)
    types = dict.fromkeys(each["type"] for each in found if each is not None)
    return f"it has type {', '.join(map(repr, types))}" if types else "it has a part that PyIceberg does not know"


def _unreadable_response(failed: ForeignError) -> errors.FloeStorageError:
    title = getattr(failed.error, "title", "")
    if title == "NameMapping":
        return errors.ValidationError(
            f"The property 'schema.name-mapping.default' of {failed.subject} is no name mapping. Correct or remove it.",
            table=failed.table,
        )
    if "Metadata" in title or _unsupported(failed.error) is not None:
        return _bad_metadata(failed)
    reason = f"the response is not that of an Iceberg catalog ({title or 'unreadable JSON'})"
    return errors.CatalogConnectionError(failed.catalog, reason=reason)


def _not_supported(failed: ForeignError) -> errors.FloeStorageError:
    reason = failed.reason.removeprefix("NotImplementedError: ")
    spark = "" if failed.table is None else " Use Spark: give the IO manager or the asset an IcebergSparkResource."
    return errors.EngineCapabilityError(
        f"PyIceberg does not support this for {failed.subject}: {reason}.{spark}",
        engine="pyiceberg",
        table=failed.table,
        reason=reason,
    )


# The extra of this package that has a library or, for PyIceberg's own error, the extra of PyIceberg that it names.
_EXTRAS = {
    "psycopg2": "postgres",
    "s3fs": "s3",
    "gcsfs": "gcs",
    "adlfs": "azure",
    "boto3": "glue",
    "mypy_boto3_glue": "glue",
    "glue": "glue",
    "thrift": "hive",
    "hive_metastore": "hive",
    "hive": "hive",
}
_NAMED_EXTRA = re.compile(r"pyiceberg\[(?P<name>[\w-]+)\]")


def _not_installed(failed: ForeignError) -> errors.FloeStorageError:
    found = _NAMED_EXTRA.search(str(failed.error))
    library = found["name"] if found else (getattr(failed.error, "name", None) or "").partition(".")[0]
    extra = _EXTRAS.get(library)
    remedy = (
        f"Install it with: pip install 'floe-dagster-iceberg[{extra}]'."
        if extra
        else "Install it, or use a catalog and storage that an extra of floe-dagster-iceberg supports: "
        f"{', '.join(dict.fromkeys(_EXTRAS.values()))}."
    )
    what = f"'{library}'" if library else failed.reason
    return errors.ValidationError(f"{failed.subject.capitalize()} needs {what}, which is not installed. {remedy}")


_UNKNOWN_SCHEME = re.compile(
    r"(?:Unrecognized filesystem type in URI|No registered filesystem for scheme): (?P<name>\S+)"
)


_NO_SUCH_CLASS = re.compile(r"Could not initialize (?P<role>FileIO|LocationProvider): (?P<name>\S+)")
_OUT_OF_RANGE = re.compile(r"date value out of range|must have magnitude|year -?\d+ is out of range")


def _unusable_value(failed: ForeignError) -> errors.FloeStorageError | None:
    """The error for a location or a value that PyIceberg cannot use; other ValueErrors are bugs, and must look so."""
    if (found := _UNKNOWN_SCHEME.search(str(failed.error))) is not None:
        return errors.ValidationError(
            f"A location of {failed.subject} has the scheme '{found['name']}', which PyIceberg cannot open. "
            "Check the table's location and the warehouse, or set the catalog property py-io-impl.",
            table=failed.table,
        )
    if (found := _NO_SUCH_CLASS.search(str(failed.error))) is not None:
        return errors.ValidationError(
            f"The {found['role']} '{found['name']}' of {failed.subject} cannot be loaded. "
            "Install the package that has the class, or correct the property that names it.",
            table=failed.table,
        )
    if _OUT_OF_RANGE.search(str(failed.error)):
        return errors.EngineCapabilityError(
            f"Dates or timestamps for {failed.subject} lie outside the years 1 to 9999, which PyIceberg cannot handle. "
            "Correct or drop them, or use Spark.",
            engine="pyiceberg",
            table=failed.table,
        )
    return None


def _database_failed(failed: ForeignError) -> errors.FloeStorageError:
    text = str(getattr(failed.error, "orig", failed.error)).lower()
    refused = "authentication failed" in text or "no password supplied" in text
    return _refused_credentials(failed) if refused else _connection_lost(failed)


def _database_conflict(failed: ForeignError) -> errors.FloeStorageError:
    reason = "another process made the same change at the same time"
    return errors.CommitConflictError(failed.table_or_catalog, attempts=1, reason=reason)


# Names, not classes: importing requests and SQLAlchemy here would cost every code location half a second.
TRANSLATIONS: dict[str, Translation] = {
    "pyiceberg.exceptions.AuthorizationExpiredError": _refused_credentials,
    "pyiceberg.exceptions.BadRequestError": _rest_error,
    "pyiceberg.exceptions.CommitFailedException": _conflict,
    "pyiceberg.exceptions.CommitStateUnknownException": _outcome_unknown,
    "pyiceberg.exceptions.ConditionalCheckFailedException": _conflict,
    "pyiceberg.exceptions.DynamoDbError": _connection_lost,
    "pyiceberg.exceptions.ForbiddenError": _refused_credentials,
    "pyiceberg.exceptions.GenericDynamoDbError": _connection_lost,
    "pyiceberg.exceptions.NamespaceAlreadyExistsError": _namespace_exists,
    "pyiceberg.exceptions.NamespaceNotEmptyError": _namespace_not_empty,
    "pyiceberg.exceptions.NoSuchIcebergTableError": _no_such_table,
    "pyiceberg.exceptions.NoSuchIdentifierError": _refused,
    "pyiceberg.exceptions.NoSuchNamespaceError": _no_such_namespace,
    "pyiceberg.exceptions.NoSuchPlanTaskError": _refused,
    "pyiceberg.exceptions.NoSuchPropertyException": _refused,
    "pyiceberg.exceptions.NoSuchTableError": _no_such_table,
    "pyiceberg.exceptions.NoSuchViewError": _refused,
    "pyiceberg.exceptions.NotInstalledError": _not_installed,
    "pyiceberg.exceptions.OAuthError": _refused_credentials,
    "pyiceberg.exceptions.RESTError": _rest_error,
    "pyiceberg.exceptions.ResolveError": _refused,
    "pyiceberg.exceptions.ServerError": _server_failed,
    "pyiceberg.exceptions.ServiceUnavailableError": _connection_lost,
    "pyiceberg.exceptions.SignError": _refused_credentials,
    "pyiceberg.exceptions.TableAlreadyExistsError": _table_exists,
    "pyiceberg.exceptions.TooManyRequestsError": _connection_lost,
    "pyiceberg.exceptions.UnauthorizedError": _refused_credentials,
    "pyiceberg.exceptions.ValidationError": _bad_metadata,
    "pyiceberg.exceptions.ValidationException": _conflict,
    "pyiceberg.exceptions.ViewAlreadyExistsError": _view_exists,
    "pyiceberg.exceptions.WaitingForLockException": _conflict,
    "requests.exceptions.HTTPError": _rest_error,
    "requests.exceptions.RequestException": _connection_lost,
    "sqlalchemy.exc.ArgumentError": _refused,
    "sqlalchemy.exc.DBAPIError": _database_failed,
    "sqlalchemy.exc.IntegrityError": _database_conflict,
    "sqlalchemy.exc.TimeoutError": _connection_lost,
    "botocore.exceptions.BotoCoreError": _connection_lost,
    "botocore.exceptions.ClientError": _refused,
    "botocore.exceptions.NoCredentialsError": _refused_credentials,
    "thrift.transport.TTransport.TTransportException": _connection_lost,
    "pydantic_core._pydantic_core.ValidationError": _unreadable_response,
    "builtins.ModuleNotFoundError": _not_installed,
    "builtins.NotImplementedError": _not_supported,
    "builtins.OverflowError": _unusable_value,
    "builtins.ValueError": _unusable_value,
    "builtins.ConnectionError": _connection_lost,
    "builtins.TimeoutError": _connection_lost,
    "builtins.FileNotFoundError": _file_missing,
    "builtins.OSError": _storage_failed,
}


def _translation_of(error: BaseException) -> Translation | None:
    """The entry of the exception's class or of its nearest base class."""
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__)
    return next((TRANSLATIONS[name] for name in names if name in TRANSLATIONS), None)

"""What PyIceberg and the libraries below it raise, told as errors of this package.

One dict says what each foreign exception becomes; `translated` is the only place that
applies it. Our own errors pass through untouched, and so does everything the dict does not
know: a programming mistake must look like one. The foreign exception stays as `__cause__`,
with response bodies and secrets taken out of it. It may hold the server's own words; our
message never does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from floe_dagster_iceberg.errors import (
    CatalogAuthenticationError,
    CatalogConnectionError,
    CommitConflictError,
    CommitOutcomeUnknownError,
    EngineCapabilityError,
    FloeStorageError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from floe_dagster_iceberg.plugins.failures import Failed
from floe_dagster_iceberg.plugins.storage_failures import file_missing, stale_metadata, storage_failed
from floe_dagster_iceberg.secrets import scrub_exception

Translation = Callable[[Failed], FloeStorageError]


@contextmanager
def translated(catalog: str, *, table: object = None, namespace: object = None) -> Iterator[None]:
    """Raise what the body raises as an error of this package.

    Args:
        catalog: Name of the catalog the body talks to.
        table: The table it works on, when there is one; it is named in the error.
        namespace: The namespace it works on, when that is not the table's.
    """
    try:
        yield
    except FloeStorageError:
        raise
    # The dict decides what is foreign; what it does not know goes on unchanged.
    except BaseException as error:
        translate = _translation_of(error)
        if translate is None:
            raise
        failed = Failed(error, catalog, table, namespace)
        raise translate(failed) from scrub_exception(error)


def _connection_lost(failed: Failed) -> FloeStorageError:
    return CatalogConnectionError(failed.catalog, reason=failed.reason)


def _refused_credentials(failed: Failed) -> FloeStorageError:
    return CatalogAuthenticationError(failed.catalog, reason=failed.reason)


def _conflict(failed: Failed) -> FloeStorageError:
    subject = failed.catalog if failed.table is None else failed.table
    return CommitConflictError(subject, attempts=1, reason=failed.reason)


def _outcome_unknown(failed: Failed) -> FloeStorageError:
    subject = failed.catalog if failed.table is None else failed.table
    return CommitOutcomeUnknownError(subject, snapshot_id=None, reason=failed.reason)


def _no_such_table(failed: Failed) -> FloeStorageError:
    if failed.metadata_file is not None:
        # A server that has the table and not its metadata file says 404, too.
        return stale_metadata(failed)
    return NoSuchTableError("(unnamed)" if failed.table is None else failed.table)


def _no_such_namespace(failed: Failed) -> FloeStorageError:
    if failed.metadata_file is not None:
        return stale_metadata(failed)
    return NoSuchNamespaceError(failed.namespace_name)


def _table_exists(failed: Failed) -> FloeStorageError:
    return TableAlreadyExistsError("(unnamed)" if failed.table is None else failed.table)


def _refused(failed: Failed) -> FloeStorageError:
    return ValidationError(f"The request for {failed.subject} was refused: {failed.reason}.", table=failed.table)


def _namespace_exists(failed: Failed) -> FloeStorageError:
    return ValidationError(
        f"Namespace '{failed.namespace_name}' already exists in catalog '{failed.catalog}'. Use it as it is."
    )


def _namespace_not_empty(failed: Failed) -> FloeStorageError:
    return ValidationError(
        f"Namespace '{failed.namespace_name}' of catalog '{failed.catalog}' still holds tables. Drop them first."
    )


def _view_exists(failed: Failed) -> FloeStorageError:
    return ValidationError(f"A view named like {failed.subject} already exists. Choose another name.")


def _rest_error(failed: Failed) -> FloeStorageError:
    # PyIceberg has no class of its own for most answers, so the status decides.
    if failed.status is None or failed.status >= 500:  # noqa: PLR2004 - the first status that blames the server
        return _server_failed(failed)
    if failed.status == HTTPStatus.NOT_FOUND and failed.table is not None:
        return _no_such_table(failed)
    if failed.status == HTTPStatus.NOT_FOUND and failed.namespace is not None:
        # PyIceberg knows the namespace itself to be missing by a class of its own; here it is one above.
        return NoSuchNamespaceError(failed.namespace_name.rpartition(".")[0] or failed.namespace_name)
    return ValidationError(
        f"The request for {failed.subject} was refused: {failed.reason}. "
        "Check the catalog's URI and warehouse, and that the server supports this operation.",
        table=failed.table,
    )


def _server_failed(failed: Failed) -> FloeStorageError:
    return _connection_lost(failed) if failed.metadata_file is None else stale_metadata(failed)


def _bad_metadata(failed: Failed) -> FloeStorageError:
    # PyIceberg raises one class for a corrupt metadata file and for a schema that does not fit.
    if "TableMetadata" not in str(failed.error):
        return _refused(failed)
    return stale_metadata(failed)


def _unreadable_response(failed: Failed) -> FloeStorageError:
    title = getattr(failed.error, "title", "")
    if "Metadata" in title:
        return _bad_metadata(failed)
    return CatalogConnectionError(
        failed.catalog, reason=f"the answer is not what an Iceberg catalog sends ({title or 'unreadable JSON'})"
    )


def _not_supported(failed: Failed) -> FloeStorageError:
    return EngineCapabilityError(
        f"PyIceberg or {failed.subject} does not support this: {failed.reason}.", engine="pyiceberg", table=failed.table
    )


def _not_installed(failed: Failed) -> FloeStorageError:
    return ValidationError(
        f"A library that {failed.subject} needs is not installed: {failed.reason}. "
        "Install the extra of floe-dagster-iceberg for this catalog or storage."
    )


def _database_failed(failed: Failed) -> FloeStorageError:
    text = str(getattr(failed.error, "orig", failed.error)).lower()
    if "authentication failed" in text or "no password supplied" in text:
        return _refused_credentials(failed)
    return _connection_lost(failed)


def _database_conflict(failed: Failed) -> FloeStorageError:
    subject = failed.catalog if failed.table is None else failed.table
    return CommitConflictError(subject, attempts=1, reason="another process made the same change at the same time")


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
    "builtins.ConnectionError": _connection_lost,
    "builtins.TimeoutError": _connection_lost,
    "builtins.FileNotFoundError": file_missing,
    "builtins.OSError": storage_failed,
}


def _translation_of(error: BaseException) -> Translation | None:
    """The entry of the exception's class, else of its nearest ancestor."""
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__)
    return next((TRANSLATIONS[name] for name in names if name in TRANSLATIONS), None)

"""Every foreign exception that can reach a user becomes one of ours."""

import errno
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
import requests
import sqlalchemy.exc
from pydantic import BaseModel, ValidationError as PydanticError
from pyiceberg import exceptions
from pyiceberg.catalog.sql import SqlCatalog
from support.http_stub import refused_url

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.secrets import remember_secret

TABLE = "bronze.orders"


def translated(error: BaseException) -> errors.FloeStorageError:
    with pytest.raises(errors.FloeStorageError) as caught, translate_errors("floe", table=TABLE):
        raise error
    return caught.value


@pytest.mark.requirement("S0-X1..6", "S3-6")
@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        (exceptions.CommitFailedException("stale"), errors.CommitConflictError),
        (exceptions.ValidationException("conflicting files"), errors.CommitConflictError),
        (exceptions.CommitStateUnknownException("?"), errors.CommitOutcomeUnknownError),
        (exceptions.TableAlreadyExistsError("x"), errors.TableAlreadyExistsError),
        (exceptions.NoSuchTableError("x"), errors.NoSuchTableError),
        (exceptions.NoSuchIcebergTableError("x"), errors.NoSuchTableError),
        (exceptions.NoSuchNamespaceError("x"), errors.NoSuchNamespaceError),
        (exceptions.NamespaceNotEmptyError("x"), errors.ValidationError),
        (exceptions.ValidationError("schema"), errors.ValidationError),
        (exceptions.ServiceUnavailableError("x"), errors.CatalogConnectionError),
        (exceptions.TooManyRequestsError("x"), errors.CatalogConnectionError),
        (exceptions.UnauthorizedError("x"), errors.CatalogAuthenticationError),
        (exceptions.ForbiddenError("x"), errors.CatalogAuthenticationError),
        (exceptions.OAuthError("x"), errors.CatalogAuthenticationError),
        (requests.exceptions.ConnectionError("x"), errors.CatalogConnectionError),
        (requests.exceptions.ReadTimeout("x"), errors.CatalogConnectionError),
        (sqlalchemy.exc.OperationalError("SELECT 1", {}, Exception("locked")), errors.CatalogConnectionError),
        (sqlalchemy.exc.IntegrityError("INSERT", {}, Exception("unique")), errors.CommitConflictError),
        (sqlalchemy.exc.ArgumentError("no url"), errors.ValidationError),
        (ConnectionResetError("x"), errors.CatalogConnectionError),
        (TimeoutError("x"), errors.CatalogConnectionError),
        (OSError(errno.ENOSPC, "No space left on device"), errors.WriteError),
        (OSError(errno.EDQUOT, "Quota exceeded"), errors.WriteError),
        (PermissionError(errno.EACCES, "Permission denied"), errors.WriteError),
        (OSError("When reading: AWS Error ACCESS_DENIED during PutObject"), errors.WriteError),
        (OSError("When reading: AWS Error NETWORK_CONNECTION during PutObject"), errors.CatalogConnectionError),
        (FileNotFoundError("x/00001.metadata.json"), errors.StaleTableMetadataError),
        (NotImplementedError("server-side planning"), errors.EngineCapabilityError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_a_foreign_exception_becomes_ours_and_stays_as_the_cause(
    foreign: BaseException, ours: type[errors.FloeStorageError]
) -> None:
    error = translated(foreign)
    assert type(error) is ours
    assert error.__cause__ is foreign
    assert TABLE in str(error) or "floe" in str(error) or "bronze" in str(error)


@pytest.mark.requirement("S3-6", "S2-E1")
def test_a_server_that_does_not_respond_is_named_before_the_cause() -> None:
    with refused_url() as url, pytest.raises(requests.exceptions.ConnectionError) as refused:
        requests.get(f"{url}/v1/config?warehouse=canary", timeout=5)
    with pytest.raises(requests.exceptions.ConnectionError) as unknown:
        requests.get("http://user:canary@nowhere.invalid:8181/v1", timeout=5)

    assert f"'floe' is unreachable: {url} refused the connection. Check" in str(translated(refused.value))
    assert "'floe' is unreachable: http://nowhere.invalid:8181 has an unknown host name. Check" in str(
        translated(unknown.value)
    )


def test_a_long_reason_is_cut_between_words() -> None:
    reason = str(translated(exceptions.CommitFailedException("word " * 100)))

    assert "word …" in reason


@pytest.mark.requirement("S3-6")
def test_a_missing_table_reads_short_and_actionable() -> None:
    assert str(translated(exceptions.NoSuchTableError("internal detail"))).startswith("Table 'bronze.orders' not found")


@pytest.mark.requirement("S0-X1..6")
def test_a_missing_namespace_is_named_by_its_table() -> None:
    assert translated(exceptions.NoSuchNamespaceError("x")).details["namespace"] == "bronze"


def test_an_unmapped_error_goes_on_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), translate_errors("floe"):
        _ = 1 / 0


def test_a_wrong_database_password_is_an_authentication_error() -> None:
    refused = Exception('FATAL:  password authentication failed for user "app"')
    assert isinstance(
        translated(sqlalchemy.exc.OperationalError("connect", {}, refused)), errors.CatalogAuthenticationError
    )


@pytest.mark.requirement("S2-FR-046", "S3-6")
def test_response_bodies_and_secrets_are_gone_from_the_whole_chain() -> None:
    remember_secret("canary-aa-secret")
    foreign = exceptions.ServerError("RESTError 500: Could not decode json payload: <p>body</p> canary-aa-secret")
    foreign.__cause__ = ValueError("seen canary-aa-secret")
    printed = "".join(traceback.format_exception(translated(foreign)))
    assert "<p>body" not in printed
    assert "canary-aa-secret" not in printed.replace('remember_secret("canary-aa-secret")', "")


class Token(BaseModel):
    access_token: int


@pytest.mark.requirement("S2-FR-046")
def test_a_refused_response_is_not_quoted() -> None:
    try:
        Token.model_validate({"access_token": "canary-" + "bb-secret"})
    except PydanticError as refused:
        error = translated(refused)
    assert "canary-bb-secret" not in "".join(traceback.format_exception(error))
    assert "access_token" in str(error.__cause__)


@pytest.mark.parametrize("content", ["{", "{}", None], ids=["cut off", "empty", "gone"])
def test_a_corrupt_metadata_file_is_an_error_that_names_the_table(tmp_path: Path, content: str | None) -> None:
    catalog = SqlCatalog("floe", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("bronze")
    table = catalog.create_table(TABLE, pa.schema([("id", pa.int64())]))
    file = Path(table.metadata_location.removeprefix("file://"))
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(errors.ScanError, match=r"metadata.*bronze\.orders"), translate_errors("floe", table=TABLE):
        catalog.load_table(TABLE)
    catalog.close()


@pytest.mark.parametrize(
    ("foreign", "words"),
    [
        (ModuleNotFoundError("No module named 'psycopg2'", name="psycopg2"), "'floe-dagster-iceberg[postgres]'"),
        (
            exceptions.NotInstalledError("AWS glue support not installed: pip install 'pyiceberg[glue]'"),
            "iceberg[glue]'",
        ),
        (ModuleNotFoundError("No module named 'MySQLdb'", name="MySQLdb"), "needs 'MySQLdb', which is not installed"),
    ],
    ids=["postgres", "glue", "unknown"],
)
def test_a_missing_driver_is_answered_with_the_extra_that_has_it(foreign: Exception, words: str) -> None:
    assert words in str(translated(foreign))

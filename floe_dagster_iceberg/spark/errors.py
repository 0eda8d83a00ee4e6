"""Spark's exceptions: which kind of failure each is, and what of them may be shown."""

import re
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, QueryContextType

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.secrets import LEFT_OUT
from floe_dagster_iceberg.spark.environment import JARS_VARIABLE
from floe_dagster_iceberg.spark.row_scope import ROW_OUTSIDE_PARTITION

NULL_IN_REQUIRED_COLUMN: Final = "floe:null-in-required-column"
INEXACT_NUMBER: Final = "floe:inexact-number:"
SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionError)
"""What a Spark action may raise; anything else is a bug of ours and must look like one."""

_INEXACT_COLUMN: Final = re.compile(rf"{INEXACT_NUMBER}(`(?:[^`]|``)*`)")
_JAVA_CLASS: Final = re.compile(r"^: [\w.$]*?(?P<name>\w+)(:|$)", re.MULTILINE)
_JAVA_CLASSES: Final = re.compile(
    r"(?:^: |^Caused by: |^)(?P<name>(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error))\b", re.MULTILINE
)
_PYTHON_FRAMES: Final = re.compile(
    r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)$', re.MULTILINE
)
_PYTHON_CLASS: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Exit))(?:: |$)", re.MULTILINE)

# In a log line, what follows an error condition, an exception's class or a traceback is the exception's own text.
_QUOTED: Final = re.compile(
    r"(?P<before>\[[A-Z][A-Z0-9_.]+\]"
    r"|(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)\b:"
    r"|\bTraceback \(most recent call last\):).*",
    re.DOTALL,
)

_MOST_SHOWN: Final = 5


class SparkCauseError(Exception):
    """Replaces an exception of Spark as the cause of an error, without its message.

    Attributes:
        original: The exception that Spark raised. It stays in this process.
    """

    def __init__(self, original: BaseException) -> None:
        self.original = original
        super().__init__(
            f"{'; '.join(_facts(original))}. Spark's own message is left out because it may quote rows. "
            "In this process it is in the attribute 'original'."
        )


def redacted(error: BaseException | None) -> BaseException | None:
    """The cause to raise an error of ours from: with Spark's traceback, without its message."""
    if not isinstance(error, PySparkException | Py4JError):
        return error
    return SparkCauseError(error).with_traceback(error.__traceback__)


def redact_messages(text: str) -> str:
    """A line of Spark's log without the messages of exceptions."""
    return _QUOTED.sub(rf"\g<before> {LEFT_OUT}", text)


def _facts(error: BaseException) -> Iterator[str]:
    yield type(error).__name__
    text = ""
    # Both ask the JVM, which may be gone.
    with suppress(Py4JError, OSError):
        if isinstance(error, PySparkException):
            yield from _query_facts(error)
    with suppress(Py4JError, OSError):
        text = str(error)
    if classes := list(islice(dict.fromkeys(found["name"] for found in _JAVA_CLASSES.finditer(text)), _MOST_SHOWN)):
        yield f"Java: {', '.join(classes)}"
    if frames := [f"{found['file']}:{found['line']} in {found['function']}" for found in _PYTHON_FRAMES.finditer(text)]:
        kinds = [found["name"] for found in _PYTHON_CLASS.finditer(text)]
        yield f"Python worker: {', '.join([*kinds[-1:], *frames[-_MOST_SHOWN:]])}"


def _query_facts(error: PySparkException) -> Iterator[str]:
    if condition := error.getCondition():
        yield f"condition {condition}"
    for context in error.getQueryContext() or ():
        # The fragment of a SQL query is part of its text; that of a DataFrame is the name of a method.
        if context.contextType() is QueryContextType.DataFrame:
            yield f"'{context.fragment()}' called at {context.callSite()}"


class FailureKind(Enum):
    """Kinds of failures that are handled differently."""

    ROW_OUTSIDE = "a row outside the partition"
    NULL_IN_REQUIRED = "NULL in a required column"
    INEXACT_NUMBER = "an integer that a float cannot hold exactly"
    PARTIAL_MATCH = "a file holds rows inside and outside the partition"
    OUTCOME_UNKNOWN = "the commit may or may not have succeeded"
    ROWS_CHANGED = "another writer changed the rows being replaced"
    COMMIT_LOST = "other writers were faster"
    TABLE_GONE = "the table does not exist any more"
    NO_ACCESS = "the catalog refuses the credentials"
    NO_CATALOG = "the catalog is unreachable"
    STORAGE_REFUSES = "the storage denies access"
    STORAGE_FULL = "the storage is full"
    NO_RUNTIME = "Iceberg is not on Spark's class path"
    OTHER = "something else"


# Parts of messages and class names. The first match counts: the text of an exception names its causes too.
_MESSAGES: Final = {
    ROW_OUTSIDE_PARTITION: FailureKind.ROW_OUTSIDE,
    NULL_IN_REQUIRED_COLUMN: FailureKind.NULL_IN_REQUIRED,
    INEXACT_NUMBER: FailureKind.INEXACT_NUMBER,
    "Cannot delete file where some, but not all, rows match filter": FailureKind.PARTIAL_MATCH,
    # Iceberg's JDBC and REST clients raise the same for a failed request and for a lost response.
    "CommitStateUnknownException": FailureKind.OUTCOME_UNKNOWN,
    "Error occurred while processing POST request": FailureKind.OUTCOME_UNKNOWN,
    "UncheckedSQLException": FailureKind.OUTCOME_UNKNOWN,
    # A Spark Connect server that went away, or came back without this session.
    "StatusCode.UNAVAILABLE": FailureKind.OUTCOME_UNKNOWN,
    "[NO_ACTIVE_SESSION]": FailureKind.OUTCOME_UNKNOWN,
    "SESSION_CHANGED": FailureKind.OUTCOME_UNKNOWN,
    "[RESPONSE_ALREADY_RECEIVED]": FailureKind.OUTCOME_UNKNOWN,
    "Found conflicting files that can contain records matching": FailureKind.ROWS_CHANGED,
    "Found conflicting deleted files that can contain records matching": FailureKind.ROWS_CHANGED,
    "Found new conflicting delete files": FailureKind.ROWS_CHANGED,
    "Missing required files to delete": FailureKind.ROWS_CHANGED,
    "found new delete for replaced data file": FailureKind.ROWS_CHANGED,
    "CommitFailedException": FailureKind.COMMIT_LOST,
    # Another writer merged manifests that were being rewritten.
    "could not be found in the latest snapshot": FailureKind.COMMIT_LOST,
    "Cannot find catalog plugin class": FailureKind.NO_RUNTIME,
    "ClassNotFoundException: org.apache.iceberg": FailureKind.NO_RUNTIME,
    "NoSuchTableException": FailureKind.TABLE_GONE,
    "TABLE_OR_VIEW_NOT_FOUND": FailureKind.TABLE_GONE,
    "NotAuthorizedException": FailureKind.NO_ACCESS,
    "ForbiddenException": FailureKind.NO_ACCESS,
    "Status Code: 507": FailureKind.STORAGE_FULL,
    "No space left on device": FailureKind.STORAGE_FULL,
    "Status Code: 403": FailureKind.STORAGE_REFUSES,
    "ExpiredToken": FailureKind.STORAGE_REFUSES,
    "provided token has expired": FailureKind.STORAGE_REFUSES,
    "AccessDenied": FailureKind.STORAGE_REFUSES,
    "ServiceUnavailableException": FailureKind.NO_CATALOG,
    "ServiceFailureException": FailureKind.NO_CATALOG,
    "RESTException": FailureKind.NO_CATALOG,
}


def kind_of(error: BaseException) -> FailureKind:
    """The kind of failure that an exception stands for."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        # The JVM or the server died, and may have sent the commit before.
        return FailureKind.OUTCOME_UNKNOWN
    text = "\n".join(_texts(error))
    return next((kind for message, kind in _MESSAGES.items() if message in text), FailureKind.OTHER)


def to_error(error: BaseException, *, catalog: str, table: object) -> errors.FloeStorageError:
    """The error of this package for a failed write that changed nothing."""
    kind, name = kind_of(error), name_of(error)
    match kind:
        case FailureKind.NO_ACCESS:
            return errors.CatalogAuthenticationError(catalog, reason=f"Spark was refused ({name})")
        case FailureKind.NO_CATALOG:
            return errors.CatalogConnectionError(catalog, reason=f"Spark got no response ({name})")
        case FailureKind.STORAGE_REFUSES | FailureKind.STORAGE_FULL:
            denied = (
                f"The storage of '{table}' denied access to Spark ({name}). "
                "Check the permissions of the warehouse location and the storage credentials."
            )
            full = f"The storage of '{table}' is full, according to Spark ({name}). Free some space, then run it again."
            return errors.WriteError(denied if kind is FailureKind.STORAGE_REFUSES else full, table=table)
        case FailureKind.INEXACT_NUMBER:
            column = _INEXACT_COLUMN.search("\n".join(_texts(error)))
            return errors.ValidationError(
                f"Column {column[1] if column else 'of integers'} for '{table}' holds values that the table's float "
                "column cannot hold exactly. Round or cast the column before it is written.",
                table=table,
            )
        case FailureKind.NO_RUNTIME:
            return errors.EngineCapabilityError(
                "Spark runs without the Iceberg runtime. Let IcebergSparkResource start it, put the jar on its class "
                f"path, or set {JARS_VARIABLE}.",
                engine="spark",
                table=table,
            )
        case _:
            return errors.WriteError(
                f"Spark could not write the rows of '{table}' ({name}). The table is unchanged; "
                "the cause below says where the DataFrame or the storage failed.",
                table=table,
            )


def name_of(error: BaseException) -> str:
    """Spark's error condition or Java's exception class, which never quote data."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    java = _JAVA_CLASS.search(str(error)) if isinstance(error, Py4JJavaError) else None
    return condition or (java["name"] if java else type(error).__name__)


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__

"""A frame's rows, made to fit a table: its columns, its types, its order."""

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

_JAVA_CLASSES: Final = re.compile(
    r"(?:^: |^Caused by: |^)(?P<name>(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error))\b", re.MULTILINE
)

_PYTHON_FRAMES: Final = re.compile(
    r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)$', re.MULTILINE
)

_PYTHON_CLASS: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Exit))(?:: |$)", re.MULTILINE)

# In a log: behind a condition, behind the class of an exception, and from a traceback on, the words are its own.
_QUOTED: Final = re.compile(
    r"(?P<before>\[[A-Z][A-Z0-9_.]+\]"
    r"|(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)\b:"
    r"|\bTraceback \(most recent call last\):).*",
    re.DOTALL,
)

_MOST_SHOWN: Final = 5


class SparkCauseError(Exception):
    """Stands for an exception of Spark where errors are shown.

    Attributes:
        original: What Spark raised, words and all. It stays in this process.
    """

    def __init__(self, original: BaseException) -> None:
        self.original = original
        super().__init__(
            f"{'; '.join(_facts(original))}. Spark's own words are left out: they may quote rows. "
            "In this process they are in the attribute 'original'."
        )


def shown(error: BaseException | None) -> BaseException | None:
    """What to name as the cause of an error of ours, with the frames in which Spark failed."""
    if not isinstance(error, PySparkException | Py4JError):
        return error
    return SparkCauseError(error).with_traceback(error.__traceback__)


def without_quotes(text: str) -> str:
    """A line of Spark's log without the words of an exception that it quotes."""
    return _QUOTED.sub(rf"\g<before> {LEFT_OUT}", text)


def _facts(error: BaseException) -> Iterator[str]:
    yield type(error).__name__
    # A JVM that is gone has no answers.
    with suppress(Py4JError, OSError):
        if isinstance(error, PySparkException):
            yield from _said_by_spark(error)
    text = ""
    with suppress(Py4JError, OSError):
        text = str(error)
    if classes := list(islice(dict.fromkeys(found["name"] for found in _JAVA_CLASSES.finditer(text)), _MOST_SHOWN)):
        yield f"Java: {', '.join(classes)}"
    if frames := [f"{found['file']}:{found['line']} in {found['function']}" for found in _PYTHON_FRAMES.finditer(text)]:
        kinds = [found["name"] for found in _PYTHON_CLASS.finditer(text)]
        yield f"Python worker: {', '.join([*kinds[-1:], *frames[-_MOST_SHOWN:]])}"


def _said_by_spark(error: PySparkException) -> Iterator[str]:
    if condition := error.getCondition():
        yield f"condition {condition}"
    for context in error.getQueryContext() or ():
        # The fragment of a query in SQL is a piece of its text; that of a frame is the name of a method.
        if context.contextType() is QueryContextType.DataFrame:
            yield f"'{context.fragment()}' called at {context.callSite()}"


SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionError)
"""What a Spark action may raise; anything else is a mistake of ours and must look like one."""
_JAVA_CLASS: Final = re.compile(r"^: [\w.$]*?(?P<name>\w+)(:|$)", re.MULTILINE)


class Failure(Enum):
    """Kinds of failures that are distinguished because something different follows from each."""

    ROW_OUTSIDE = "a row outside the partition"
    NULL_IN_REQUIRED = "NULL in a required column"
    FILE_STRADDLES = "a file holds rows inside and outside the slice"
    OUTCOME_UNKNOWN = "nobody knows whether the commit landed"
    ROWS_CHANGED = "another writer changed the rows being replaced"
    COMMIT_LOST = "other writers were faster"
    TABLE_GONE = "the table is not there any more"
    NO_ACCESS = "the catalog refuses the credentials"
    NO_CATALOG = "the catalog does not answer"
    STORAGE_REFUSES = "the storage denies access"
    STORAGE_FULL = "the storage is full"
    NO_RUNTIME = "Iceberg is not on Spark's class path"
    OTHER = "something else"


# The first that fits counts: an exception names its causes too.
_WORDS: Final[tuple[tuple[Failure, tuple[str, ...]], ...]] = (
    (Failure.ROW_OUTSIDE, (ROW_OUTSIDE_PARTITION,)),
    (Failure.NULL_IN_REQUIRED, (NULL_IN_REQUIRED_COLUMN,)),
    (Failure.FILE_STRADDLES, ("Cannot delete file where some, but not all, rows match filter",)),
    # Iceberg's JDBC and REST clients do not tell a request that failed from an answer that was lost.
    (
        Failure.OUTCOME_UNKNOWN,
        ("CommitStateUnknownException", "Error occurred while processing POST request", "UncheckedSQLException"),
    ),
    # A Spark Connect server that went away, or came back without this session.
    (
        Failure.OUTCOME_UNKNOWN,
        ("StatusCode.UNAVAILABLE", "[NO_ACTIVE_SESSION]", "SESSION_CHANGED", "[RESPONSE_ALREADY_RECEIVED]"),
    ),
    (
        Failure.ROWS_CHANGED,
        (
            "Found conflicting files that can contain records matching",
            "Found conflicting deleted files that can contain records matching",
            "Found new conflicting delete files",
            "Missing required files to delete",
            "found new delete for replaced data file",
        ),
    ),
    # The latter when a writer merged manifests that were being rewritten.
    (Failure.COMMIT_LOST, ("CommitFailedException", "could not be found in the latest snapshot")),
    (Failure.NO_RUNTIME, ("Cannot find catalog plugin class", "ClassNotFoundException: org.apache.iceberg")),
    (Failure.TABLE_GONE, ("NoSuchTableException", "TABLE_OR_VIEW_NOT_FOUND")),
    (Failure.NO_ACCESS, ("NotAuthorizedException", "ForbiddenException")),
    (Failure.STORAGE_FULL, ("Status Code: 507", "No space left on device")),
    (Failure.STORAGE_REFUSES, ("Status Code: 403", "ExpiredToken", "provided token has expired", "AccessDenied")),
    (
        Failure.NO_CATALOG,
        ("ServiceUnavailableException", "ServiceFailureException", "RESTException"),
    ),
)


def kind_of(error: BaseException) -> Failure:
    """What kind of failure an exception stands for."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        # The JVM died, or the server went away; what it had sent before, nobody can say.
        return Failure.OUTCOME_UNKNOWN
    said = "\n".join(_texts(error))
    return next((kind for kind, words in _WORDS if any(word in said for word in words)), Failure.OTHER)


def to_error(error: BaseException, *, catalog: str, table: object) -> errors.FloeStorageError:
    """The error of this package for a failed write that changed nothing."""
    kind, name = kind_of(error), name_of(error)
    match kind:
        case Failure.NO_ACCESS:
            return errors.CatalogAuthenticationError(catalog, reason=f"Spark was refused ({name})")
        case Failure.NO_CATALOG:
            return errors.CatalogConnectionError(catalog, reason=f"Spark got no answer ({name})")
        case Failure.STORAGE_REFUSES:
            return errors.WriteError(
                f"The storage of '{table}' denied access to Spark ({name}). "
                "Check the permissions of the warehouse location and the storage credentials.",
                table=table,
            )
        case Failure.STORAGE_FULL:
            return errors.WriteError(
                f"The storage of '{table}' is full, says Spark ({name}). Free some space, then run it again.",
                table=table,
            )
        case Failure.NO_RUNTIME:
            return errors.EngineCapabilityError(
                "Spark runs without the Iceberg runtime. Let IcebergSparkResource start it, put the jar on its class "
                f"path, or set {JARS_VARIABLE}.",
                engine="spark",
                table=table,
            )
        case _:
            return errors.WriteError(
                f"Spark could not write the rows of '{table}' ({name}). The table holds what it held before; "
                "the cause below says where the frame or the storage failed.",
                table=table,
            )


def name_of(error: BaseException) -> str:
    """What Spark or Java calls the failure, without a word about the data."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    java = _JAVA_CLASS.search(str(error)) if isinstance(error, Py4JJavaError) else None
    return condition or (java["name"] if java else type(error).__name__)


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__

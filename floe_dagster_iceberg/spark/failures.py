"""What went wrong in Spark, told by the words of Spark's and Iceberg's exceptions.

The exceptions themselves do not help: what Iceberg raises in the JVM arrives as one Python
class, and over Spark Connect as another. Spark's messages may show values of the data, so
none of them becomes part of ours, and what `causes` makes of the exception is the cause.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from floe_dagster_iceberg.errors import (
    CatalogAuthenticationError,
    CatalogConnectionError,
    EngineCapabilityError,
    FloeStorageError,
    WriteError,
)
from floe_dagster_iceberg.spark.guard import ROW_OUTSIDE_PARTITION
from floe_dagster_iceberg.spark.packages import JARS_VARIABLE
from floe_dagster_iceberg.spark.rows import NULL_IN_REQUIRED_COLUMN

SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionError)
"""What a Spark action may raise; anything else is a mistake of ours and must look like one."""

_JAVA_CLASS: Final = re.compile(r"^: [\w.$]*?(?P<name>\w+)(:|$)", re.MULTILINE)


class Failure(Enum):
    """Kinds of failures that are told apart because something different follows from each."""

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
    # The latter when a writer folded manifests that were being rewritten.
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


def to_error(error: BaseException, *, catalog: str, table: object) -> FloeStorageError:
    """The error of this package for a failed write that changed nothing."""
    kind, name = kind_of(error), name_of(error)
    match kind:
        case Failure.NO_ACCESS:
            return CatalogAuthenticationError(catalog, reason=f"Spark was refused ({name})")
        case Failure.NO_CATALOG:
            return CatalogConnectionError(catalog, reason=f"Spark got no answer ({name})")
        case Failure.STORAGE_REFUSES:
            return WriteError(
                f"The storage of '{table}' denied access to Spark ({name}). "
                "Check the permissions of the warehouse location and the storage credentials.",
                table=table,
            )
        case Failure.STORAGE_FULL:
            return WriteError(
                f"The storage of '{table}' is full, says Spark ({name}). Free some space, then run it again.",
                table=table,
            )
        case Failure.NO_RUNTIME:
            return EngineCapabilityError(
                "Spark runs without the Iceberg runtime. Let IcebergSparkResource start it, put the jar on its class "
                f"path, or set {JARS_VARIABLE}.",
                engine="spark",
                table=table,
            )
        case _:
            return WriteError(
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

"""Every error this package raises, in one tree.

    FloeStorageError
    ├── CatalogConnectionError            retryable
    ├── CatalogAuthenticationError
    └── IcebergError
        ├── TableAlreadyExistsError       (= TableExistsError)
        ├── NoSuchTableError              (= TableNotFoundError)
        ├── NoSuchNamespaceError          (= NamespaceNotFoundError)
        ├── ValidationError               also a ValueError
        ├── SchemaEvolutionError
        │   └── IncompatibleSchemaChangeError
        ├── WriteError
        │   └── RowsOutsidePartitionError
        ├── ScanError
        │   └── StaleTableMetadataError
        ├── CommitConflictError           retryable (= ConcurrencyConflictError)
        ├── CommitOutcomeUnknownError     retryable
        ├── SnapshotNotFoundError
        ├── RollbackError
        ├── AuditFailedError
        ├── CompactionError
        ├── MaintenanceRefusedError
        ├── EngineCapabilityError
        │   └── UnsupportedMetadataError  also a ScanError
        ├── PluginNotFoundError
        └── SecretNotFoundError

A message states the fact with the values that matter, then the remedy. It never holds a secret or a data
value. `retryable` says whether running the same work again may succeed; at the Dagster boundary it becomes
`Failure(allow_retries=...)`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from floe_dagster_iceberg.models.quantities import counted

__all__ = [
    "AuditFailedError",
    "CatalogAuthenticationError",
    "CatalogConnectionError",
    "CommitConflictError",
    "CommitOutcomeUnknownError",
    "CompactionError",
    "ConcurrencyConflictError",
    "EngineCapabilityError",
    "FloeStorageError",
    "IcebergError",
    "IncompatibleSchemaChangeError",
    "MaintenanceRefusedError",
    "NamespaceNotFoundError",
    "NoSuchNamespaceError",
    "NoSuchTableError",
    "PluginNotFoundError",
    "RollbackError",
    "RowsOutsidePartitionError",
    "ScanError",
    "SchemaEvolutionError",
    "SecretNotFoundError",
    "SnapshotNotFoundError",
    "StaleTableMetadataError",
    "TableAlreadyExistsError",
    "TableExistsError",
    "TableNotFoundError",
    "UnsupportedMetadataError",
    "ValidationError",
    "WriteError",
]


def _rebuild(cls: "type[FloeStorageError]", message: str, attributes: dict[str, Any]) -> "FloeStorageError":
    error = cls.__new__(cls, message)
    error.args = (message,)
    vars(error).update(attributes)
    return error


class FloeStorageError(Exception):
    """Base class of every error of this package."""

    retryable: ClassVar[bool] = False
    """Whether running the same work again may succeed."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take more than the message, and Dagster sends errors between processes.
        return _rebuild, (type(self), str(self), dict(vars(self)))

    @property
    def details(self) -> dict[str, Any]:
        """Arguments of the error by name, for logs and Dagster metadata."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


class CatalogConnectionError(FloeStorageError):
    """The catalog could not be reached, or did not respond in time."""

    retryable = True

    def __init__(self, catalog: str, *, reason: str) -> None:
        self.catalog, self.reason = catalog, reason
        super().__init__(
            f"Catalog '{catalog}' is unreachable: {reason}. "
            "Check the catalog's URI, the network, and that the service is running."
        )


class CatalogAuthenticationError(FloeStorageError):
    """The catalog rejected the credentials, or they do not permit the request."""

    def __init__(self, catalog: str, *, reason: str) -> None:
        self.catalog, self.reason = catalog, reason
        super().__init__(
            f"Authentication failed for catalog '{catalog}': {reason}. "
            "Check the client id, secret, token and scope of the catalog configuration."
        )


class IcebergError(FloeStorageError):
    """Base class of errors about tables and operations on them."""

    def __init__(self, message: str, *, table: object = None) -> None:
        self.table = None if table is None else str(table)
        super().__init__(message)


class TableAlreadyExistsError(IcebergError):
    """The catalog has a table of that name already."""

    def __init__(self, table: object) -> None:
        super().__init__(
            f"Table '{table}' already exists. Load it, or create it with if_not_exists=True.",
            table=table,
        )


class NoSuchTableError(IcebergError):
    """The catalog has no table of that name."""

    def __init__(self, table: object, *, hint: str | None = None) -> None:
        hint = hint or "Check the namespace and name, create it first, or set auto_create_tables on the IO manager."
        super().__init__(f"Table '{table}' not found in the catalog. {hint}", table=table)


class NoSuchNamespaceError(IcebergError):
    """The catalog has no namespace of that name."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"Namespace '{namespace}' not found in the catalog. Create it with create_namespace() first.")
        self.namespace = namespace


class ValidationError(IcebergError, ValueError):
    """The request is invalid; nothing was sent to the catalog."""


class SchemaEvolutionError(IcebergError):
    """The schema change is not supported, or the data does not match the schema."""

    def __init__(self, message: str, *, table: object = None, column: str | None = None) -> None:
        self.column = column
        super().__init__(message, table=table)


class IncompatibleSchemaChangeError(SchemaEvolutionError):
    """The change would break readers or existing data."""

    def __init__(self, table: object, *, column: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Schema of '{table}' cannot change at column '{column}': {reason}.",
            table=table,
            column=column,
        )


class WriteError(IcebergError):
    """Rows could not be written; the table is unchanged."""


class RowsOutsidePartitionError(WriteError):
    """Some rows do not belong to the partition being written."""

    def __init__(
        self, table: object, *, columns: Sequence[str], rows: int, null_rows: int = 0, partition: str | None = None
    ) -> None:
        self.columns, self.rows, self.null_rows, self.partition = tuple(columns), rows, null_rows, partition
        where = partition or f"by {', '.join(columns)}"
        nulls = f"; {null_rows:,} of them NULL there" if null_rows else ""
        super().__init__(
            f"{counted(rows, 'row')} for '{table}' {'lies' if rows == 1 else 'lie'} outside the partition being "
            f"written ({where}{nulls}). Filter them in the asset, or set metadata "
            '{"iceberg/rows_outside_partition": "drop"} or "allow".',
            table=table,
        )


class ScanError(IcebergError):
    """Rows could not be read."""


_RESTORE = (
    "Restore the metadata file, or set stale_table_recovery_mode to 'repair': the next write then goes on from the "
    "newest version that is left."
)


class StaleTableMetadataError(ScanError):
    """The metadata file of a table in the catalog is missing or truncated."""

    def __init__(self, table: object, *, metadata_location: str | None, reason: str, remedy: str | None = None) -> None:
        self.metadata_location, self.reason = metadata_location, reason
        super().__init__(
            f"The metadata of table '{table}' cannot be read: {reason} ({metadata_location or 'location unknown'}). "
            f"{remedy or _RESTORE}",
            table=table,
        )


class CommitConflictError(IcebergError):
    """Concurrent writers committed first more often than the retry budget allows."""

    retryable = True

    def __init__(self, table: object, *, attempts: int, reason: str) -> None:
        self.attempts, self.reason = attempts, reason
        super().__init__(
            f"Commit to '{table}' lost against concurrent writers ({counted(attempts, 'attempt')}): {reason}. "
            "Nothing was changed. Run it again, or raise max_commit_retries.",
            table=table,
        )


class CommitOutcomeUnknownError(IcebergError):
    """The catalog did not report whether the commit succeeded."""

    retryable = True

    def __init__(self, table: object, *, snapshot_id: int | None, reason: str, files: Sequence[str] = ()) -> None:
        self.snapshot_id, self.reason, self.files = snapshot_id, reason, tuple(files)
        what = "the change" if snapshot_id is None else f"snapshot {snapshot_id}"
        kept = f" The {counted(len(self.files), 'data file')} written for it were kept." if self.files else ""
        super().__init__(
            f"It is unknown whether the commit to '{table}' succeeded: {reason}. Look for {what} in the table: "
            f"if it is there, the commit is complete; if not, run it again.{kept}",
            table=table,
        )


class SnapshotNotFoundError(IcebergError):
    """The table has no such snapshot, tag or branch."""

    def __init__(self, table: object, snapshot: object, *, refs: Collection[str] = ()) -> None:
        """`refs` are the table's branches and tags, if it is one of those that was looked for."""
        self.snapshot, self.refs = snapshot, tuple(sorted(refs))
        found = f"It has: {', '.join(self.refs)}." if refs else "See list_snapshots() and the table's refs."
        what = "branch or tag" if refs else "snapshot"
        super().__init__(f"Table '{table}' has no {what} '{snapshot}'. It may have expired. {found}", table=table)


class RollbackError(IcebergError):
    """The table cannot be rolled back to that snapshot."""

    def __init__(self, table: object, *, snapshot: object, reason: str, remedy: str = "") -> None:
        self.snapshot, self.reason = snapshot, reason
        message = f"Table '{table}' cannot be rolled back to '{snapshot}': {reason}. {remedy}"
        super().__init__(message.rstrip(), table=table)


class AuditFailedError(IcebergError):
    """Checks of audited assets failed, so their rows were not published.

    Attributes:
        checks: The checks that failed.
        branch: The branch that keeps the rows; None if the table was new, and is not there.
        others: Tables that were to be published together with it, and the branch of each.
    """

    def __init__(
        self,
        table: object,
        *,
        checks: Sequence[str],
        branch: str | None,
        others: Mapping[str, str | None] | None = None,
    ) -> None:
        self.checks, self.branch, self.others = tuple(checks), branch, dict(others or {})
        kept = (
            "The table would have been new, so there is none, and the rows were not kept."
            if branch is None
            else f"The rows are on branch '{branch}': see `floe-iceberg inspect {table}`, and read them with "
            f"scan('{table}', branch='{branch}') of the table manager."
        )
        places = [
            f"'{other}' (no table)" if place is None else f"'{other}' (branch '{place}')"
            for other, place in self.others.items()
        ]
        together = f" Nor were those that belong together with them: {', '.join(places)}." if places else ""
        super().__init__(
            f"The rows for '{table}' failed {counted(len(self.checks), 'check')} ({', '.join(self.checks)}) and were "
            f"not published: its readers see what they saw before. {kept}{together} Fix the rows and run the asset "
            "again.",
            table=table,
        )


class CompactionError(IcebergError):
    """Spark could not rewrite files; earlier commits of the rewrite stay."""


class MaintenanceRefusedError(IcebergError):
    """A guardrail stopped a maintenance operation before it changed anything."""

    def __init__(self, table: object, *, guardrail: str, reason: str) -> None:
        self.guardrail, self.reason = guardrail, reason
        super().__init__(f"Maintenance of '{table}' refused by '{guardrail}': {reason}.", table=table)


class EngineCapabilityError(IcebergError):
    """The engine does not support this.

    Attributes:
        engine: The engine. What another one than Spark cannot do is handed to Spark, if it is configured.
        reason: What it cannot do, as the end of a sentence.
    """

    reason: str | None = None

    def __init__(self, message: str, *, engine: str, table: object = None, reason: str | None = None) -> None:
        self.engine = engine
        if reason is not None:
            self.reason = reason
        super().__init__(message, table=table)


class UnsupportedMetadataError(EngineCapabilityError, ScanError):
    """The table exists and is complete, but its metadata has something that PyIceberg cannot parse.

    Attributes:
        reason: What that is, such as "column 'v' has type 'variant'".
        metadata_location: The metadata file, if known.
        format_version: Version of the table format, if known.
        locations: Where the table keeps its files, as far as known.
        document: The parsed JSON of the metadata file, in the process that read it; empty elsewhere.
    """

    def __init__(
        self,
        table: object,
        *,
        reason: str,
        metadata_location: str | None = None,
        format_version: int | None = None,
        locations: Sequence[str] = (),
        document: Mapping[str, Any] | None = None,
    ) -> None:
        self.reason, self.metadata_location = reason, metadata_location
        self.format_version, self.locations = format_version, tuple(locations)
        self._document = document or {}
        where = f" ({metadata_location})" if metadata_location else ""
        super().__init__(
            f"PyIceberg cannot parse the metadata of table '{table}'{where}: {reason}. The table exists, and nothing "
            "was changed. Use it through an engine that supports this, such as Spark.",
            engine="pyiceberg",
            table=table,
        )

    @property
    def document(self) -> Mapping[str, Any]:
        return self._document

    def __reduce__(self) -> tuple[Any, ...]:
        # A file with thousands of snapshots is not sent between processes.
        return _rebuild, (type(self), str(self), {**vars(self), "_document": {}})


class PluginNotFoundError(IcebergError):
    """No plugin of that kind and name is installed."""

    def __init__(self, kind: str, name: str, *, known: Sequence[str] = ()) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(f"No {kind} plugin '{name}' is installed. Known: {', '.join(sorted(known)) or 'none'}.")


class SecretNotFoundError(IcebergError):
    """The secret of a reference does not exist."""

    def __init__(self, reference: str, *, looked_in: Sequence[str] = ()) -> None:
        self.reference, self.looked_in = reference, tuple(looked_in)
        super().__init__(
            f"Secret '{reference}' not found (looked in {', '.join(looked_in) or 'the environment'}). "
            "Set the environment variable or mount the secret."
        )


TableExistsError = TableAlreadyExistsError
TableNotFoundError = NoSuchTableError
NamespaceNotFoundError = NoSuchNamespaceError
ConcurrencyConflictError = CommitConflictError

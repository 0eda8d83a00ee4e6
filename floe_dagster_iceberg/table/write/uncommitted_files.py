"""Data files of a commit: deleted if it fails, kept and listed if its outcome is unknown."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter


class Outcome:
    """Whether a commit that ends with an error may have landed, or may still land.

    An interrupted commit, such as of a run that Dagster terminates, has an unknown outcome, and so has one whose
    error may have come after it. An attempt whose response was lost may land as long as the table does not change,
    whatever happens to later attempts.
    """

    _sent = _response_lost = False

    def next_attempt(self) -> None:
        """Begin an attempt; nothing of it is sent."""
        self._sent = False

    def send(self) -> None:
        """Everything is staged: from now on the files of the attempt may belong to the table."""
        self._sent = True

    def response_lost(self) -> None:
        """An attempt was sent and its outcome is unknown: it may still land and need its files."""
        self._response_lost = True

    def may_have_committed(self, error: BaseException) -> bool:
        """Whether files of the commit may belong to the table after an error."""
        if isinstance(error, errors.CommitConflictError):
            # Another writer moved the branch, so a pending attempt is refused as well.
            return False
        if self._response_lost or isinstance(error, errors.CommitOutcomeUnknownError):
            return True
        return self._sent and not isinstance(error, errors.FloeStorageError)


class UncommittedFiles(Outcome, AbstractContextManager["UncommittedFiles"]):
    """All files that one operation writes.

    An error in the block deletes them, unless they may belong to the table; `CommitOutcomeUnknownError` lists them.
    """

    def __init__(self, table: str, io: FileIO) -> None:
        self._table, self._io, self._location = table, io, ""
        self._kept: list[DataFileWriter] = []
        self._of_attempt: list[DataFileWriter] = []

    def open_writer(
        self,
        metadata: TableMetadata,
        *,
        target_file_size_bytes: int | None = None,
        sort_by: Sequence[str] = (),
        side_by_side: bool = True,
        for_attempt: bool = False,
    ) -> DataFileWriter:
        """A writer whose files are used by every attempt, or by one only: `next_attempt` deletes those."""
        self._location = metadata.location
        writer = DataFileWriter(
            metadata,
            self._io,
            target_file_size_bytes=target_file_size_bytes,
            sort_by=sort_by,
            side_by_side=side_by_side,
        )
        (self._of_attempt if for_attempt else self._kept).append(writer)
        return writer

    def next_attempt(self) -> None:
        """Delete what was written for the previous attempt."""
        self._sent = False
        while self._of_attempt:
            self._of_attempt.pop().discard()

    def response_lost(self) -> None:
        """Keep the files of the attempt."""
        super().response_lost()
        self._kept += self._of_attempt
        self._of_attempt.clear()

    def discard(self) -> None:
        """Delete everything."""
        self.next_attempt()
        while self._kept:
            self._kept.pop().discard()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, errors.CommitOutcomeUnknownError):
            started = [path for writer in (*self._kept, *self._of_attempt) for path in writer.started]
            raise errors.CommitOutcomeUnknownError(
                self._table, snapshot_id=error.snapshot_id, reason=error.reason, files=started
            ) from error
        if error is not None and not self.may_have_committed(error):
            self.discard()
        if isinstance(error, UnicodeDecodeError):
            # Not chained: Python's error holds the text.
            raise errors.WriteError(
                f"A text column for '{self._table}' holds bytes that are not valid UTF-8. Decode them in the asset, or "
                "write the column as binary.",
                table=self._table,
            ) from None
        is_of_storage = error is not None and isinstance(error.__cause__, OSError)
        if error is not None and is_of_storage and type(error) in (errors.IcebergError, errors.WriteError):
            raise errors.WriteError(
                f"The location '{self._location}' cannot be written to. Check that it exists and that the storage "
                f"credentials may write there. {error}",
                table=self._table,
            ) from error.__cause__
        if type(error) is errors.IcebergError:
            # A storage failure without a class of its own; what matters is that nothing was written.
            raise errors.WriteError(str(error), table=self._table) from error.__cause__

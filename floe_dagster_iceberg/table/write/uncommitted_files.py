"""Data files on their way into a table: gone if the commit fails, listed if nobody knows."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter


class Outcome:
    """Whether a commit that ends with an error may have landed, or may still do so.

    Interrupting a commit on its way, as Dagster does when a run is terminated, leaves the outcome unknown, and so
    does an error that may have come before or after the commit. An attempt whose response was lost may land as long
    as the table stays as it was, whatever becomes of the attempts after it.
    """

    _sent = _response_lost = False

    def next_attempt(self) -> None:
        """An attempt begins; nothing of it is sent."""
        self._sent = False

    def send(self) -> None:
        """All is staged: from here on the files of the attempt may belong to the table."""
        self._sent = True

    def response_lost(self) -> None:
        """An attempt was sent and its outcome is unknown: it may still land, and need its files."""
        self._response_lost = True

    def may_have_committed(self, error: BaseException) -> bool:
        """Whether files of the commit may belong to the table after an error."""
        if isinstance(error, errors.CommitConflictError):
            # Another writer moved the branch, so that an attempt on its way is refused as well.
            return False
        if self._response_lost or isinstance(error, errors.CommitOutcomeUnknownError):
            return True
        return self._sent and not isinstance(error, errors.FloeStorageError)


class UncommittedFiles(Outcome):
    """All files that one operation writes.

    Leaving the block by an error deletes them, unless they may belong to the table. An error that
    says so names them.
    """

    def __init__(self, table: str, io: FileIO) -> None:
        self._table, self._io = table, io
        self._kept: list[DataFileWriter] = []
        self._of_attempt: list[DataFileWriter] = []

    def open_writer(
        self,
        metadata: TableMetadata,
        *,
        target_file_size_bytes: int | None = None,
        sort_by: Sequence[str] = (),
        side_by_side: bool = True,
    ) -> DataFileWriter:
        """A writer whose files serve every attempt of the commit."""
        writer = DataFileWriter(
            metadata,
            self._io,
            target_file_size_bytes=target_file_size_bytes,
            sort_by=sort_by,
            side_by_side=side_by_side,
        )
        self._kept.append(writer)
        return writer

    def open_attempt_writer(self, metadata: TableMetadata, *, sort_by: Sequence[str] = ()) -> DataFileWriter:
        """A writer for files that depend on what the table holds; `next_attempt` deletes them."""
        writer = DataFileWriter(metadata, self._io, sort_by=sort_by)
        self._of_attempt.append(writer)
        return writer

    def next_attempt(self) -> None:
        """Delete what was written for the attempt before."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, errors.CommitOutcomeUnknownError):
            started = [path for writer in (*self._kept, *self._of_attempt) for path in writer.started]
            raise errors.CommitOutcomeUnknownError(
                self._table, snapshot_id=error.snapshot_id, reason=error.reason, files=started
            ) from error
        if error is not None and not self.may_have_committed(error):
            self.discard()
        if type(error) is errors.IcebergError:
            # Storage failed in a way that has no class of its own; what matters is that nothing was written.
            raise errors.WriteError(str(error), table=self._table) from error.__cause__

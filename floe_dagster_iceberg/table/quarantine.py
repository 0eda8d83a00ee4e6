"""Where orphan files wait before they are deleted, and from where they can come back.

A quarantine is a folder below the table's location with a list of what was moved there. The
list is written before the first file moves, so that an interrupted run can be undone as well.
The folder's name begins with an underscore: Iceberg's own orphan removal leaves such folders alone.
"""

import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import pydantic
from pydantic import AwareDatetime, Field
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from floe_dagster_iceberg.errors import IcebergError
from floe_dagster_iceberg.models.base import FrozenModel, Items
from floe_dagster_iceberg.table.stored_files import StoredFile, delete_many, in_parallel, list_files, move_file

QUARANTINE_FOLDER: Final = "_floe_quarantine"
_LIST: Final = "list.json"


class QuarantinedFile(FrozenModel):
    """A file that was moved."""

    location: str = Field(description="Where it was.")
    quarantined_at: str = Field(description="Where it is now.")
    size_bytes: int = Field(ge=0, description="Its size.")
    modified_at: AwareDatetime | None = Field(default=None, description="When it was written.")


class Quarantine(FrozenModel):
    """One batch of orphans; this is what its list holds."""

    quarantine_id: str = Field(description="Name of its folder.")
    table: str = Field(description="The table.")
    created_at: AwareDatetime = Field(description="When the files were moved.")
    files: Items[QuarantinedFile] = Field(description="The files.")

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


def new_quarantine(table: Table, files: Sequence[StoredFile], now: datetime) -> Quarantine:
    """Name a quarantine for files below the table's location; nothing is moved yet."""
    quarantine_id = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    root, folder = table.location().rstrip("/"), _folder(table, quarantine_id)
    return Quarantine(
        quarantine_id=quarantine_id,
        table=".".join(table.name()),
        created_at=now,
        files=[
            QuarantinedFile(
                location=file.location,
                quarantined_at=f"{folder}/files/{file.location.removeprefix(root).lstrip('/')}",
                size_bytes=file.size_bytes,
                modified_at=file.modified_at,
            )
            for file in files
        ],
    )


def write_list(table: Table, quarantine: Quarantine) -> None:
    """Write down what is going to be moved, or what was."""
    with table.io.new_output(_list_of(table, quarantine.quarantine_id)).create(overwrite=True) as stream:
        stream.write(quarantine.model_dump_json(indent=2).encode())


def move_in(io: FileIO, files: Sequence[QuarantinedFile]) -> list[QuarantinedFile]:
    """Move files into quarantine; returns those that were still there to be moved."""
    return [
        file for file in in_parallel(lambda file: _moved(io, file, file.location, file.quarantined_at), files) if file
    ]


def load_quarantines(table: Table) -> list[Quarantine]:
    """All quarantines of a table, oldest first.

    Raises:
        IcebergError: A list cannot be read, so the contents of its folder are unknown.
    """
    listed = list_files(table.io, _folder(table))
    lists = [
        file.location for file in listed if file.location.endswith(f"/{_LIST}") and file.location.count("/files/") == 0
    ]
    return sorted(_load(table, lists), key=lambda quarantine: quarantine.created_at)


def restore(table: Table, quarantine: Quarantine) -> int:
    """Move a quarantine's files back to where they were, byte by byte the same; returns how many.

    A file that is at its old place already stays as it is there. Restoring twice does no harm.
    """
    io = table.io

    def back(file: QuarantinedFile) -> QuarantinedFile | None:
        if io.new_input(file.location).exists():
            # Object stores move by copying; a run that was killed in between leaves both.
            delete_many(io, [file.quarantined_at])
            return None
        return _moved(io, file, file.quarantined_at, file.location)

    restored = [file for file in in_parallel(back, quarantine.files) if file]
    _forget(table, quarantine)
    return len(restored)


def purge(table: Table, quarantine: Quarantine) -> list[QuarantinedFile]:
    """Delete a quarantine's files for good, then its list; returns the files that are gone."""
    left = set(delete_many(table.io, [file.quarantined_at for file in quarantine.files]))
    if not left:
        _forget(table, quarantine)
    return [file for file in quarantine.files if file.quarantined_at not in left]


def _load(table: Table, lists: Sequence[str]) -> Iterator[Quarantine]:
    for location in lists:
        with table.io.new_input(location).open() as stream:
            text = stream.read()
        try:
            yield Quarantine.model_validate_json(text)
        except pydantic.ValidationError:
            name = ".".join(table.name())
            raise IcebergError(
                f"The quarantine list '{location}' of '{name}' cannot be read. Restore it from a backup, or look "
                "through its folder by hand.",
                table=name,
            ) from None


def _moved(io: FileIO, file: QuarantinedFile, source: str, target: str) -> QuarantinedFile | None:
    try:
        move_file(io, source, target)
    except FileNotFoundError:
        return None
    return file


def _forget(table: Table, quarantine: Quarantine) -> None:
    delete_many(table.io, [_list_of(table, quarantine.quarantine_id)])


def _folder(table: Table, quarantine_id: str | None = None) -> str:
    folder = f"{table.location().rstrip('/')}/{QUARANTINE_FOLDER}"
    return folder if quarantine_id is None else f"{folder}/{quarantine_id}"


def _list_of(table: Table, quarantine_id: str) -> str:
    return f"{_folder(table, quarantine_id)}/{_LIST}"

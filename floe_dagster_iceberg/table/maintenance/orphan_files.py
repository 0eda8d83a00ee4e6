"""Where orphan files wait before they are deleted, and from where they can come back.

A quarantine is a folder below the table's location with a list of what was moved there. The
list is written before the first file moves, so that an interrupted run can be undone as well.
The folder's name begins with an underscore: Iceberg's own orphan removal leaves such folders alone.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pydantic
from pydantic import AwareDatetime, Field
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from floe_dagster_iceberg.errors import IcebergError, ValidationError
from floe_dagster_iceberg.models.base import FrozenModel, Items
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.maintenance.unreferenced_files import (
    ReferencedFiles,
    UnreferencedFiles,
    read_table_uuid,
)
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.storage import FileLocation, StoredFile, delete_many, in_parallel, list_files, move_file

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


MOVE_BATCH: Final = 1000
_METADATA_SUFFIX: Final = ".metadata.json"


@dataclass(frozen=True)
class OrphanSearch:
    """What a look below a table's location found.

    Attributes:
        orphans: Old files that nothing leads to.
        objects: All files that were looked at, whatever their age.
        other_spellings: Files that the table reaches under another scheme or authority.
        foreign_metadata: Metadata files that are another table's.
        due: Quarantines whose time is over.
    """

    orphans: UnreferencedFiles
    objects: int
    other_spellings: Sequence[str]
    foreign_metadata: Sequence[str]
    due: Sequence[Quarantine]

    @property
    def share(self) -> float:
        """Orphans as a share of all files, 0 to 1."""
        return len(self.orphans.files) / self.objects if self.objects else 0.0


def find_orphans(
    table: Table,
    *,
    now: datetime,
    older_than: timedelta,
    grace: timedelta,
    only: Callable[[], Iterable[str]] | None = None,
) -> OrphanSearch:
    """Look for orphans; changes nothing.

    Args:
        table: The table.
        now: The time from which ages are counted.
        older_than: Age from which a file can be an orphan.
        grace: Time that files stay in quarantine.
        only: Where another engine saw orphans; ours must be among them. None is our own judgement alone.
    """
    with translate_errors(table.catalog.name, table=table_name(table)):
        # Listed before the metadata is read: what is committed in between is referenced, what is written is young.
        listed = [file for file in list_files(table.io, table.location()) if not _is_hidden(table, file)]
        old = {
            FileLocation.of(file.location): file
            for file in listed
            if file.modified_at is not None and now - file.modified_at > older_than
        }
        table.refresh()
        referenced = ReferencedFiles(table.io)
        referenced.add(table)
        referenced.open_manifests()
        unreferenced = {place: file for place, file in old.items() if place not in referenced}
        if only is not None and unreferenced:
            seen = {FileLocation.of(location) for location in only()}
            unreferenced = {place: file for place, file in unreferenced.items() if place in seen}
        paths = {place.path for place in referenced.places}
        spelled = {place for place in unreferenced if place.path in paths}
        orphans = {place: file for place, file in unreferenced.items() if place not in spelled}
        return OrphanSearch(
            orphans=UnreferencedFiles(list(orphans.values()), referenced, orphans.keys()),
            objects=len(listed),
            other_spellings=sorted(unreferenced[place].location for place in spelled),
            foreign_metadata=_foreign_metadata(table, listed, orphans.keys()),
            due=[each for each in load_quarantines(table) if now - each.created_at >= grace],
        )


def quarantine_orphans(
    table: Table, orphans: UnreferencedFiles, *, now: datetime, progress: Callable[[str], None] | None = None
) -> list[QuarantinedFile]:
    """Move orphans into a new quarantine, batch by batch, each looked at again on the newest metadata.

    Returns:
        The files that were moved.
    """
    if not orphans.files:
        return []
    moved: list[QuarantinedFile] = []
    with translate_errors(table.catalog.name, table=table_name(table)):
        quarantine = new_quarantine(table, orphans.files, now)
        write_list(table, quarantine)
        for start in range(0, len(quarantine.files), MOVE_BATCH):
            orphans.recheck(table)
            batch = quarantine.files[start : start + MOVE_BATCH]
            moved += move_in(table.io, [file for file in batch if file.location not in orphans.referenced])
            if progress is not None:
                progress(f"{len(moved)} of {len(quarantine.files)} orphans moved to quarantine")
        if len(moved) < len(quarantine.files):
            write_list(table, quarantine.model_copy(update={"files": tuple(moved)}))
    return moved


def purge_quarantine(table: Table, quarantine: Quarantine) -> list[QuarantinedFile]:
    """Delete a quarantine whose time is over; if the table needs one of its files again, restore it instead.

    Returns:
        The files that are gone; none when they were restored.
    """
    with translate_errors(table.catalog.name, table=table_name(table)):
        table.refresh()
        referenced = ReferencedFiles(table.io)
        referenced.add(table)
        referenced.open_manifests(among={FileLocation.of(file.location) for file in quarantine.files})
        if any(file.location in referenced for file in quarantine.files):
            restore(table, quarantine)
            return []
        return purge(table, quarantine)


def restore_quarantines(table: Table, quarantine_id: str | None = None, *, dry_run: bool = False) -> int:
    """Move files in quarantine back to where they were, or with `dry_run` only count them; returns how many.

    Raises:
        ValidationError: The table has no such quarantine.
    """
    name = table_name(table)
    with translate_errors(table.catalog.name, table=name):
        known = load_quarantines(table)
        chosen = [each for each in known if quarantine_id in (None, each.quarantine_id)]
        if quarantine_id is not None and not chosen:
            there = ", ".join(each.quarantine_id for each in known) or "none"
            raise ValidationError(f"Table '{name}' has no quarantine '{quarantine_id}'. It has: {there}.", table=name)
        if dry_run:
            return sum(len(quarantine.files) for quarantine in chosen)
        return sum(restore(table, quarantine) for quarantine in chosen)


def _is_hidden(table: Table, file: StoredFile) -> bool:
    """Whether a name on the way begins with '_' or '.', as Iceberg hides what is not a table's; '_column=' does not."""
    relative = file.location.removeprefix(table.location().rstrip("/"))
    return any(part.startswith(("_", ".")) and "=" not in part for part in relative.strip("/").split("/"))


def _foreign_metadata(table: Table, listed: Sequence[StoredFile], orphans: Iterable[FileLocation]) -> list[str]:
    """Metadata files that say they are another table's: in folders of their own, or left by one that was dropped."""
    own, unreferenced = str(table.metadata.table_uuid), set(orphans)
    folder = FileLocation.of(table.metadata_location.rpartition("/")[0])
    doubtful = [
        file.location
        for file in listed
        if file.location.endswith(_METADATA_SUFFIX)
        and (
            FileLocation.of(file.location) in unreferenced
            or FileLocation.of(file.location.rpartition("/")[0]) != folder
        )
    ]
    owners = in_parallel(lambda location: read_table_uuid(table.io, location), doubtful)
    return sorted(location for location, owner in zip(doubtful, owners, strict=True) if owner != own)

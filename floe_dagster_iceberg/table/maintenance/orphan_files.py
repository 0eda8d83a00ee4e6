"""Orphan files: found, moved into quarantine, and later deleted or restored.

A quarantine is a folder below the table's location with a list of the moved files. The list is
written before the first file moves, so that an interrupted run can be undone as well. The folder's
name begins with an underscore: Iceberg's own orphan removal ignores such folders.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
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
from floe_dagster_iceberg.table.maintenance import Progress, unreferenced_files
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.storage import FileLocation, StoredFile, delete_many, in_parallel, list_files, move_file

QUARANTINE_FOLDER: Final = "_floe_quarantine"
_LIST: Final = "list.json"


class QuarantinedFile(FrozenModel):
    """A file in quarantine."""

    location: str = Field(description="Where it was.")
    quarantined_at: str = Field(description="Where it is now.")
    size_bytes: int = Field(ge=0, description="Its size.")
    modified_at: AwareDatetime | None = Field(default=None, description="When it was written.")


class Quarantine(FrozenModel):
    """The quarantine of one run, as written to its list."""

    quarantine_id: str = Field(description="Name of its folder.")
    table: str = Field(description="The table.")
    created_at: AwareDatetime = Field(description="When the files were moved.")
    files: Items[QuarantinedFile] = Field(description="The files.")

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def _new_quarantine(table: Table, files: Sequence[StoredFile], now: datetime) -> Quarantine:
    quarantine_id = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    root, folder = table.location().rstrip("/"), _folder(table, quarantine_id)
    return Quarantine(
        quarantine_id=quarantine_id,
        table=table_name(table),
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


def _write_list(table: Table, quarantine: Quarantine) -> None:
    with table.io.new_output(_list_of(table, quarantine.quarantine_id)).create(overwrite=True) as stream:
        stream.write(quarantine.model_dump_json(indent=2).encode())


def load_quarantines(table: Table) -> list[Quarantine]:
    """Load all quarantines of a table, oldest first.

    Raises:
        IcebergError: A list cannot be read.
    """
    locations = (file.location for file in list_files(table.io, _folder(table)))
    lists = [each for each in locations if each.endswith(f"/{_LIST}") and "/files/" not in each]
    return sorted((_load(table, each) for each in lists), key=lambda quarantine: quarantine.created_at)


def _restore(table: Table, quarantine: Quarantine) -> int:
    """Move a quarantine's files back, except those that exist there already; returns how many. Idempotent."""
    io = table.io

    def back(file: QuarantinedFile) -> QuarantinedFile | None:
        if io.new_input(file.location).exists():
            # Object stores copy and delete; a run that was killed in between leaves both.
            delete_many(io, [file.quarantined_at])
            return None
        return _moved(io, file, file.quarantined_at, file.location)

    restored = [file for file in in_parallel(back, quarantine.files) if file]
    delete_many(io, [_list_of(table, quarantine.quarantine_id)])
    return len(restored)


def _load(table: Table, location: str) -> Quarantine:
    with table.io.new_input(location).open() as stream:
        text = stream.read()
    try:
        return Quarantine.model_validate_json(text)
    except pydantic.ValidationError:
        name = table_name(table)
        raise IcebergError(
            f"The quarantine list '{location}' of '{name}' cannot be read. Restore it from a backup, or check its "
            "folder manually.",
            table=name,
        ) from None


def _moved(io: FileIO, file: QuarantinedFile, source: str, target: str) -> QuarantinedFile | None:
    try:
        move_file(io, source, target)
    except FileNotFoundError:
        return None
    return file


def _folder(table: Table, quarantine_id: str | None = None) -> str:
    folder = f"{table.location().rstrip('/')}/{QUARANTINE_FOLDER}"
    return folder if quarantine_id is None else f"{folder}/{quarantine_id}"


def _list_of(table: Table, quarantine_id: str) -> str:
    return f"{_folder(table, quarantine_id)}/{_LIST}"


MOVE_BATCH: Final = 1000
_METADATA_SUFFIX: Final = ".metadata.json"


@dataclass(frozen=True)
class OrphanSearch:
    """The result of a search below a table's location.

    Attributes:
        orphans: Old files that nothing references.
        objects: Number of all files found, whatever their age.
        other_spellings: Files that the table references with another scheme or authority.
        foreign_metadata: Metadata files of other tables.
        due: Quarantines past their grace period.
    """

    orphans: unreferenced_files.UnreferencedFiles
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
    """Search for orphans; changes nothing.

    Args:
        table: The table.
        now: The current time.
        older_than: Minimum age of an orphan.
        grace: How long files stay in quarantine.
        only: Returns the orphans that another engine found; if given, only these count.
    """
    with translate_errors(table.catalog.name, table=table_name(table)):
        # Listed before the metadata is read: files committed in between are referenced, files written are young.
        listed = [file for file in list_files(table.io, table.location()) if not _is_hidden(table, file)]
        old = {
            FileLocation.of(file.location): file
            for file in listed
            if file.modified_at is not None and now - file.modified_at > older_than
        }
        table.refresh()
        referenced = unreferenced_files.ReferencedFiles(table.io)
        referenced.add(table)
        referenced.open_manifests()
        unreferenced = {at: file for at, file in old.items() if at not in referenced}
        if only is not None and unreferenced:
            seen = {FileLocation.of(location) for location in only()}
            unreferenced = {at: file for at, file in unreferenced.items() if at in seen}
        paths = referenced.paths()
        orphans = {at: file for at, file in unreferenced.items() if at.path not in paths}
        return OrphanSearch(
            orphans=unreferenced_files.UnreferencedFiles(list(orphans.values()), referenced, orphans.keys()),
            objects=len(listed),
            other_spellings=sorted(file.location for at, file in unreferenced.items() if at.path in paths),
            foreign_metadata=_foreign_metadata(table, listed, orphans.keys()),
            due=[each for each in load_quarantines(table) if now - each.created_at >= grace],
        )


def quarantine_orphans(
    table: Table, orphans: unreferenced_files.UnreferencedFiles, *, now: datetime, progress: Progress | None = None
) -> list[QuarantinedFile]:
    """Move orphans into a new quarantine in batches, each rechecked on the newest metadata; returns the moved files."""
    if not orphans.files:
        return []
    moved, io = list[QuarantinedFile](), table.io
    with translate_errors(table.catalog.name, table=table_name(table)):
        quarantine = _new_quarantine(table, orphans.files, now)
        _write_list(table, quarantine)
        for start in range(0, len(quarantine.files), MOVE_BATCH):
            orphans.recheck(table)
            batch = quarantine.files[start : start + MOVE_BATCH]
            still = [file for file in batch if file.location not in orphans.referenced]
            moves = in_parallel(lambda file: _moved(io, file, file.location, file.quarantined_at), still)
            moved += filter(None, moves)
            if progress is not None:
                progress(f"{len(moved)} of {len(quarantine.files)} orphans moved to quarantine")
        if len(moved) < len(quarantine.files):
            _write_list(table, quarantine.model_copy(update={"files": tuple(moved)}))
    return moved


def purge_quarantine(table: Table, quarantine: Quarantine) -> list[QuarantinedFile]:
    """Delete a quarantine, or restore it if the table references one of its files again; returns what was deleted."""
    with translate_errors(table.catalog.name, table=table_name(table)):
        table.refresh()
        referenced = unreferenced_files.ReferencedFiles(table.io)
        referenced.add(table)
        referenced.open_manifests(among={FileLocation.of(file.location) for file in quarantine.files})
        if any(file.location in referenced for file in quarantine.files):
            _restore(table, quarantine)
            return []
        left = set(delete_many(table.io, [file.quarantined_at for file in quarantine.files]))
        if not left:
            delete_many(table.io, [_list_of(table, quarantine.quarantine_id)])
        return [file for file in quarantine.files if file.quarantined_at not in left]


def restore_quarantines(table: Table, quarantine_id: str | None = None, *, dry_run: bool = False) -> int:
    """Restore files from quarantine, or only count them with `dry_run`; returns how many.

    Raises:
        ValidationError: The table has no such quarantine.
    """
    name = table_name(table)
    with translate_errors(table.catalog.name, table=name):
        known = load_quarantines(table)
        chosen = [each for each in known if quarantine_id in (None, each.quarantine_id)]
        if quarantine_id is not None and not chosen:
            ids = ", ".join(each.quarantine_id for each in known) or "none"
            raise ValidationError(f"Table '{name}' has no quarantine '{quarantine_id}'. It has: {ids}.", table=name)
        if dry_run:
            return sum(len(quarantine.files) for quarantine in chosen)
        return sum(_restore(table, quarantine) for quarantine in chosen)


def _is_hidden(table: Table, file: StoredFile) -> bool:
    """Whether Iceberg hides a file: a part of its path begins with '_' or '.' and is not a partition like '_a=1'."""
    relative = file.location.removeprefix(table.location().rstrip("/"))
    return any(part.startswith(("_", ".")) and "=" not in part for part in relative.strip("/").split("/"))


def _foreign_metadata(table: Table, listed: Sequence[StoredFile], orphans: Iterable[FileLocation]) -> list[str]:
    """Metadata files with another table's UUID: in other folders, or left by a table that was dropped."""
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
    owners = in_parallel(lambda location: unreferenced_files.read_table_uuid(table.io, location), doubtful)
    return sorted(location for location, owner in zip(doubtful, owners, strict=True) if owner != own)

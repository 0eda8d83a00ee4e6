"""Files below a table's location that nothing in the table's metadata leads to.

They come from writers that failed or were killed, and from expiries that were interrupted. They
look just like files of a writer that has not committed yet, so only old ones count.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyiceberg.table import Table

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table.file_cleanup import UnreferencedFiles, read_table_uuid
from floe_dagster_iceberg.table.metadata_session import table_name
from floe_dagster_iceberg.table.quarantine import (
    Quarantine,
    QuarantinedFile,
    load_quarantines,
    move_in,
    new_quarantine,
    purge,
    restore,
    write_list,
)
from floe_dagster_iceberg.table.reachability import ReferencedFiles
from floe_dagster_iceberg.table.stored_files import Place, StoredFile, in_parallel, list_files

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
    with translated(table.catalog.name, table=table_name(table)):
        # Listed before the metadata is read: what is committed in between is referenced, what is written is young.
        listed = [file for file in list_files(table.io, table.location()) if not _is_hidden(table, file)]
        old = {
            Place.of(file.location): file
            for file in listed
            if file.modified_at is not None and now - file.modified_at > older_than
        }
        table.refresh()
        referenced = ReferencedFiles(table.io)
        referenced.add(table)
        referenced.open_manifests()
        unreferenced = {place: file for place, file in old.items() if place not in referenced}
        if only is not None and unreferenced:
            seen = {Place.of(location) for location in only()}
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
    with translated(table.catalog.name, table=table_name(table)):
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
    with translated(table.catalog.name, table=table_name(table)):
        table.refresh()
        referenced = ReferencedFiles(table.io)
        referenced.add(table)
        referenced.open_manifests(among={Place.of(file.location) for file in quarantine.files})
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
    with translated(table.catalog.name, table=name):
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


def _foreign_metadata(table: Table, listed: Sequence[StoredFile], orphans: Iterable[Place]) -> list[str]:
    """Metadata files that say they are another table's: in folders of their own, or left by one that was dropped."""
    own, unreferenced = str(table.metadata.table_uuid), set(orphans)
    folder = Place.of(table.metadata_location.rpartition("/")[0])
    doubtful = [
        file.location
        for file in listed
        if file.location.endswith(_METADATA_SUFFIX)
        and (Place.of(file.location) in unreferenced or Place.of(file.location.rpartition("/")[0]) != folder)
    ]
    owners = in_parallel(lambda location: read_table_uuid(table.io, location), doubtful)
    return sorted(location for location, owner in zip(doubtful, owners, strict=True) if owner != own)

"""Repair of tables whose metadata file is missing or truncated: a write goes on from the newest version that is left.

Only with `stale_table_recovery_mode="repair"`, only while rows are written to the table, and only in one step: the
catalog's entry is never dropped, not even if no version is left. Metadata that is complete and that PyIceberg cannot
parse is not damage. Commits after the version that is registered are lost to the table; their files stay, and
`MetadataRepair` says how to get them back.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table.metadata import TableMetadata

from floe_dagster_iceberg._pyiceberg.metadata_errors import read_metadata
from floe_dagster_iceberg.errors import EngineCapabilityError, FloeStorageError, StaleTableMetadataError
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.storage import list_files
from floe_dagster_iceberg.telemetry import annotate, attributes as attrs, describe_table, traced_step

_SUFFIX: Final = ".metadata.json"
# Near the beginning of a metadata file, so that most truncated ones still have it.
_UUID: Final = re.compile(rb'"table-uuid"\s*:\s*"(?P<uuid>[0-9a-fA-F-]{36})"')
_logger = logging.getLogger(__name__)


@runtime_checkable
class ReplaceableEntries(Protocol):
    """A catalog whose entry for a table can be pointed to another metadata file in one step."""

    def previous_metadata_location(self, identifier: tuple[str, ...], current: str) -> str | None:
        """The metadata file before `current`, if the catalog knows it."""

    def replace_metadata_location(self, identifier: tuple[str, ...], *, expected: str, location: str) -> None:
        """Point the entry from `expected` to `location`.

        Raises:
            CommitFailedException: It does not point to `expected` any more.
            EngineCapabilityError: The catalog cannot do that.
        """


@dataclass(frozen=True)
class MetadataRepair:
    """What a repair did, and how to undo it.

    Attributes:
        table: The table.
        location_before: The metadata file that was registered, and is missing or truncated.
        location_after: The metadata file that is registered now.
    """

    table: str
    location_before: str
    location_after: str

    def __str__(self) -> str:
        return (
            f"The metadata file of table '{self.table}' was missing or truncated ({self.location_before}), so it was "
            f"set back to its newest version that is left ({self.location_after}). Later commits are lost to it, but "
            f"no file was deleted. To undo this, restore the file, call drop_table('{self.table}') without purge, "
            f"and register_table('{self.table}', '{self.location_before}')."
        )


OnRepair: TypeAlias = Callable[[MetadataRepair], None]
"""Called with what a repair did."""


def _describe(_: Catalog, identifier: TableIdentifier, *__: object) -> dict[str, Any]:
    return describe_table(identifier)


@traced_step("repair_table", _describe)
def repair_table(
    catalog: Catalog, identifier: TableIdentifier, stale: StaleTableMetadataError
) -> MetadataRepair | None:
    """Register the newest readable version of a table in place of the one that is missing or truncated.

    Returns:
        What was done; None if another process changed the entry meanwhile, so that the table should be loaded again.

    Raises:
        StaleTableMetadataError: Nothing was changed, with the reason and what to do instead.
    """
    broken = stale.metadata_location
    if broken is None:
        raise _refusal(stale, "the location of its metadata is unknown")
    try:
        with translate_errors(catalog.name, table=identifier):
            newest = _Versions(catalog, identifier, broken).newest()
            if not _replace(catalog, identifier, broken, newest):
                return None
    except StaleTableMetadataError as refused:
        raise refused from stale.__cause__
    except EngineCapabilityError:
        raise _refusal(
            stale,
            f"catalog '{catalog.name}' cannot replace its entry in one step",
            f"The newest version that is left is {newest}: drop the table without purge, and register that file",
        ) from stale.__cause__
    except FloeStorageError as error:
        raise _refusal(stale, f"the repair failed with {type(error).__name__}") from error
    repair = MetadataRepair(str(identifier), broken, newest)
    annotate({attrs.METADATA_LOCATION_BEFORE: broken, attrs.METADATA_LOCATION: newest})
    _logger.warning("%s", repair)
    return repair


def _replace(catalog: Catalog, identifier: TableIdentifier, broken: str, newest: str) -> bool:
    """Point the catalog's entry to another version; False if it was changed by another process."""
    if not isinstance(catalog, ReplaceableEntries):
        raise EngineCapabilityError("The catalog cannot replace an entry.", engine="pyiceberg", table=identifier)
    try:
        catalog.replace_metadata_location(identifier.as_tuple, expected=broken, location=newest)
    except CommitFailedException:
        return False
    return True


def _refusal(stale: StaleTableMetadataError, why: str, remedy: str | None = None) -> StaleTableMetadataError:
    remedy = remedy or "Restore the metadata file, or drop the table without purge and register a version by hand"
    return StaleTableMetadataError(
        stale.table,
        metadata_location=stale.metadata_location,
        reason=stale.reason,
        remedy=f"It was not repaired, and nothing was changed: {why}. {remedy}.",
    )


class _Versions:
    """The versions of one table, found beside the one that is missing or truncated."""

    def __init__(self, catalog: Catalog, identifier: TableIdentifier, broken: str) -> None:
        self._catalog, self._identifier, self._broken = catalog, identifier, broken
        self._folder = broken.rpartition("/")[0]
        self._io: FileIO = load_file_io(catalog.properties, broken)
        self._uuid: str | None = None

    def newest(self) -> str:
        """Location of the newest readable version that was committed.

        A failed commit may have left a metadata file beside the versions, and a dropped table of the same name all of
        its own. So a file counts if the catalog knows it as the version before, or if it has the table's uuid; without
        either, only as the one file of the version right before.

        Raises:
            StaleTableMetadataError: There is none, it is not certain which it is, or PyIceberg cannot parse it.
        """
        previous = self._previous()
        self._uuid = self._find_uuid(self._broken) or (previous and self._find_uuid(previous))
        if previous is not None and self._read(previous) is not None:
            return previous
        older = self._older()
        if not older:
            raise self._unusable("no version of it is left")
        for version in sorted(older, reverse=True):
            if self._uuid is None and (previous is not None or version != _version(self._broken) - 1):
                break
            readable = {location: found for location in older[version] if (found := self._read(location)) is not None}
            if len(readable) > 1 or any(self._may_be_of_another(metadata) for metadata in readable.values()):
                break
            for location in readable:
                return location
        raise self._unusable(f"it is not certain which of the files in {self._folder} is its newest version")

    def _previous(self) -> str | None:
        if not isinstance(self._catalog, ReplaceableEntries):
            return None
        return self._catalog.previous_metadata_location(self._identifier.as_tuple, self._broken)

    def _older(self) -> dict[int, list[str]]:
        """Locations of versions before the broken one; those of the same number together."""
        versions: dict[int, list[str]] = defaultdict(list)
        for location in self._listed():
            if 0 <= _version(location) < _version(self._broken):
                versions[_version(location)].append(location)
        return versions

    def _listed(self) -> list[str]:
        files = (file.location for file in list_files(self._io, self._folder))
        return [each for each in files if each.endswith(_SUFFIX) and each.rpartition("/")[0] == self._folder]

    def _read(self, location: str) -> TableMetadata | None:
        """A version of this table; None if it is missing or truncated, or has another uuid."""
        try:
            metadata = read_metadata(self._identifier, self._io, location)
        except StaleTableMetadataError:
            return None
        except EngineCapabilityError as unsupported:
            reason = unsupported.details.get("reason")
            raise self._unusable(f"PyIceberg cannot parse its version before, {location}: {reason}") from None
        return metadata if self._uuid in (None, str(metadata.table_uuid)) else None

    def _find_uuid(self, location: str) -> str | None:
        """The uuid in a file that is truncated; None if it has none any more, or is missing."""
        try:
            with self._io.new_input(location).open() as stream:
                found = _UUID.search(stream.read())
        except OSError:
            return None
        return None if found is None else found["uuid"].decode().lower()

    def _may_be_of_another(self, metadata: TableMetadata) -> bool:
        """Whether a version without proof may be another table's: one with other uuids beside it, or newer versions."""
        if self._uuid is not None:
            return False
        own = {entry.metadata_file.rpartition("/")[2] for entry in metadata.metadata_log}
        for location in self._listed():
            if location.rpartition("/")[2] in own or (other := self._read(location)) is None:
                continue
            # A commit that failed may have left the version after the broken one, but none after that.
            if other.table_uuid != metadata.table_uuid or _version(location) > _version(self._broken) + 1:
                return True
        return False

    def _unusable(self, why: str) -> StaleTableMetadataError:
        stale = StaleTableMetadataError(
            self._identifier, metadata_location=self._broken, reason="the file is missing or truncated"
        )
        return _refusal(stale, why)


def _version(location: str) -> int:
    """Number of a version: catalogs write `00012-<uuid>.metadata.json`; -1 for names of another form."""
    number = location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else -1

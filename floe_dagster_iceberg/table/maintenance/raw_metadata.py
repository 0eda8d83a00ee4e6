"""What is known of a table that PyIceberg cannot parse, from the JSON of its metadata file."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.errors import UnsupportedMetadataError
from floe_dagster_iceberg.models import HealthTier, SnapshotInfo, TableHealth, TableIdentifier

_NO_SNAPSHOT = -1


class RawMetadata:
    """The parts of a metadata file that every format version has; what is missing or unknown is left out.

    Raises:
        UnsupportedMetadataError: The one given, if it comes without the file.
    """

    def __init__(self, error: UnsupportedMetadataError) -> None:
        if not error.document:
            raise error
        self._document = error.document

    @property
    def location(self) -> str:
        return str(self._document.get("location", ""))

    @property
    def format_version(self) -> int:
        return int(self._document.get("format-version", 0))

    @property
    def properties(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in _mapping(self._document.get("properties")).items()}

    @property
    def columns(self) -> list[Mapping[str, Any]]:
        """The columns of the current schema, as they are written."""
        return _mappings(self._current("schemas", "schema-id", "current-schema-id").get("fields"))

    @property
    def partition_fields(self) -> list[Mapping[str, Any]]:
        """The fields of the current partition spec, as they are written."""
        return _mappings(self._current("partition-specs", "spec-id", "default-spec-id").get("fields"))

    @property
    def refs(self) -> dict[str, Mapping[str, Any]]:
        """Branches and tags, as they are written."""
        return {str(name): _mapping(ref) for name, ref in _mapping(self._document.get("refs")).items()}

    @property
    def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that can be parsed, newest first."""
        return sorted(self._parsed_snapshots(), key=lambda snapshot: snapshot.timestamp_ms, reverse=True)

    @property
    def current_snapshot(self) -> SnapshotInfo | None:
        """The newest snapshot of main."""
        current = self._document.get("current-snapshot-id", _NO_SNAPSHOT)
        return next((each for each in self._parsed_snapshots() if each.snapshot_id == current), None)

    def health(self, table: TableIdentifier, *, now: datetime | None = None) -> TableHealth:
        """The counts in the summary of the newest snapshot; no manifest is read."""
        current = self.current_snapshot
        summary = {} if current is None else current.summary
        times = [snapshot.timestamp for snapshot in self.snapshots]
        return TableHealth(
            table=table,
            tier=HealthTier.SUMMARY,
            measured_at=now or datetime.now(UTC),
            snapshot_id=None if current is None else current.snapshot_id,
            data_files=int(summary.get("total-data-files", 0)),
            delete_files=int(summary.get("total-delete-files", 0)),
            records=int(summary.get("total-records", 0)),
            total_bytes=int(summary.get("total-files-size", 0)),
            snapshots=len(_mappings(self._document.get("snapshots"))),
            oldest_snapshot_at=min(times, default=None),
        )

    def _current(self, entries: str, id_key: str, current_key: str) -> Mapping[str, Any]:
        current = self._document.get(current_key)
        found = (each for each in _mappings(self._document.get(entries)) if each.get(id_key) == current)
        return next(found, {})

    def _parsed_snapshots(self) -> Iterator[SnapshotInfo]:
        for snapshot in _mappings(self._document.get("snapshots")):
            with suppress(ValidationError, ValueError):
                yield SnapshotInfo.from_pyiceberg_snapshot(Snapshot.model_validate(snapshot))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []

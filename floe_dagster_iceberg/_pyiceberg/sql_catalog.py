"""PyIceberg's SQL catalog, made safe for concurrent processes and fast on tables with many snapshots.

Imported only when a SQL catalog is opened. `tests/contract/test_sql_catalog.py` fails when PyIceberg
changes a method that is overridden here.
"""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from pyiceberg import exceptions as pyiceberg_errors
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate, _update_table_metadata_log
from sqlalchemy.exc import DBAPIError, IntegrityError
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_fixed

from floe_dagster_iceberg._pyiceberg.transaction import apply_updates

_CREATE_ATTEMPTS = 10
_CREATE_WAIT_SECONDS = 0.05
# A run works on a few tables at a time. The metadata of one with thousands of snapshots takes some megabytes.
_REMEMBERED_VERSIONS = 8


class _MetadataCache:
    """Metadata files that were read or written last; they are immutable.

    Properties and refs are copied both ways: they are plain dicts, which the owner of a table may change.
    """

    def __init__(self) -> None:
        self._versions: OrderedDict[str, TableMetadata] = OrderedDict()
        self._lock = Lock()

    def get(self, location: str) -> TableMetadata | None:
        with self._lock:
            if (metadata := self._versions.get(location)) is not None:
                self._versions.move_to_end(location)
        return None if metadata is None else _own_copy(metadata)

    def put(self, location: str, metadata: TableMetadata) -> None:
        with self._lock:
            self._versions[location] = _own_copy(metadata)
            self._versions.move_to_end(location)
            if len(self._versions) > _REMEMBERED_VERSIONS:
                self._versions.popitem(last=False)


def _own_copy(metadata: TableMetadata) -> TableMetadata:
    return metadata.model_copy(update={"properties": dict(metadata.properties), "refs": dict(metadata.refs)})


def _made_by_another(error: BaseException) -> bool:
    return isinstance(error, IntegrityError) or (isinstance(error, DBAPIError) and "already exists" in str(error.orig))


class FloeSqlCatalog(SqlCatalog):
    """PyIceberg's catalog with other errors for races, and a cache of metadata.

    The database is asked for a table's current version at every load and commit, but a version that this process
    has read or written is not parsed again, and a commit does not copy the whole history to add one snapshot.
    """

    def __init__(self, name: str, **properties: str) -> None:
        self._metadata_memory = _MetadataCache()
        super().__init__(name, **properties)

    # Another process may create them between the check and the creation; the next check finds them.
    @retry(
        retry=retry_if_exception(_made_by_another),
        stop=stop_after_attempt(_CREATE_ATTEMPTS),
        wait=wait_fixed(_CREATE_WAIT_SECONDS),
        reraise=True,
    )
    def create_tables(self) -> None:
        super().create_tables()

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        try:
            super().create_namespace(namespace, properties or {})
        except IntegrityError as error:
            raise pyiceberg_errors.NamespaceAlreadyExistsError(f"Namespace {namespace} already exists") from error

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        """Commit; a broken connection leaves the outcome unknown."""
        try:
            committed = super().commit_table(table, requirements, updates)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise pyiceberg_errors.CommitStateUnknownException(
                "the connection to the catalog's database broke"
            ) from error
        self._metadata_memory.put(committed.metadata_location, committed.metadata)
        return committed

    def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
        location = orm_table.metadata_location
        if not (location and orm_table.table_namespace and orm_table.table_name):
            return super()._convert_orm_to_iceberg(orm_table)
        if (metadata := self._metadata_memory.get(location)) is None:
            metadata = self._read_metadata(location)
            self._metadata_memory.put(location, metadata)
        return Table(
            identifier=(*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def _read_metadata(self, location: str) -> TableMetadata:
        try:
            return FromInputFile.table_metadata(load_file_io(self.properties, location).new_input(location))
        except pyiceberg_errors.ValidationError as error:
            # PyIceberg does not say which file it was.
            raise pyiceberg_errors.ValidationError(f"TableMetadata cannot be parsed: {location}") from error

    def _update_and_stage_table(
        self, current_table: Table | None, table_identifier: Any, requirements: Any, updates: Any
    ) -> StagedTable:
        if current_table is None:
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        metadata = next_metadata(current_table.metadata, updates, current_table.metadata_location)
        version = self._parse_metadata_version(current_table.metadata_location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_table_metadata_file_location(version)
        return StagedTable(
            identifier=table_identifier,
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(properties=metadata.properties, location=location),
            catalog=self,
        )


def next_metadata(base: TableMetadata, updates: Sequence[TableUpdate], base_location: str) -> TableMetadata:
    """Like PyIceberg's `update_table_metadata`, without its copy of everything that did not change."""
    metadata = apply_updates(base, updates)
    if metadata is not base:
        metadata = _update_table_metadata_log(metadata, base_location, base.last_updated_ms)
        if metadata.last_updated_ms == base.last_updated_ms:
            metadata = metadata.model_copy(update={"last_updated_ms": int(datetime.now(UTC).timestamp() * 1000)})
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata

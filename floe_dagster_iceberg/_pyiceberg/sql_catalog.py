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
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate, _update_table_metadata_log
from pyiceberg.typedef import EMPTY_DICT
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_fixed

from floe_dagster_iceberg._pyiceberg.file_io import with_shared_clients
from floe_dagster_iceberg._pyiceberg.metadata_errors import read_metadata
from floe_dagster_iceberg._pyiceberg.transaction import TableChange, apply_updates, delete_quietly, outdated_snapshots
from floe_dagster_iceberg.models.identifiers import join_parts

_CREATE_ATTEMPTS = 10
_CREATE_WAIT_SECONDS = 0.05
# A run works on a few tables at a time. The metadata of one with thousands of snapshots takes some megabytes.
_REMEMBERED_VERSIONS = 8
_VIEW = "VIEW"
_BROKEN_CONNECTION = "the connection to the catalog's database broke"


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


def _has_outer_blanks(levels: tuple[str, ...]) -> bool:
    return "" in levels or tuple(map(str.strip, levels)) != tuple(levels)


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

    # PyIceberg strips the levels of a namespace, and would take another tool's namespace ' a ' for 'a'.
    def namespace_exists(self, identifier: Any) -> bool:
        return not _has_outer_blanks(Catalog.identifier_to_tuple(identifier)) and super().namespace_exists(identifier)

    def load_table(self, identifier: Any) -> Table:
        if _has_outer_blanks(Catalog.namespace_from(identifier)):
            raise pyiceberg_errors.NoSuchTableError(f"Table does not exist: {identifier}")
        return super().load_table(identifier)

    def drop_table(self, identifier: Any) -> None:
        if _has_outer_blanks(Catalog.namespace_from(identifier)):
            raise pyiceberg_errors.NoSuchTableError(f"Table does not exist: {identifier}")
        super().drop_table(identifier)

    def register_table(self, identifier: Any, metadata_location: str, overwrite: bool = False) -> Table:  # noqa: FBT001, FBT002 - PyIceberg's signature
        """Register a table by its metadata file, which is read first: an entry without a file is of no use."""
        self._read_metadata(Catalog.identifier_to_tuple(identifier), metadata_location)
        return super().register_table(identifier, metadata_location, overwrite)

    def previous_metadata_location(self, identifier: tuple[str, ...], current: str) -> str | None:
        """The metadata file of the version before `current`, the registered one."""
        entry = select(IcebergTables.previous_metadata_location).where(*self._entry(identifier, current))
        with Session(self.engine) as session:
            return session.scalar(entry)

    def replace_metadata_location(self, identifier: tuple[str, ...], *, expected: str, location: str) -> None:
        """Point the entry of a table to another metadata file, in one step.

        Raises:
            CommitFailedException: It does not point to `expected` any more; nothing was changed.
        """
        change = (
            update(IcebergTables)
            .where(*self._entry(identifier, expected))
            .values(metadata_location=location, previous_metadata_location=expected)
        )
        with self.engine.begin() as connection:
            if connection.execute(change).rowcount != 1:
                raise pyiceberg_errors.CommitFailedException("Table has been updated by another process")

    def view_exists(self, identifier: Any) -> bool:
        """Whether a view of another engine has this name; PyIceberg's own has no answer."""
        if self._iceberg_type_filter() is None:
            # The older layout has no views.
            return False
        parts = Catalog.identifier_to_tuple(identifier)
        kind = select(IcebergTables.iceberg_type).where(*self._entry(parts))
        with Session(self.engine) as session:
            return session.scalar(kind) == _VIEW

    def _entry(self, identifier: tuple[str, ...], location: str | None = None) -> list[ColumnElement[bool]]:
        """The conditions for the row of a table or view, with this metadata file if one is given."""
        conditions = [
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == Catalog.namespace_to_string(identifier[:-1]),
            IcebergTables.table_name == identifier[-1],
        ]
        return conditions if location is None else [*conditions, IcebergTables.metadata_location == location]

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        """Commit; a broken connection leaves the outcome unknown."""
        try:
            committed = super().commit_table(table, requirements, updates)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise pyiceberg_errors.CommitStateUnknownException(_BROKEN_CONNECTION) from error
        self._metadata_memory.put(committed.metadata_location, committed.metadata)
        return committed

    @property
    def commits_tables_together(self) -> bool:
        """Always: tables are rows of one database."""
        return True

    def commit_tables(self, changes: Sequence[TableChange]) -> None:
        """Commit changes of several tables in one transaction of the database.

        Raises:
            CommitFailedException: One of them has changed; nothing was committed.
            CommitStateUnknownException: The connection broke.
        """
        staged: list[tuple[Table, StagedTable]] = []
        # In one order, so that two such commits do not wait for each other for ever.
        for table, requirements, updates in sorted(changes, key=lambda change: change.table.name()):
            current = self.load_table(table.name())
            with outdated_snapshots():
                staged.append((current, self._update_and_stage_table(current, table.name(), requirements, updates)))
        for _, new in staged:
            self._write_metadata(new.metadata, new.io, new.metadata_location)
        try:
            self._replace_locations(staged)
        except pyiceberg_errors.CommitFailedException:
            for _, new in staged:
                delete_quietly(new.io, [new.metadata_location])
            raise
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise pyiceberg_errors.CommitStateUnknownException(_BROKEN_CONNECTION) from error
        for _, new in staged:
            self._metadata_memory.put(new.metadata_location, new.metadata)

    def _replace_locations(self, staged: Sequence[tuple[Table, StagedTable]]) -> None:
        with self.engine.begin() as connection:
            for current, new in staged:
                change = (
                    update(IcebergTables)
                    .where(*self._entry(current.name(), current.metadata_location))
                    .values(
                        metadata_location=new.metadata_location, previous_metadata_location=current.metadata_location
                    )
                )
                if connection.execute(change).rowcount != 1:
                    raise pyiceberg_errors.CommitFailedException(
                        f"Table has been updated by another process: {join_parts(current.name())}"
                    )

    def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
        location = orm_table.metadata_location
        if not (location and orm_table.table_namespace and orm_table.table_name):
            return super()._convert_orm_to_iceberg(orm_table)
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        if (metadata := self._metadata_memory.get(location)) is None:
            metadata = self._read_metadata(identifier, location)
            self._metadata_memory.put(location, metadata)
        return Table(
            identifier=identifier,
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def _read_metadata(self, identifier: tuple[str, ...], location: str) -> TableMetadata:
        return read_metadata(join_parts(identifier), self._load_file_io(location=location), location)

    def _load_file_io(self, properties: Any = EMPTY_DICT, location: str | None = None) -> FileIO:
        return with_shared_clients(super()._load_file_io(properties, location), location)

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        # A new name holds a new UUID, so PyIceberg's question whether there is such a file is left out.
        ToOutputFile.table_metadata(metadata, io.new_output(metadata_path), overwrite=True)

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

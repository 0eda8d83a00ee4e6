"""What all operations of the table manager share: the catalog, the settings, loading tables and committing."""

from collections.abc import Callable
from copy import copy
from threading import Lock
from typing import Any, Self, TypeVar, cast

from opentelemetry.trace import Tracer
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.errors import NoSuchTableError, StaleTableMetadataError
from floe_dagster_iceberg.models import IcebergTableManagerConfig, StaleTableRecoveryMode, TableConfig, TableIdentifier
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin, StoragePlugin
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit, refresh, view_exists
from floe_dagster_iceberg.table.manager.repair import OnRepair, repair_table
from floe_dagster_iceberg.table.names import TableRef, table_name, to_identifier
from floe_dagster_iceberg.table.write.handover import HandoverProvider
from floe_dagster_iceberg.telemetry import Telemetry, annotate, attributes as attrs, describe_table

T = TypeVar("T")


class CatalogSession:
    """A catalog that is connected when first used, and kept."""

    def __init__(
        self,
        catalog_plugin: CatalogPlugin | Catalog,
        storage_plugin: StoragePlugin | None = None,
        config: IcebergTableManagerConfig | None = None,
        *,
        tracer: Tracer | None = None,
        logger: Any = None,
    ) -> None:
        self._source, self._storage_plugin = catalog_plugin, storage_plugin
        self.config = config or IcebergTableManagerConfig()
        self.budget = CommitBudget.from_config(self.config)
        self._telemetry = Telemetry(tracer, logger)
        self._telemetry.known = {attrs.CATALOG: _name_of(catalog_plugin), attrs.ENGINE: "pyiceberg"}
        self._connecting = Lock()
        self._connected: Catalog | None = None
        self._handover: HandoverProvider | None = None

    @property
    def catalog(self) -> Catalog:
        """The PyIceberg catalog; the first use connects."""
        # Not a cached_property: its lock is shared by all managers, so one catalog that hangs would stop the others.
        with self._connecting:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def with_handover(self, handover: HandoverProvider) -> Self:
        """The manager of the same catalog that hands to another engine what PyIceberg cannot do.

        Args:
            handover: Returns that engine; called when it is needed. `IcebergSparkResource.table_manager` is a manager
                with Spark.
        """
        manager = copy(self)
        vars(manager).update(_connected=self.catalog, _handover=handover)
        return manager

    def _connect(self) -> Catalog:
        if isinstance(self._source, Catalog):
            return self._source
        with self._telemetry.operation("connect_catalog", is_logged=False):
            properties: dict[str, Any] = {}
            if self._storage_plugin is not None:
                properties = dict(self._storage_plugin.get_pyiceberg_fileio().properties)
            with translate_errors(getattr(self._source, "name", type(self._source).__name__)):
                return cast("Catalog", self._source.connect(properties))

    @property
    def telemetry(self) -> Telemetry:
        """Where spans and log events go."""
        return self._telemetry

    def _load(self, table: TableRef, load: Callable[[tuple[str, ...]], Table] | None = None) -> Table:
        """The table; a handle is used as it is, in the version that it holds. Never repairs anything.

        Args:
            table: The table.
            load: Loads it from the catalog; `load_table` if not given.
        """
        if isinstance(table, Table):
            return table
        identifier, catalog = to_identifier(table), self.catalog
        try:
            with translate_errors(catalog.name, table=identifier):
                return (load or catalog.load_table)(identifier.as_tuple)
        except NoSuchTableError as missing:
            if not view_exists(catalog, identifier):
                raise
            hint = "There is a view of that name; views can only be read with SQL, for example in Spark."
            raise NoSuchTableError(identifier, hint=hint) from missing.__cause__

    def with_metadata_repair(
        self,
        table: TableIdentifier,
        write: Callable[..., T],
        *args: Any,
        on_repair: OnRepair | None = None,
    ) -> T:
        """Call `write`; if the table's metadata file is missing or truncated and may be repaired, repair it and repeat.

        For writes alone: reading or planning must not change a table.

        Args:
            table: The table.
            write: Writes rows to the table, and raises before it reads any of them if the table cannot be loaded.
            *args: Arguments of `write`.
            on_repair: Called with what the repair did, before the write is repeated.

        Raises:
            StaleTableMetadataError: The metadata cannot be read, and may not or cannot be repaired.
        """
        try:
            return write(*args)
        except StaleTableMetadataError as stale:
            if self.config.stale_table_recovery_mode is not StaleTableRecoveryMode.REPAIR:
                raise
            repair = repair_table(self.catalog, table, stale)
        if repair is not None:
            annotate({attrs.METADATA_LOCATION_BEFORE: repair.location_before})
            if on_repair is not None:
                on_repair(repair)
        return write(*args)


def table_attributes(table: TableRef | TableConfig, *_: Any, **__: Any) -> dict[str, Any]:
    """Span attributes of an operation whose first argument is a table."""
    return describe_table(table if isinstance(table, str) else to_identifier(table))


def _name_of(source: CatalogPlugin | Catalog) -> str:
    """The catalog's name; the plugin's if the catalog has none before it connects."""
    if isinstance(source, Catalog):
        return str(source.name)
    config = getattr(source, "config", None)
    return str(getattr(config, "catalog_name", None) or getattr(source, "name", type(source).__name__))


class MetadataSession(CatalogSession):
    """What operations that change metadata share."""

    def _load_to_write(self, table: TableRef) -> Table:
        """The table, for a write of rows: metadata that is missing or truncated is repaired, if that is configured."""
        return self.with_metadata_repair(to_identifier(table), self._load, table)

    def _load_newest(self, table: TableRef) -> Table:
        """The table in its newest version; a handle is refreshed."""
        loaded = self._load(table)
        if loaded is table:
            refresh(loaded)
        return loaded

    def _change(self, table: Table, stage: Callable[[TableTransaction], T]) -> T:
        """Commit what `stage` plans, and return its result for the attempt that landed."""
        planned: list[T] = []

        def plan(transaction: TableTransaction) -> None:
            planned[:] = [stage(transaction)]

        with translate_errors(table.catalog.name, table=table_name(table)):
            commit(table, plan, budget=self.budget, through=self._handover)
        return planned[0]

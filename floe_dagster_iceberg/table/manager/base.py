"""What all operations of the table manager share: the catalog, the settings, loading tables and committing."""

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, cast

from opentelemetry.trace import Tracer
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.errors import StaleTableMetadataError
from floe_dagster_iceberg.models import IcebergTableManagerConfig, StaleTableRecoveryMode, TableConfig, TableIdentifier
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin, StoragePlugin
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit, refresh
from floe_dagster_iceberg.table.manager.repair import repair_table
from floe_dagster_iceberg.table.names import TableRef, table_name, to_identifier
from floe_dagster_iceberg.telemetry import Telemetry, attributes as attrs, describe_table

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
        self._telemetry = Telemetry(tracer, logger)
        self._telemetry.known = {attrs.CATALOG: _name_of(catalog_plugin), attrs.ENGINE: "pyiceberg"}
        self._connecting = Lock()
        self._connected: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        """The PyIceberg catalog; the first use connects."""
        # Not a cached_property: its lock is shared by all managers, so one catalog that hangs would stop the others.
        with self._connecting:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

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

    @property
    def _budget(self) -> CommitBudget:
        return CommitBudget.from_config(self.config)

    def _load(self, table: TableRef) -> Table:
        """The table; a handle is used as it is, in the version that it holds."""
        if isinstance(table, Table):
            return table
        identifier = to_identifier(table)
        catalog = self.catalog

        def load() -> Table:
            with translate_errors(catalog.name, table=identifier):
                return catalog.load_table(identifier.as_tuple)

        return self.with_metadata_repair(identifier, load)

    def with_metadata_repair(self, table: TableIdentifier, use: Callable[..., T], *args: Any) -> T:
        """Call `use`; if the table's metadata cannot be read and may be repaired, repair it and call again.

        Raises:
            StaleTableMetadataError: The metadata cannot be read, and may not or cannot be repaired.
        """
        try:
            return use(*args)
        except StaleTableMetadataError as stale:
            if self.config.stale_table_recovery_mode is not StaleTableRecoveryMode.REPAIR:
                raise
            repair_table(self.catalog, table, stale)
        return use(*args)


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
            commit(table, plan, budget=self._budget)
        return planned[0]

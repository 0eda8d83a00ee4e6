"""What all operations of the table manager share: the catalog, the settings, names into tables."""

from threading import Lock
from typing import Any, TypeAlias, cast

from opentelemetry.trace import Tracer
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import IcebergTableManagerConfig, TableConfig, TableIdentifier
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin, StoragePlugin
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table.commit import CommitBudget
from floe_dagster_iceberg.telemetry import Telemetry

TableRef: TypeAlias = Table | str | TableIdentifier
"""A table, by itself or by name."""


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
        self._connecting = Lock()
        self._connected: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        """The PyIceberg catalog; the first use connects."""
        # Not a cached_property: its lock is one for all managers, and one catalog that hangs would stop the others.
        with self._connecting:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def _connect(self) -> Catalog:
        if isinstance(self._source, Catalog):
            return self._source
        properties: dict[str, Any] = {}
        if self._storage_plugin is not None:
            properties = dict(self._storage_plugin.get_pyiceberg_fileio().properties)
        with translated(getattr(self._source, "name", type(self._source).__name__)):
            return cast("Catalog", self._source.connect(properties))

    @property
    def _budget(self) -> CommitBudget:
        return CommitBudget.from_config(self.config)

    def _load(self, table: TableRef) -> Table:
        """The table itself; a handle is used as it is, with the version its holder saw."""
        if isinstance(table, Table):
            return table
        identifier = to_identifier(table)
        catalog = self.catalog
        with translated(catalog.name, table=identifier):
            return catalog.load_table(identifier.as_tuple)


def to_identifier(table: TableRef | TableConfig) -> TableIdentifier:
    """The name of a table.

    Raises:
        ValidationError: The text is no table name.
    """
    match table:
        case TableIdentifier():
            return table
        case TableConfig():
            return table.identifier
        case Table():
            *namespace, name = table.name()
            return TableIdentifier.model_construct(namespace=".".join(namespace), name=name)
        case str():
            try:
                return TableIdentifier.from_string(table)
            except ValueError as error:
                raise ValidationError(_first_sentence(error), table=table) from None
        case _:
            raise ValidationError(
                f"A table is given as 'namespace.name', a TableIdentifier or a Table, not as {type(table).__name__}."
            )


def table_attributes(table: TableRef | TableConfig, *_: Any, **__: Any) -> dict[str, Any]:
    """Span attributes of an operation whose first argument is a table."""
    name = table if isinstance(table, str) else str(to_identifier(table))
    return {"table.identifier": name}


def _first_sentence(error: ValueError) -> str:
    return str(error)

"""What the built-in plugins share: configuration, properties for both engines, namespaces and tables."""

import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from floe_dagster_iceberg.errors import EngineCapabilityError, FloeStorageError, ValidationError
from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.models.identifiers import join_parts, split_parts
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.plugins.mapping import Engine, Setting, engine_properties, passed_through
from floe_dagster_iceberg.plugins.protocols import HealthStatus

T = TypeVar("T")
STARTUP_SECONDS = 30.0
HEALTH_CHECK_SECONDS = 5.0
GC_ENABLED = "gc.enabled"
"""Property of a table; false if its files may belong to another table, too."""


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Run `work` with a timeout.

    A thread cannot be killed, so the work continues in the background; it does not keep the process
    alive.

    Raises:
        TimeoutError: `work` is not done in time.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            results.append(work())
        # The caller's thread raises it again.
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    thread = threading.Thread(target=collect, name="floe-bounded-work", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError(f"no response within {seconds:g} seconds")
    return results[0]


def check_health(name: str, work: Callable[[], object]) -> HealthStatus:
    """Run `work` for at most 5 seconds, and report whether it succeeds."""
    started = perf_counter()
    try:
        with translate_errors(name):
            run_within(HEALTH_CHECK_SECONDS, work)
    except FloeStorageError as error:
        return HealthStatus(state="unhealthy", message=str(error), details={"error": type(error).__name__})
    return HealthStatus(state="healthy", details={"seconds": f"{perf_counter() - started:.3f}"})


class PluginConfig(FrozenModel):
    """Configuration of a built-in plugin."""

    # Invalid values may be secrets; Pydantic must not print them.
    model_config = ConfigDict(hide_input_in_errors=True)

    properties: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Further Iceberg properties, in PyIceberg's or Java's spelling."
    )


class CatalogConfig(PluginConfig):
    """Fields of every catalog."""

    catalog_name: str = Field(
        default="floe", min_length=1, description="Name of the catalog, the same in both engines."
    )
    warehouse: str | None = Field(default=None, description="Location or name of the warehouse.")


ConfigT = TypeVar("ConfigT", bound=PluginConfig)
CatalogConfigT = TypeVar("CatalogConfigT", bound=CatalogConfig)


class BuiltInPlugin(Generic[ConfigT]):
    """A configuration and its mapping to both engines."""

    name: ClassVar[str]
    description: ClassVar[str]
    config_type: ClassVar[type[PluginConfig]]
    settings: ClassVar[tuple[Setting, ...]]
    version: ClassVar[str] = "0.1.0"
    floe_api_version: ClassVar[str] = "1.0"
    dependencies: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config!r})"

    def startup(self) -> None:
        """Do nothing: built-in plugins connect when they are first used."""

    def shutdown(self) -> None:
        """Do nothing: there is nothing to close."""

    def get_config_schema(self) -> type[BaseModel]:
        return self.config_type

    def pyiceberg_properties(self) -> dict[str, str]:
        """Properties for PyIceberg, with references and secrets resolved."""
        return self._properties("python")

    def spark_properties(self) -> dict[str, str]:
        """The same for Java, without Spark's prefix."""
        return self._properties("java")

    def _properties(self, engine: Engine) -> dict[str, str]:
        own = engine_properties(self.config, self.settings, engine)
        return {**passed_through(self.config.properties, engine), **own}

    def spark_conf(self, catalog_name: str) -> dict[str, str]:
        """Conf below `spark.sql.catalog.<catalog_name>`, with references and secrets resolved."""
        return {f"spark.sql.catalog.{catalog_name}.{key}": value for key, value in self.spark_properties().items()}

    def spark_packages(self) -> list[str]:
        """Jars that Spark needs besides the Iceberg runtime."""
        return []


class BuiltInCatalog(BuiltInPlugin[CatalogConfigT]):
    """A plugin for a PyIceberg catalog. It only registers and lists tables; the table manager does the rest."""

    def __init__(self, config: CatalogConfigT) -> None:
        super().__init__(config)
        self._catalog: Any = None
        self._lock = threading.Lock()

    def connect(self, config: Mapping[str, str]) -> Any:
        """Open the PyIceberg catalog.

        Args:
            config: Storage properties; the catalog's own take precedence.

        Raises:
            CatalogConnectionError: The catalog is unreachable.
            CatalogAuthenticationError: The catalog refuses the credentials.
            ValidationError: The URI or a property has a form that PyIceberg cannot use.
        """
        try:
            with translate_errors(self.config.catalog_name):
                self._catalog = self.open_catalog({**config, **self.pyiceberg_properties()})
        except FloeStorageError:
            raise
        except ValueError:
            # Not chained: the message may quote the URI, password included.
            raise ValidationError(
                f"Catalog '{self.config.catalog_name}' cannot be opened with its settings. Check its URI, in which "
                "special characters of user and password are percent-encoded, and the values of its properties."
            ) from None
        return self._catalog

    def open_catalog(self, properties: dict[str, str]) -> Any:
        """Build the PyIceberg catalog from resolved properties; by default PyIceberg's own of the same name."""
        # What PyIceberg needs for its catalogs, such as boto3 or thrift, are extras of this package.
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        return load_catalog(self.config.catalog_name, **{"type": self.name, **properties})

    @property
    def catalog(self) -> Any:
        """The catalog; connects on first use."""
        with self._lock:
            return self._catalog if self._catalog is not None else self.connect({})

    def shutdown(self) -> None:
        with self._lock:
            if self._catalog is not None and hasattr(self._catalog, "close"):
                self._catalog.close()
            self._catalog = None

    def spark_conf(self, catalog_name: str) -> dict[str, str]:
        # A table cached in Spark would hide changes by PyIceberg.
        key = f"spark.sql.catalog.{catalog_name}"
        return {
            key: "org.apache.iceberg.spark.SparkCatalog",
            f"{key}.cache-enabled": "false",
            **super().spark_conf(catalog_name),
        }

    def health_check(self) -> HealthStatus:
        """List the namespaces, for at most 5 seconds."""
        return check_health(self.config.catalog_name, self.list_namespaces)

    def create_namespace(self, namespace: str, properties: dict[str, str] | None = None) -> None:
        """Create a namespace; a dotted one is nested.

        Raises:
            ValidationError: It already exists.
        """
        with translate_errors(self.config.catalog_name, namespace=namespace):
            self.catalog.create_namespace(levels(namespace), properties or {})

    def list_namespaces(self, parent: str | None = None) -> list[str]:
        """Dotted names of the namespaces directly below `parent`, or of the top-level ones."""
        with translate_errors(self.config.catalog_name, namespace=parent):
            found = self.catalog.list_namespaces(levels(parent) if parent else ())
        return sorted(map(join_parts, found))

    def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace.

        Raises:
            NoSuchNamespaceError: It does not exist.
            ValidationError: It still holds tables.
        """
        with translate_errors(self.config.catalog_name, namespace=namespace):
            self.catalog.drop_namespace(levels(namespace))

    def create_table(
        self, identifier: str, schema: Any, location: str | None = None, properties: dict[str, str] | None = None
    ) -> None:
        """Create an empty table with an Arrow or a PyIceberg schema.

        Raises:
            TableAlreadyExistsError: It already exists.
            NoSuchNamespaceError: Its namespace does not exist.
        """
        with translate_errors(self.config.catalog_name, table=identifier):
            self.catalog.create_table(levels(identifier), schema, location=location, properties=properties or {})

    def list_tables(self, namespace: str) -> list[str]:
        """Dotted names of the tables of a namespace."""
        with translate_errors(self.config.catalog_name, namespace=namespace):
            return sorted(map(join_parts, self.catalog.list_tables(levels(namespace))))

    def drop_table(self, identifier: str, purge: bool = False) -> None:  # noqa: FBT001, FBT002 - floe's signature
        """Drop a table; `purge` also deletes its files.

        Raises:
            ValidationError: Its property gc.enabled is false, and its files were to be deleted.
        """
        drop_table(self.catalog, levels(identifier), purge=purge)

    def vend_credentials(self, table_path: str, operations: list[str]) -> dict[str, Any]:
        """Raise an error: this catalog vends no storage credentials.

        Raises:
            EngineCapabilityError: Always.
        """
        raise EngineCapabilityError(
            f"Catalog '{self.config.catalog_name}' of type '{self.name}' vends no credentials "
            f"(asked for {', '.join(operations)}). Configure them on the storage instead.",
            engine=self.name,
            table=table_path,
        )


def deletes_files(properties: Mapping[str, str]) -> bool:
    """Whether the files of a table with these properties may be deleted; read as Iceberg's Java library reads it."""
    return properties.get(GC_ENABLED, "true").lower() == "true"


def drop_table(catalog: Any, identifier: tuple[str, ...], *, purge: bool) -> None:
    """Drop a table of a PyIceberg catalog; `purge` also deletes its files, unless it shares them.

    Servers that purge tables themselves do not all check that.

    Raises:
        NoSuchTableError: There is no such table.
        ValidationError: Its property gc.enabled is false, and its files were to be deleted. Nothing was changed.
        ScanError: Its files were to be deleted, and those that list them are missing. Nothing was changed.
    """
    name = join_parts(identifier)
    with translate_errors(catalog.name, table=name):
        if not purge:
            catalog.drop_table(identifier)
            return
        table = catalog.load_table(identifier)
        properties = table.properties
        if not deletes_files(properties):
            raise ValidationError(
                f"Table '{name}' cannot be purged: its property {GC_ENABLED} is '{properties[GC_ENABLED]}', so its "
                "files may belong to another table too. Nothing was changed. Drop it without purge, or set the "
                "property to true if no other table uses them.",
                table=name,
            )
        _open_manifests(table)
        catalog.purge_table(identifier)


def _open_manifests(table: Any) -> None:
    """Open each file that lists other files: PyIceberg drops the table before it finds out that one is missing."""
    from pyiceberg.catalog import MetastoreCatalog  # noqa: PLC0415 - a code location must not load PyIceberg

    if not isinstance(table.catalog, MetastoreCatalog):
        # The server purges, with its own checks.
        return
    manifests = (each.manifest_path for snapshot in table.metadata.snapshots for each in snapshot.manifests(table.io))
    for manifest in dict.fromkeys(manifests):
        table.io.new_input(manifest).open().close()


def required(value: str | None, *, plugin: str, field: str) -> str:
    """Return a field that this engine or operation needs.

    Raises:
        ValidationError: It is not set.
    """
    if value is None:
        raise ValidationError(f"Plugin '{plugin}' needs '{field}'. Set it in the plugin's configuration.")
    return value


def levels(dotted: str) -> tuple[str, ...]:
    """Split a dotted name; parts may be in backticks.

    Raises:
        ValidationError: It is no name.
    """
    try:
        return split_parts(dotted)
    except ValueError as error:
        raise ValidationError(str(error)) from None

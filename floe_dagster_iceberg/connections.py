"""One connection per process and configuration.

Dagster builds resources for every run and step; catalogs, their sessions and database pools are
shared between them. A forked process opens its own, because sockets must not be shared.
"""

import hashlib
import json
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from floe_dagster_iceberg.errors import EngineCapabilityError, FloeStorageError, WriteError
from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.plugins.base import HEALTH_CHECK_SECONDS, STARTUP_SECONDS, run_within
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin, HealthStatus, SparkConfigured, StoragePlugin
from floe_dagster_iceberg.plugins.registry import BUILT_INS, Kind, built_in, open_catalog_plugin, open_storage_plugin
from floe_dagster_iceberg.plugins.storage import BuiltInStorage, embedded_home
from floe_dagster_iceberg.secrets import REDACTION_REGEX, resolve_text

# More than the catalogs of any process, and a bound for processes that keep opening new ones.
_MOST_CONNECTIONS = 32
# With these catalogs the client chooses table locations; with all others the server does.
_CLIENT_CHOOSES_LOCATION = frozenset({"sql", "glue", "hive"})
_STORAGE_OF_SCHEME = {"s3": "s3", "s3a": "s3", "gs": "gcs"}
_connections: "OrderedDict[tuple[int, str], Connection]" = OrderedDict()
_opening = threading.Lock()


@dataclass(frozen=True)
class ConnectionSettings:
    """Settings of a connection; equal settings share one."""

    catalog_type: str
    catalog_config: Mapping[str, Any] = field(repr=False)
    storage_type: str = "local"
    storage_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    manager: IcebergTableManagerConfig = field(default_factory=IcebergTableManagerConfig)

    @property
    def catalog_name(self) -> str:
        """Name of the catalog in messages and in Spark."""
        return str(self.catalog_config["catalog_name"])

    @property
    def has_storage(self) -> bool:
        """Whether the storage is configured here; it may be known to the server alone."""
        return self.catalog_type == "sql" or self.storage_type != "local" or bool(self.storage_config)

    def with_defaults(self) -> "ConnectionSettings":
        """Fill in the embedded SQLite catalog, and make catalog and storage agree on the warehouse."""
        if self.catalog_type not in _CLIENT_CHOOSES_LOCATION:
            return self
        catalog, storage, storage_type = dict(self.catalog_config), dict(self.storage_config), self.storage_type
        if "warehouse" in catalog:
            storage.setdefault("warehouse", catalog["warehouse"])
            if storage_type == "local":
                storage_type = _STORAGE_OF_SCHEME.get(str(catalog["warehouse"]).partition("://")[0], storage_type)
        if self.catalog_type == "sql":
            catalog.setdefault("uri", f"sqlite:///{embedded_home() / 'catalog.db'}")
        filled = replace(self, catalog_config=catalog, storage_type=storage_type, storage_config=storage)
        if filled.has_storage:
            catalog["warehouse"] = open_storage_plugin(storage_type, storage).get_warehouse_uri("")
        return filled

    def fingerprint(self) -> str:
        """Return the key of these settings; a hash, so that no secret is kept.

        Raises:
            SecretNotFoundError: The secret of a reference does not exist.
        """
        catalog, storage = _resolved(self.catalog_config), _resolved(self.storage_config)
        settings = [self.catalog_type, catalog, self.storage_type, storage, self.manager.model_dump_json()]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


class Connection:
    """A catalog and its storage. Nothing is connected before the first use."""

    def __init__(self, settings: ConnectionSettings) -> None:
        # It imports PyIceberg and Arrow: seconds that loading a code location must not cost.
        from floe_dagster_iceberg.table.manager import IcebergTableManager  # noqa: PLC0415

        self._settings = settings
        self.catalog_plugin: CatalogPlugin = open_catalog_plugin(settings.catalog_type, settings.catalog_config)
        self.storage_plugin: StoragePlugin | None = (
            open_storage_plugin(settings.storage_type, settings.storage_config) if settings.has_storage else None
        )
        for plugin in filter(None, (self.catalog_plugin, self.storage_plugin)):
            with translate_errors(settings.catalog_name):
                run_within(STARTUP_SECONDS, plugin.startup)
        self.manager = IcebergTableManager(self.catalog_plugin, self.storage_plugin, settings.manager)
        self._storage_checked = False
        self._checking = threading.Lock()

    def check_storage(self) -> None:
        """Write a small object below the warehouse and delete it, on the first call."""
        with self._checking:
            if self.storage_plugin is not None and not self._storage_checked:
                _probe(self.storage_plugin, catalog=self._settings.catalog_name)
            self._storage_checked = True

    def health_check(self, *, writes: bool = False) -> HealthStatus:
        """List the catalog's namespaces, for at most 5 seconds; errors of this package become a status."""
        started = perf_counter()

        def ask() -> None:
            self.manager.catalog.list_namespaces()
            if writes and self.storage_plugin is not None:
                _probe(self.storage_plugin, catalog=self._settings.catalog_name)

        try:
            with translate_errors(self._settings.catalog_name):
                run_within(HEALTH_CHECK_SECONDS, ask)
        except FloeStorageError as error:
            return HealthStatus(state="unhealthy", message=str(error), details={"error": type(error).__name__})
        return HealthStatus(state="healthy", details={"seconds": f"{perf_counter() - started:.3f}"})

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark conf of the same tables. It holds resolved secrets, which Spark redacts."""
        name = self._settings.catalog_name
        catalog, storage = self._spark_plugins()
        return {
            "spark.redaction.regex": REDACTION_REGEX,
            **(storage.spark_conf(name) if storage else {}),
            **catalog.spark_conf(name),
        }

    def spark_packages(self) -> list[str]:
        """Return the jars besides the Iceberg runtime: Maven coordinates, or names of Iceberg's bundles."""
        catalog, storage = self._spark_plugins()
        return list(dict.fromkeys([*catalog.spark_packages(), *(storage.spark_packages() if storage else [])]))

    def _spark_plugins(self) -> tuple[SparkConfigured, SparkConfigured | None]:
        wanted = self._settings
        catalog = _spark_plugin("catalog", wanted.catalog_type, self.catalog_plugin, wanted.catalog_config)
        if self.storage_plugin is None:
            return catalog, None
        return catalog, _spark_plugin("storage", wanted.storage_type, self.storage_plugin, wanted.storage_config)


def open_connection(settings: ConnectionSettings) -> Connection:
    """Return the connection of this process with these settings; open one if there is none."""
    settings = settings.with_defaults()
    key = (os.getpid(), settings.fingerprint())
    with _opening:
        if key not in _connections:
            _connections[key] = Connection(settings)
            if len(_connections) > _MOST_CONNECTIONS:
                _connections.popitem(last=False)
        _connections.move_to_end(key)
        return _connections[key]


def forget_connections() -> None:
    """Let the next use open a connection; those in use stay open."""
    with _opening:
        _connections.clear()


def _probe(storage: StoragePlugin, *, catalog: str) -> None:
    root = storage.warehouse_uri() if isinstance(storage, BuiltInStorage) else storage.get_warehouse_uri("")
    if root is None:
        # Credentials without a location: the catalog has one per table.
        return
    location = f"{root.rstrip('/')}/.floe-probe-{uuid.uuid4().hex}"
    try:
        with translate_errors(catalog):
            io = storage.get_pyiceberg_fileio()
            with io.new_output(location).create(overwrite=True) as stream:
                stream.write(b"floe")
            io.delete(location)
    except FloeStorageError as error:
        if error.retryable:
            raise
        raise WriteError(
            f"The warehouse '{root}' of catalog '{catalog}' cannot be written to. "
            f"Check that it exists and that the storage credentials may write there. {error}"
        ) from error.__cause__


def _spark_plugin(kind: Kind, name: str, plugin: object, config: Mapping[str, Any]) -> SparkConfigured:
    if isinstance(plugin, SparkConfigured):
        return plugin
    # An installed plugin without Spark support that has the name and settings of a built-in one.
    if name in BUILT_INS[kind]:
        return built_in(kind, name, config)
    raise EngineCapabilityError(
        f"The {kind} plugin '{name}' has no Spark configuration. Add the methods spark_conf and spark_packages to it.",
        engine="spark",
    )


def _resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: resolve_text(value) if isinstance(value, str) else value for key, value in sorted(config.items())}

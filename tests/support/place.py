"""Where a test's lake is: a catalog with nothing in it, and the folder that its files end up in.

`pytest --lake=NAME` chooses: a SQLite file and a folder, or real servers. Whatever is between a table and
its files, they are files of this machine in the end, and tests look at them there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from support.servers.running import BUCKET, Servers
from support.servers.s3 import forget_files

from floe_dagster_iceberg.plugins.registry import open_catalog_plugin, open_storage_plugin
from floe_dagster_iceberg.resources import IcebergResource

LAKES = ("sqlite", "postgres", "rest", "gateway")
SCHEMA_OF_SQL_CATALOG = ("iceberg_tables", "iceberg_namespace_properties")


@dataclass(frozen=True)
class Place:
    """How to reach a lake, in the words of this package's configuration. It can be pickled.

    Attributes:
        warehouse: The folder of this machine where the files end up.
        warehouse_uri: The same as tables call it.
    """

    catalog_type: str
    catalog_config: Mapping[str, str]
    warehouse: Path
    warehouse_uri: str
    storage_type: str = "local"
    storage_config: Mapping[str, str] = field(default_factory=dict)

    def files(self, pattern: str = "**/*") -> set[Path]:
        """Files of this machine below the warehouse."""
        if self.storage_type == "s3":
            # They may be about to change.
            forget_files()
        return {path for path in self.warehouse.glob(pattern) if path.is_file()}

    def connect(self, **properties: str) -> Catalog:
        """A client that shares nothing with any other."""
        storage = open_storage_plugin(self.storage_type, self.storage_config)
        storage.startup()
        catalog = open_catalog_plugin(self.catalog_type, {"catalog_name": "floe", **self.catalog_config})
        connected: Catalog = catalog.connect({**storage.get_pyiceberg_fileio().properties, **properties})
        return connected

    def iceberg(self, **settings: Any) -> IcebergResource:
        """The resource that users configure for it."""
        config = dict(self.catalog_config)
        return IcebergResource(
            catalog_type=self.catalog_type,
            catalog_uri=config.pop("uri"),
            warehouse=config.pop("warehouse", None),
            catalog_properties=config,
            storage_type=self.storage_type,
            storage_properties=dict(self.storage_config),
            **settings,
        )


class LocalPlace(Place):
    """A SQLite file and a folder, opened by PyIceberg alone."""

    @classmethod
    def below(cls, folder: Path) -> "LocalPlace":
        uri = f"file://{folder}/warehouse"
        return cls("sql", {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": uri}, folder / "warehouse", uri)

    def connect(self, **properties: str) -> Catalog:
        uri = f"{self.catalog_config['uri']}?timeout=60"
        return SqlCatalog("floe", uri=uri, warehouse=self.warehouse_uri, **properties)


def empty_place(lake: str, folder: Path, servers: Servers) -> Place:
    """A lake with nothing in it; servers are shared by the tests of a process, what they hold is not."""
    match lake:
        case "sqlite":
            return LocalPlace.below(folder)
        case "postgres":
            return _on_postgres(servers)
        case "rest":
            return _on_rest(servers)
        case "gateway":
            return _behind_gateway(servers)
        case _:
            raise ValueError(f"There is no lake '{lake}', only {', '.join(LAKES)}")


def _on_postgres(servers: Servers) -> Place:
    _clear(servers)
    uri = f"s3://{BUCKET}/warehouse"
    catalog = {"uri": servers.database.sqlalchemy_uri, "warehouse": uri}
    return Place("sql", catalog, servers.s3.path(uri), uri, "s3", servers.storage_config)


def _on_rest(servers: Servers) -> Place:
    server = servers.rest_catalog
    _clear(servers)
    return Place(
        "rest", {"uri": server.uri}, servers.s3.path(server.warehouse), server.warehouse, "s3", servers.storage_config
    )


def _behind_gateway(servers: Servers) -> Place:
    gateway, server = servers.gateway, servers.rest_catalog
    # As an administrator may have allowed it; that it is refused otherwise is a test of its own.
    gateway.purge_allowed = True
    _clear(servers)
    catalog = {
        "uri": gateway.uri,
        "warehouse": gateway.warehouse,
        "client_id": gateway.client_id,
        "client_secret": gateway.client_secret,
    }
    # The keys are vended by the gateway, table by table.
    storage = {key: value for key, value in servers.storage_config.items() if not key.endswith(("key_id", "_key"))}
    return Place("polaris", catalog, servers.s3.path(server.warehouse), server.warehouse, "s3", storage)


def _clear(servers: Servers) -> None:
    servers.s3.empty(BUCKET)
    # DELETE never waits; TRUNCATE would wait for a connection that was left open.
    known = {name for (name,) in servers.database.execute("SELECT tablename FROM pg_tables")}
    for table in SCHEMA_OF_SQL_CATALOG:
        if table in known:
            servers.database.execute(f"DELETE FROM {table}")  # noqa: S608 - a constant

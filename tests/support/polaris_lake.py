"""A lake as a Polaris deployment is: a REST catalog, tokens that are checked, keys that are vended; all may fail."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table
from support.servers.gateway import Gateway
from support.servers.rest_catalog import RestCatalogServer
from support.servers.running import BUCKET, Servers
from support.servers.s3 import S3Server
from support.servers.s3_proxy import S3Proxy

from floe_dagster_iceberg.resources import IcebergResource, TableManagerSettings

QUICK_RETRY = {"max_attempts": 3, "initial_wait_seconds": 0.1, "max_wait_seconds": 1, "jitter_seconds": 0}


@dataclass
class PolarisLake:
    """The servers, and resources that use them."""

    s3: S3Server
    storage: S3Proxy
    rest: RestCatalogServer
    gateway: Gateway

    @classmethod
    @contextmanager
    def on(cls, servers: Servers) -> "Iterator[PolarisLake]":
        """Before the servers of this process, for the length of the block."""
        s3, rest = servers.s3, servers.rest_catalog
        with S3Proxy.start(s3) as storage, Gateway.start(rest.uri, vend=storage.vend) as gateway:
            yield cls(s3, storage, rest, gateway)

    @contextmanager
    def fresh(self) -> "Iterator[PolarisLake]":
        """Nothing in the catalog and all servers well, before and after."""
        self.rest.forget_everything()
        self.s3.empty(BUCKET)
        self.gateway.tokens.spare_those_so_far()
        yield self
        self.storage.recover()
        self.storage.lifetime_seconds = 3600.0
        gateway = self.gateway
        gateway.recover()
        gateway.vend, gateway.vends_in_config, gateway.purge_allowed = self.storage.vend, True, False
        gateway.renews, gateway.overrides, gateway.table_config = True, {}, {}
        gateway.tokens.lifetime_seconds = 3600.0

    def resource(self, *, catalog: dict[str, str] | None = None, **given: Any) -> IcebergResource:
        """The lake as its principal may use it; `catalog` are further settings of the plugin."""
        known = {"client_id": self.gateway.client_id, "client_secret": self.gateway.client_secret}
        settings: dict[str, Any] = {
            "catalog_type": "polaris",
            "catalog_uri": self.gateway.uri,
            "warehouse": self.gateway.warehouse,
            "catalog_properties": {"read_timeout_seconds": "20", "retry": json.dumps(QUICK_RETRY), **(catalog or {})},
            "storage_type": "s3",
            "storage_properties": self.storage_settings(),
            "manager": TableManagerSettings(retry_base_delay_seconds=0.1),
            **({} if "token" in given else known),
            **given,
        }
        return IcebergResource(**settings)

    def storage_settings(self, **given: str) -> dict[str, str]:
        """Settings of the storage without keys: those are vended."""
        known = {"endpoint": self.storage.endpoint, "region": self.s3.region, "checksums": "when_required"}
        return {**known, **given}

    def own_keys(self) -> dict[str, str]:
        """Settings of the storage for clients that have keys and use the server directly."""
        keys = {"access_key_id": self.s3.access_key_id, "secret_access_key": self.s3.secret_access_key}
        return self.storage_settings(endpoint=self.s3.endpoint, **keys)

    def keys(self, suffix: str = "") -> set[str]:
        """Objects in the bucket."""
        return {key for key in self.s3.keys(BUCKET) if key.endswith(suffix)}

    def rows(self, table: Table) -> list[tuple[Any, ...]]:
        """All rows of a table, sorted."""
        return sorted((tuple(row.values()) for row in table.scan().to_arrow().to_pylist()), key=repr)

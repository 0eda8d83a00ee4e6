"""A lake at the other end of a network: every request to its store and to its REST catalog waits, and is logged."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from support.place import Place, empty_place
from support.servers.proxy import Proxy
from support.servers.request_log import RequestLog
from support.servers.running import BUCKET, Servers
from support.servers.s3_proxy import S3Proxy

CATALOGS = ("sqlite", "postgres", "rest")


@dataclass(frozen=True)
class DistantLake:
    """The lake as clients reach it, through proxies.

    Attributes:
        place: Catalog and storage; nothing is in them at first.
        log: The requests to both, but for those of a SQL catalog, which are no HTTP requests.
        storage: Before the store; faults may be injected.
        catalog: Before the REST catalog, if that is the catalog.
    """

    place: Place
    log: RequestLog
    storage: S3Proxy
    catalog: Proxy | None

    @classmethod
    @contextmanager
    def open(
        cls,
        servers: Servers,
        catalog: str,
        folder: Path,
        *,
        storage_latency_seconds: float = 0.0,
        catalog_latency_seconds: float = 0.0,
    ) -> "Iterator[DistantLake]":
        """The lake for the length of the block.

        Args:
            servers: What stands behind it.
            catalog: One of `CATALOGS`.
            folder: Where the file of a SQLite catalog is.
            storage_latency_seconds: How long a request to the store waits.
            catalog_latency_seconds: How long a request to the REST catalog waits.
        """
        log = RequestLog()
        with S3Proxy.start(servers.s3, latency_seconds=storage_latency_seconds, log=log) as storage:
            place = empty_place("postgres" if catalog == "sqlite" else catalog, folder, servers)
            place = replace(place, storage_config={**place.storage_config, "endpoint": storage.endpoint})
            if catalog != "rest":
                uri = f"sqlite:///{folder}/catalog.db" if catalog == "sqlite" else place.catalog_config["uri"]
                config = {"uri": uri, "warehouse": f"s3://{BUCKET}/warehouse"}
                yield cls(replace(place, catalog_config=config), log, storage, None)
                return
            upstream = Proxy(servers.rest_catalog.uri, latency_seconds=catalog_latency_seconds, log=log)
            with upstream.serving() as proxy:
                yield cls(replace(place, catalog_config={"uri": proxy.uri}), log, storage, proxy)

    def set_latency(self, *, storage_seconds: float, catalog_seconds: float) -> None:
        """Let requests wait longer, or less."""
        self.storage.latency_seconds = storage_seconds
        if self.catalog is not None:
            self.catalog.latency_seconds = catalog_seconds

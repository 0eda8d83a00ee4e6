"""The servers of a process: each starts when it is first asked for, and all stop together."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from support.servers.gateway import Gateway
from support.servers.keycloak import Keycloak
from support.servers.postgres import Database, Postgres
from support.servers.rest_catalog import RestCatalogServer
from support.servers.s3 import S3Server

BUCKET = "lake"
_PORT_TAKEN = "address already in use"
T = TypeVar("T")


class ServerMissing(Exception):  # noqa: N818 - that is what it is
    """A server could not be started."""


class Servers:
    """Everything a lake can be made of.

    Attributes:
        started: Seconds that each server took to start, by its name.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.started: dict[str, float] = {}
        self._missing: dict[str, ServerMissing] = {}

    @classmethod
    @contextmanager
    def below(cls, folder: Path) -> Iterator["Servers"]:
        """Servers that keep their files in a folder, until the block ends."""
        with ExitStack() as stack:
            yield cls(folder, stack)

    @cached_property
    def postgres(self) -> Postgres:
        return self._start("PostgreSQL", lambda: Postgres.start(self._folder))

    @cached_property
    def database(self) -> Database:
        """Of the catalogs."""
        return self.postgres.create_database("iceberg")

    @cached_property
    def s3(self) -> S3Server:
        server = self._start("S3", lambda: S3Server.start(self._folder))
        server.create_bucket(BUCKET)
        return server

    @cached_property
    def rest_catalog(self) -> RestCatalogServer:
        database, s3 = self.database, self.s3
        return self._start("REST catalog", lambda: RestCatalogServer.start(self._folder, database, s3, BUCKET))

    @cached_property
    def gateway(self) -> Gateway:
        upstream, s3 = self.rest_catalog.uri, self.s3
        return self._start("Gateway", lambda: Gateway.start(upstream, vend=lambda _: s3.vend()))

    @cached_property
    def keycloak(self) -> Keycloak:
        return self._start("Keycloak", lambda: Keycloak.start(self._folder))

    @property
    def storage_config(self) -> dict[str, str]:
        """Configuration of the storage plugin `s3`."""
        return {
            "endpoint": self.s3.endpoint,
            "region": self.s3.region,
            "access_key_id": self.s3.access_key_id,
            "secret_access_key": self.s3.secret_access_key,
            "checksums": "when_required",
        }

    def _start(self, name: str, start: Callable[[], AbstractContextManager[T]]) -> T:
        if name in self._missing:
            # Waiting once for what does not come is enough.
            raise self._missing[name]
        begun = time.monotonic()
        try:
            try:
                server = self._stack.enter_context(start())
            except RuntimeError as error:
                # Between two processes, a port may be taken twice.
                if _PORT_TAKEN not in str(error):
                    raise
                server = self._stack.enter_context(start())
        except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            self._missing[name] = ServerMissing(f"{name} did not start: {error}")
            raise self._missing[name] from error
        self.started[name] = time.monotonic() - begun
        return server

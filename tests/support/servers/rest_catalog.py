"""Iceberg's own REST catalog server, on a PostgreSQL database and an S3 bucket."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes import free_port, serves
from support.servers.downloads import java, rest_catalog_jars
from support.servers.leash import on_leash
from support.servers.postgres import Database
from support.servers.s3 import S3Server


@dataclass(frozen=True)
class RestCatalogServer:
    """A running server. It authenticates no client; that is the gateway's part."""

    uri: str
    warehouse: str
    database: Database

    @classmethod
    @contextmanager
    def start(cls, folder: Path, database: Database, s3: S3Server, bucket: str) -> Iterator["RestCatalogServer"]:
        """A server for the length of the block; its log is in the folder."""
        port = free_port()
        server = cls(f"http://127.0.0.1:{port}", f"s3://{bucket}/warehouse", database)
        command = [
            *(java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{rest_catalog_jars()}{os.sep}*", "org.apache.iceberg.rest.RESTCatalogServer"),
        ]
        environment = _settings(port, server.warehouse, database, s3)
        log, config = folder / "rest-catalog.log", f"{server.uri}/v1/config"
        with on_leash(command, log, is_up=lambda: serves(config), seconds=60, environment=environment):
            yield server

    def forget_everything(self) -> None:
        """Drop all namespaces and tables at once; the files stay."""
        self.database.execute("TRUNCATE iceberg_tables, iceberg_namespace_properties")


def _settings(port: int, warehouse: str, database: Database, s3: S3Server) -> dict[str, str]:
    return {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_CATALOG_NAME": "shared",
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_URI": database.jdbc_uri,
        "CATALOG_JDBC_USER": database.user,
        "CATALOG_JDBC_PASSWORD": database.password,
        # A table in a namespace that is missing is refused, as other servers do.
        "CATALOG_JDBC_STRICT__MODE": "true",
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": s3.endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": s3.access_key_id,
        "CATALOG_S3_SECRET__ACCESS__KEY": s3.secret_access_key,
        "CATALOG_CLIENT_REGION": s3.region,
        # rclone does not take the checksums that newer AWS clients send along unasked.
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }

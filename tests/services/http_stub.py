"""A real HTTP server that speaks enough of Iceberg's REST protocol, and fails as it is told.

Tables are kept by a real PyIceberg SQL catalog behind it, so commits, conflicts and
requirements behave as they do elsewhere. `fail` makes the next matching requests end as
scripted instead.
"""

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import CommitTableRequest

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Fault:
    """How one request ends: with a status, or in silence, or with a reset connection."""

    status: int = 0
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    reset: bool = False
    after_work: bool = False


HANG = Fault(hang=True)
RESET = Fault(reset=True)


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class RestStub:
    """The server's memory: its catalog, what was asked, what is to fail."""

    def __init__(self, folder: Path) -> None:
        self.catalog = SqlCatalog("stub", uri=f"sqlite:///{folder}/stub.db", warehouse=f"file://{folder}/stub")
        self.seen: list[Seen] = []
        self.overrides: dict[str, str] = {}
        self.table_config: dict[str, str] = {}
        self.client: tuple[str, str] | None = None
        self.valid_tokens: set[str] = set()
        self.token_lifetime_seconds = 3600
        self.closing = threading.Event()
        self.url = ""
        self._faults: list[tuple[str, re.Pattern[str], Fault]] = []
        self._lock = threading.Lock()

    def fail(self, method: str, path: str, *faults: Fault) -> None:
        """The next requests of that method whose path matches end like this, one fault each."""
        self._faults += [(method, re.compile(path), fault) for fault in faults]

    def count(self, method: str, path: str) -> int:
        return len([seen for seen in self.seen if seen.method == method and re.search(path, seen.path)])

    def next_fault(self, seen: Seen) -> Fault | None:
        with self._lock:
            self.seen.append(seen)
            for index, (method, pattern, fault) in enumerate(self._faults):
                if method == seen.method and pattern.search(seen.path):
                    del self._faults[index]
                    return fault
        return None

    def serve(self, seen: Seen) -> tuple[int, dict[str, Any]]:  # noqa: C901, PLR0911 - one line per endpoint
        """Do what was asked."""
        path = unquote(urlsplit(seen.path).path).removeprefix("/v1/")
        if path == "oauth/tokens":
            return self._issue_token(seen)
        if self.client is not None and not self._authorized(seen):
            return 401, _error("NotAuthorizedException", "token refused")
        match seen.method, path.split("/"):
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": self.overrides}
            case "GET", ["namespaces"]:
                return 200, {"namespaces": [list(name) for name in self.catalog.list_namespaces()]}
            case "POST", ["namespaces"]:
                return self._create_namespace(json.loads(seen.body))
            case "HEAD" | "GET", ["namespaces", _]:
                return 200, {"namespace": [], "properties": {}}
            case "GET", ["namespaces", namespace, "tables"]:
                tables = self.catalog.list_tables(_levels(namespace))
                return 200, {"identifiers": [{"namespace": list(t[:-1]), "name": t[-1]} for t in tables]}
            case "POST", ["namespaces", namespace, "tables"]:
                return self._create_table(_levels(namespace), seen.body)
            case "GET", ["namespaces", namespace, "tables", name]:
                return self._load_table((*_levels(namespace), name))
            case "POST", ["namespaces", namespace, "tables", name]:
                return self._commit((*_levels(namespace), name), seen.body)
        return 404, _error("NotFoundException", f"no endpoint {seen.method} {path}")

    def _issue_token(self, seen: Seen) -> tuple[int, dict[str, Any]]:
        form = {key: values[0] for key, values in parse_qs(seen.body.decode()).items()}
        if self.client is not None and (form.get("client_id"), form.get("client_secret")) != self.client:
            return 401, {"error": "invalid_client", "error_description": f"no such client {form}"}
        token = f"issued-token-{len(self.seen)}"
        self.valid_tokens.add(token)
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": self.token_lifetime_seconds}

    def _authorized(self, seen: Seen) -> bool:
        return seen.headers.get("authorization", "").removeprefix("Bearer ") in self.valid_tokens

    def _create_namespace(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            self.catalog.create_namespace(tuple(body["namespace"]))
        except NamespaceAlreadyExistsError:
            return 409, _error("AlreadyExistsException", "namespace exists")
        return 200, {"namespace": body["namespace"], "properties": {}}

    def _create_table(self, namespace: tuple[str, ...], body: bytes) -> tuple[int, dict[str, Any]]:
        # Clients leave the location out when the server is to choose it.
        request = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
        if request.stage_create:
            staged = self.catalog.create_table_transaction((*namespace, request.name), request.table_schema)
            metadata = json.loads(staged.table_metadata.model_dump_json())
            return 200, {"metadata-location": None, "metadata": metadata, "config": self.table_config}
        self.catalog.create_table((*namespace, request.name), request.table_schema, properties=request.properties)
        return self._load_table((*namespace, request.name))

    def _load_table(self, identifier: tuple[str, ...]) -> tuple[int, dict[str, Any]]:
        try:
            table = self.catalog.load_table(identifier)
        except NoSuchTableError:
            return 404, _error("NoSuchTableException", "no such table")
        return 200, {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.metadata.model_dump_json()),
            "config": self.table_config,
        }

    def _commit(self, identifier: tuple[str, ...], body: bytes) -> tuple[int, dict[str, Any]]:
        request = CommitTableRequest.model_validate_json(body)
        try:
            response = self.catalog.commit_table(
                self.catalog.load_table(identifier), request.requirements, request.updates
            )
        except CommitFailedException as error:
            return 409, _error("CommitFailedException", str(error))
        return 200, json.loads(response.model_dump_json())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: RestStub

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = Seen(self.command, self.path, {key.lower(): value for key, value in self.headers.items()}, body)
        fault = self.stub.next_fault(seen)
        status, payload = (0, {}) if fault is not None and not fault.after_work else self.stub.serve(seen)
        if fault is None:
            self._reply(status, json.dumps(payload), JSON)
        elif fault.hang:
            self.stub.closing.wait(30)
            self.close_connection = True
        elif fault.reset:
            # Lingering for zero seconds makes closing send a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        else:
            self._reply(fault.status, fault.body, {**JSON, **fault.headers})

    do_GET = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - the names http.server calls

    def _reply(self, status: int, body: str, headers: dict[str, str]) -> None:
        content = b"" if self.command == "HEAD" else body.encode()
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep test output clean."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that went away is what these tests are about."""


@contextmanager
def running_stub(folder: Path) -> Iterator[RestStub]:
    """A stub on a free port of this machine, until the block ends."""
    stub = RestStub(folder)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": stub}))
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.closing.set()
        server.shutdown()
        server.server_close()
        stub.catalog.close()


@contextmanager
def refused_url() -> Iterator[str]:
    """An address where nobody listens: the port is taken, and never accepts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def _levels(namespace: str) -> tuple[str, ...]:
    return tuple(namespace.split("\x1f"))


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": 0}}

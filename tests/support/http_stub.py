"""A real HTTP server that speaks enough of Iceberg's REST protocol, and fails on request.

Tables are kept by a real PyIceberg SQL catalog behind it, so commits, conflicts and
requirements behave as they do elsewhere. `fail` makes the next matching requests end as
scripted instead.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import CommitTableRequest
from support.servers.faults import JSON, FaultPlan, FaultyHandler, LoopbackServer, Seen


class RestStub(FaultPlan):
    """The server's memory: its catalog, what was asked, what is to fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.catalog = SqlCatalog("stub", uri=f"sqlite:///{folder}/stub.db", warehouse=f"file://{folder}/stub")
        self.overrides: dict[str, str] = {}
        self.table_config: dict[str, str] = {}
        self.client: tuple[str, str] | None = None
        self.valid_tokens: set[str] = set()
        self.token_lifetime_seconds = 3600
        self.url = ""

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
            case "HEAD" | "GET", ["namespaces", namespace]:
                return self._load_namespace(_levels(namespace))
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

    def _load_namespace(self, namespace: tuple[str, ...]) -> tuple[int, dict[str, Any]]:
        if not self.catalog.namespace_exists(namespace):
            return 404, _error("NoSuchNamespaceException", "no such namespace")
        return 200, {"namespace": list(namespace), "properties": {}}

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


class _Handler(FaultyHandler):
    stub: RestStub

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = Seen(self.command, self.path, {key.lower(): value for key, value in self.headers.items()}, body)
        fault = self.stub.next_fault(seen)
        status, payload = (0, {}) if fault is not None and not fault.after_work else self.stub.serve(seen)
        if fault is None:
            self.reply(status, json.dumps(payload).encode(), JSON)
        elif fault.hang:
            self.hang()
        elif fault.reset:
            self.reset()
        else:
            self.reply(fault.status, fault.body.encode(), {**JSON, **fault.headers})

    do_GET = do_POST = do_HEAD = do_DELETE = _respond  # noqa: N815 - the names http.server calls


@contextmanager
def running_stub(folder: Path) -> Iterator[RestStub]:
    """A stub on a free port of this machine, until the block ends."""
    stub = RestStub(folder)
    with closing(stub.catalog), LoopbackServer(type("Handler", (_Handler,), {"stub": stub})) as server:
        stub.url = f"http://{server.address}"
        yield stub


@contextmanager
def refused_url() -> Iterator[str]:
    """An address that refuses connections: the port is taken, and never accepts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def _levels(namespace: str) -> tuple[str, ...]:
    return tuple(namespace.split("\x1f"))


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": 0}}

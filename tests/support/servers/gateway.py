"""A gateway before an Iceberg REST server: towards a client it behaves as Apache Polaris does.

It issues and checks tokens, knows roles, serves one catalog below a prefix, vends storage
credentials table by table, refuses to purge; and on command it fails in every way a server,
a load balancer or a network can.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from support.servers.faults import Fault, Seen
from support.servers.gateway_tokens import TokenDesk
from support.servers.proxy import Proxy, Response, Upstream

BASE = "/api/catalog"
COMMIT = r"/namespaces/[^/]+/tables/[^/]+$"
"""Path of the requests that commit, for `Gateway.fail("POST", COMMIT, ...)`."""
TOKENS = "/v1/oauth/tokens$"
_RETURNS_A_TABLE = re.compile(r"^(GET /v1/namespaces/[^/]+/tables/[^/]+|POST /v1/namespaces/[^/]+/(tables|register))$")
_CREDENTIALS = re.compile(r"^(?P<table>/v1/namespaces/[^/]+/tables/[^/]+)/credentials$")
_SEPARATOR, _SEPARATOR_PROPERTY = "%2E", "namespace-separator"

Vend = Callable[[str], dict[str, str]]


class Gateway(Proxy):
    """The gateway, and what a test may change about it while it runs.

    Attributes:
        warehouse: Name of the catalog that it serves.
        tokens: Who may pass: client id and secret, life of the tokens, OAuth2 servers to trust.
        overrides: Properties that clients have to use instead of their own.
        table_config: Properties that come with every table.
        vend: Storage credentials for a table's location, for clients that ask to be vended some.
        vends_in_config: Whether what is vended also stands in the table's configuration, where older clients look.
        purge_allowed: Whether tables may be dropped with their files.
        overwrites: Whether a table may be registered in place of itself, as Polaris allows since Iceberg 1.11.
        renews: Whether clients get the address of new credentials for those that are about to expire.
    """

    def __init__(self, upstream_uri: str, *, warehouse: str = "analytics", vend: Vend | None = None) -> None:
        super().__init__(upstream_uri)
        self.warehouse, self.vend = warehouse, vend
        self.tokens = TokenDesk()
        self.overrides: dict[str, str] = {}
        self.table_config: dict[str, str] = {}
        self.vends_in_config = True
        self.purge_allowed = False
        self.overwrites = False
        self.renews = True

    @classmethod
    @contextmanager
    def start(cls, upstream_uri: str, *, warehouse: str = "analytics", vend: Vend | None = None) -> "Iterator[Gateway]":
        """A gateway on a free port of this machine, until the block ends.

        Args:
            upstream_uri: Address of the REST server behind it, without '/v1'.
            warehouse: Name that its catalog gets.
            vend: Storage credentials for a table's location; none are vended if not given.
        """
        with cls(upstream_uri, warehouse=warehouse, vend=vend).serving() as gateway:
            gateway.uri += BASE
            yield gateway

    @property
    def token_uri(self) -> str:
        return f"{self.uri}/v1/oauth/tokens"

    @property
    def client_id(self) -> str:
        return self.tokens.client_id

    @property
    def client_secret(self) -> str:
        return self.tokens.client_secret

    def respond(self, seen: Seen, upstream: Upstream) -> Response:
        path = seen.path.removeprefix(BASE)
        if urlsplit(path).path == "/v1/oauth/tokens":
            return self.tokens.issue(seen)
        grant = self.tokens.grant_of(seen)
        if grant is None:
            return iceberg_error(401, "NotAuthorizedException", "The token is missing, unknown or expired")
        if seen.method not in ("GET", "HEAD") and not grant.may_write:
            roles = ", ".join(sorted(grant.roles))
            return iceberg_error(
                403, "ForbiddenException", f"Principal '{self.client_id}' with roles [{roles}] is not authorized"
            )
        if urlsplit(path).path == "/v1/config":
            return self._config(replace(seen, path=path), upstream)
        if not path.startswith(f"/v1/{self.warehouse}/"):
            return iceberg_error(404, "NotFoundException", "No such catalog")
        # The server behind joins the levels of a namespace by dots, Polaris by the character that Iceberg chose.
        path = path.replace(f"/v1/{self.warehouse}/", "/v1/", 1).replace("%1F", _SEPARATOR).replace("%1f", _SEPARATOR)
        return self._in_catalog(replace(seen, path=path, headers=_to_server(seen)), upstream)

    def error(self, fault: Fault) -> Response:
        if fault.body:
            return super().error(fault)
        kinds = {409: "CommitFailedException", 503: "ServiceUnavailableException"}
        response = iceberg_error(fault.status, kinds.get(fault.status, "ServiceFailureException"), "scripted fault")
        return replace(response, headers={**response.headers, **fault.headers})

    def _config(self, seen: Seen, upstream: Upstream) -> Response:
        asked = parse_qs(urlsplit(seen.path).query).get("warehouse", [""])[0]
        if asked != self.warehouse:
            return iceberg_error(404, "NotFoundException", f"Unable to find warehouse {asked}")
        response = upstream.ask(replace(seen, path="/v1/config", headers=_to_server(seen)))
        config = json.loads(response.content)
        del config["overrides"][_SEPARATOR_PROPERTY]
        config["overrides"] |= {**self.overrides, "prefix": self.warehouse}
        if "endpoints" in config:
            config["endpoints"].append("GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials")
        return replace(response, content=json.dumps(config).encode())

    def _in_catalog(self, seen: Seen, upstream: Upstream) -> Response:
        target = urlsplit(seen.path)
        if seen.method == "DELETE" and not self.purge_allowed and _asks_to_purge(target.query):
            return iceberg_error(
                403, "ForbiddenException", "Unable to purge entity. Set DROP_WITH_PURGE_ENABLED to allow it"
            )
        if seen.method == "POST" and target.path == "/v1/namespaces":
            missing = self._missing_parent(seen, upstream)
            if missing is not None:
                return missing
        if self.overwrites and seen.method == "POST" and target.path.endswith("/register"):
            seen = self._make_room(seen, upstream)
        if found := _CREDENTIALS.match(target.path):
            return self._credentials(replace(seen, path=found["table"]), upstream)
        response = upstream.ask(seen)
        has_table = response.status == 200 and _RETURNS_A_TABLE.match(f"{seen.method} {target.path}")
        return self._with_config(seen, response) if has_table else response

    def _missing_parent(self, seen: Seen, upstream: Upstream) -> Response | None:
        """Polaris creates no namespace below one that is not there."""
        *parents, _ = json.loads(seen.body)["namespace"]
        if not parents:
            return None
        path = f"/v1/namespaces/{_SEPARATOR.join(quote(parent, safe='') for parent in parents)}"
        found = upstream.ask(replace(seen, method="GET", path=path, body=b"", headers=_without_body(seen)))
        if found.status == 200:
            return None
        return iceberg_error(404, "NoSuchNamespaceException", f"Namespace does not exist: {'.'.join(parents)}")

    def _make_room(self, seen: Seen, upstream: Upstream) -> Seen:
        """Drop the entry that a registration overwrites; clients cannot tell that from one step."""
        wanted = json.loads(seen.body)
        if not wanted.pop("overwrite", False):
            return seen
        path = f"{urlsplit(seen.path).path.removesuffix('/register')}/tables/{wanted['name']}"
        upstream.ask(replace(seen, method="DELETE", path=path, body=b"", headers=_without_body(seen)))
        body = json.dumps(wanted).encode()
        return replace(seen, body=body, headers={**seen.headers, "content-length": str(len(body))})

    def _with_config(self, seen: Seen, response: Response) -> Response:
        vends = self.vend is not None and "x-iceberg-access-delegation" in seen.headers
        if not vends and not self.table_config:
            return response
        table: dict[str, Any] = json.loads(response.content)
        location = table["metadata"]["location"]
        vended = self.vend(location) if vends and self.vend is not None else {}
        if vended and self.renews and seen.method == "GET":
            vended["client.refresh-credentials-endpoint"] = self._credentials_path(seen)
        in_config = vended if self.vends_in_config else {}
        table["config"] = {**table.get("config", {}), **self.table_config, **in_config}
        if vended:
            table["storage-credentials"] = [{"prefix": location, "config": vended}]
        return replace(response, content=json.dumps(table).encode())

    def _credentials(self, seen: Seen, upstream: Upstream) -> Response:
        response = upstream.ask(seen)
        if self.vend is None or response.status != 200:
            return response
        location = json.loads(response.content)["metadata"]["location"]
        vended = {**self.vend(location), "client.refresh-credentials-endpoint": self._credentials_path(seen)}
        payload = {"storage-credentials": [{"prefix": location, "config": vended}]}
        return Response(200, json.dumps(payload).encode())

    def _credentials_path(self, seen: Seen) -> str:
        """Where a client gets new keys for a table, below the catalog's address."""
        table = urlsplit(seen.path).path.removeprefix("/v1/")
        return f"v1/{self.warehouse}/{table}/credentials".replace(_SEPARATOR, "%1F")


def iceberg_error(status: int, kind: str, message: str) -> Response:
    """An error in the form of Iceberg's REST protocol."""
    payload = {"error": {"message": message, "type": kind, "code": status}}
    return Response(status, json.dumps(payload).encode())


def _to_server(seen: Seen) -> dict[str, str]:
    # The token is the gateway's business, and what is rewritten must not be compressed.
    dropped = ("authorization", "accept-encoding", "host")
    return {key: value for key, value in seen.headers.items() if key not in dropped}


def _without_body(seen: Seen) -> dict[str, str]:
    return {key: value for key, value in seen.headers.items() if key not in ("content-length", "content-type")}


def _asks_to_purge(query: str) -> bool:
    return parse_qs(query).get("purgeRequested", [""])[0].lower() == "true"

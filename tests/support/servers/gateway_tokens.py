"""Who may pass the gateway: tokens it issues itself, as Polaris does, and those of an OAuth2 server it trusts."""

import base64
import json
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import jwt
from support.servers.faults import Seen
from support.servers.proxy import Response

ROLE = "PRINCIPAL_ROLE:"
WRITER, READER = "engineer", "reader"
_CLIENT_CREDENTIALS = "client_credentials"
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


@dataclass(frozen=True)
class Grant:
    """What a token allows, and until when on the clock of this process."""

    roles: frozenset[str]
    expires_at: float

    @property
    def may_write(self) -> bool:
        return WRITER in self.roles


class TokenDesk:
    """Issues tokens to one principal with two roles, `engineer` and `reader`, and knows them again.

    Attributes:
        client_id: Who the principal is.
        client_secret: How it proves that.
        lifetime_seconds: How long the tokens to come are good; clients see whole seconds.
        issued: How many tokens were issued.
    """

    def __init__(self) -> None:
        self.client_id, self.client_secret = "floe-principal", secrets.token_hex(20)
        self.lifetime_seconds = 3600.0
        self.issued = 0
        self._grants: dict[str, Grant] = {}
        self._spared: dict[str, Grant] = {}
        self._lock = threading.Lock()
        self._trusted: jwt.PyJWKClient | None = None
        self._trusted_scope = ""

    def trust(self, *, jwks_uri: str, scope: str) -> None:
        """Accept tokens of another OAuth2 server, by their signature, when they carry a scope."""
        self._trusted, self._trusted_scope = jwt.PyJWKClient(jwks_uri), scope

    def token(self, *roles: str) -> str:
        """A token as a client may have fetched it before."""
        token = f"principal-{secrets.token_hex(24)}"
        with self._lock:
            self._grants[token] = Grant(frozenset(roles), time.monotonic() + self.lifetime_seconds)
            self.issued += 1
        return token

    def spare_those_so_far(self) -> None:
        """Tokens of other tests stay good: a Spark that is older than this test does not ask for another."""
        self._spared = dict(self._grants)

    def revoke_all(self) -> None:
        """Every token that is not spared is worth nothing any more."""
        self._grants = dict(self._spared)

    def grant_of(self, seen: Seen) -> Grant | None:
        """What the token of a request allows; None when it is missing, unknown or expired."""
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        grant = self._grants.get(token) or self._trusted_grant(token)
        return grant if grant is not None and time.monotonic() < grant.expires_at else None

    def issue(self, seen: Seen) -> Response:
        """Respond to a request for a token."""
        form = {key: values[0] for key, values in parse_qs(seen.body.decode()).items()}
        match form.get("grant_type"):
            case str(kind) if kind == _CLIENT_CREDENTIALS:
                return self._for_credentials(form, seen)
            case str(kind) if kind == _TOKEN_EXCHANGE:
                return self._for_token(form)
            case _:
                return _refusal(400, "unsupported_grant_type", "use client_credentials")

    def _for_credentials(self, form: dict[str, str], seen: Seen) -> Response:
        given = _basic(seen) or (form.get("client_id", ""), form.get("client_secret", ""))
        if given != (self.client_id, self.client_secret):
            # As careless as some servers are: what was sent is quoted.
            return _refusal(401, "unauthorized_client", f"unknown client {given[0]} with secret {given[1]}")
        roles = _roles(form.get("scope", ""))
        if not roles:
            return _refusal(400, "invalid_scope", f"scope {form.get('scope')} names no role of the principal")
        return self._token_response(self.token(*roles))

    def _for_token(self, form: dict[str, str]) -> Response:
        grant = self._grants.get(form.get("subject_token", ""))
        if grant is None or time.monotonic() >= grant.expires_at:
            return _refusal(401, "invalid_grant", "the subject token is not valid")
        return self._token_response(self.token(*grant.roles))

    def _token_response(self, token: str) -> Response:
        payload = {
            "access_token": token,
            "token_type": "bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "expires_in": int(self.lifetime_seconds),
        }
        return Response(200, json.dumps(payload).encode())

    def _trusted_grant(self, token: str) -> Grant | None:
        if self._trusted is None:
            return None
        try:
            key = self._trusted.get_signing_key_from_jwt(token)
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=["RS256"], options={"verify_aud": False})
        except jwt.PyJWTError:
            return None
        if self._trusted_scope not in claims.get("scope", "").split():
            return None
        return Grant(frozenset({WRITER, READER}), time.monotonic() + claims["exp"] - time.time())


def _roles(scope: str) -> frozenset[str]:
    mine = frozenset({WRITER, READER})
    asked = {word.removeprefix(ROLE) for word in scope.split() if word.startswith(ROLE)}
    return mine if "ALL" in asked else mine & asked


def _basic(seen: Seen) -> tuple[str, str] | None:
    kind, _, encoded = seen.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    client, _, secret = base64.b64decode(encoded).decode().partition(":")
    return client, secret


def _refusal(status: int, kind: str, description: str) -> Response:
    return Response(status, json.dumps({"error": kind, "error_description": description}).encode())

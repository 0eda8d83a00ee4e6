"""A real OAuth2 server: Keycloak, with one confidential client that gets tokens by its own credentials."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes import free_port, serves
from support.servers.downloads import keycloak_home
from support.servers.leash import on_leash

REALM = "floe"


@dataclass(frozen=True)
class Keycloak:
    """A running server."""

    uri: str
    client_id: str = "floe-client"
    client_secret: str = "floe-keycloak-secret"
    scope: str = "catalog"

    @property
    def issuer(self) -> str:
        return f"{self.uri}/realms/{REALM}"

    @property
    def token_uri(self) -> str:
        return f"{self.issuer}/protocol/openid-connect/token"

    @property
    def jwks_uri(self) -> str:
        return f"{self.issuer}/protocol/openid-connect/certs"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, *, token_seconds: int = 300) -> Iterator["Keycloak"]:
        """A server for the length of the block; its tokens live as long as given.

        It takes half a minute on two cores, so tests share one.
        """
        port = free_port()
        server = cls(f"http://127.0.0.1:{port}")
        home = _own_home(folder / "keycloak")
        (home / "data" / "import").mkdir(parents=True)
        (home / "data" / "import" / "realm.json").write_text(json.dumps(server._realm(token_seconds)))
        command = [
            *("sh", str(home / "bin" / "kc.sh"), "start", "--optimized", "--cache=local", "--import-realm"),
            *("--http-enabled=true", "--http-host=127.0.0.1", f"--http-port={port}", f"--hostname={server.uri}"),
        ]
        environment = {"JAVA_OPTS_APPEND": "-XX:TieredStopAtLevel=1"}
        with on_leash(
            command,
            folder / "keycloak.log",
            is_up=lambda: serves(server.jwks_uri),
            seconds=300,
            environment=environment,
        ):
            yield server

    def _realm(self, token_seconds: int) -> dict[str, Any]:
        scope = {"name": self.scope, "protocol": "openid-connect", "attributes": {"include.in.token.scope": "true"}}
        client = {
            "clientId": self.client_id,
            "secret": self.client_secret,
            "serviceAccountsEnabled": True,
            "standardFlowEnabled": False,
            "publicClient": False,
            "optionalClientScopes": [self.scope],
        }
        return {
            "realm": REALM,
            "enabled": True,
            "sslRequired": "none",
            "accessTokenLifespan": token_seconds,
            "clientScopes": [scope],
            "clients": [client],
        }


def _own_home(home: Path) -> Path:
    """Keycloak's programs without a copy of them; only its data is written to."""
    shared = keycloak_home()
    home.mkdir()
    # The scripts find everything else from where they are.
    shutil.copytree(shared / "bin", home / "bin")
    for part in ("conf", "lib", "providers", "themes"):
        (home / part).symlink_to(shared / part)
    return home

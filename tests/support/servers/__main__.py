"""All servers for a person, until Ctrl-C: what `make services` runs.

Prints where they are and how both engines and Dagster find them. Data and credentials are thrown away
at the end.
"""

import json
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.servers.running import BUCKET, Servers


def _artifacts(servers: Servers, catalog: dict[str, Any], *, keys: bool = True) -> dict[str, Any]:
    hidden = {"access_key_id": {"secret_ref": "s3-key"}, "secret_access_key": {"secret_ref": "s3-secret"}}
    storage = {key: value for key, value in servers.storage_config.items() if key not in hidden}
    return {
        "metadata": {"product_name": "services"},
        "plugins": {"catalog": catalog, "storage": {"type": "s3", "config": storage | (hidden if keys else {})}},
    }


def _catalogs(servers: Servers) -> dict[str, dict[str, Any]]:
    """Artifacts by the name of the lake."""
    gateway, keycloak = servers.gateway, servers.keycloak
    gateway.tokens.trust(jwks_uri=keycloak.jwks_uri, scope=keycloak.scope)
    sql = {"uri": {"secret_ref": "catalog-uri"}, "warehouse": f"s3://{BUCKET}/sql"}
    client = {
        "client_id": {"secret_ref": "polaris-client-id"},
        "client_secret": {"secret_ref": "polaris-client-secret"},
    }
    polaris = {"uri": gateway.uri, "warehouse": gateway.warehouse, **client}
    return {
        "postgres": _artifacts(servers, {"type": "sql", "config": sql}),
        "rest": _artifacts(servers, {"type": "rest", "config": {"uri": servers.rest_catalog.uri}}),
        "polaris": _artifacts(servers, {"type": "polaris", "config": polaris}, keys=False),
    }


def _environment(servers: Servers) -> dict[str, str]:
    return {
        "FLOE_SECRET_CATALOG_URI": servers.postgres.create_database("sql").sqlalchemy_uri,
        "FLOE_SECRET_S3_KEY": servers.s3.access_key_id,
        "FLOE_SECRET_S3_SECRET": servers.s3.secret_access_key,
        "FLOE_SECRET_POLARIS_CLIENT_ID": servers.gateway.client_id,
        "FLOE_SECRET_POLARIS_CLIENT_SECRET": servers.gateway.client_secret,
    }


def _describe(servers: Servers, folder: Path) -> str:
    for lake, artifacts in _catalogs(servers).items():
        (folder / f"{lake}.json").write_text(json.dumps(artifacts, indent=2))
    exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in _environment(servers).items())
    (folder / "environment.sh").write_text(f"{exports}\n")
    keycloak, s3 = servers.keycloak, servers.s3
    return f"""
PostgreSQL    {servers.database.sqlalchemy_uri}
S3            {s3.endpoint}  key {s3.access_key_id}  secret {s3.secret_access_key}  bucket {BUCKET}
REST catalog  {servers.rest_catalog.uri}  (without authentication, listens on every address)
Gateway       {servers.gateway.uri}  (behaves as Polaris; catalog {servers.gateway.warehouse})
Keycloak      {keycloak.token_uri}
              client {keycloak.client_id}  secret {keycloak.client_secret}  scope {keycloak.scope}

In another terminal:

  . {folder}/environment.sh
  export FLOE_ARTIFACTS={folder}/rest.json      # or postgres.json, or polaris.json
  .venv/bin/floe-iceberg doctor
  make ui

Ctrl-C stops everything and deletes what it held.
"""


def main() -> int:
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="floe-services-") as place, Servers.below(Path(place)) as servers:
            sys.stdout.write("Starting PostgreSQL, S3, the REST catalog, the gateway and Keycloak (half a minute)\n")
            sys.stdout.flush()
            sys.stdout.write(_describe(servers, Path(place)))
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        sys.stdout.write("Stopped.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

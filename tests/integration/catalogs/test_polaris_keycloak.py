"""Tokens of a real OAuth2 server, Keycloak: fetched by both engines, checked by their signature."""

import time
from collections.abc import Iterator

import jwt
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from support.polaris_lake import PolarisLake
from support.servers.keycloak import Keycloak
from support.spark_session import spark_resource

from floe_dagster_iceberg.errors import CatalogAuthenticationError
from floe_dagster_iceberg.resources import IcebergResource

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S3-1")]

# Iceberg renews a token when a tenth of its life is left: on a busy machine, that must be more than a moment.
TOKEN_SECONDS = 20
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture(scope="module")
def keycloak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    with Keycloak.start(tmp_path_factory.mktemp("keycloak"), token_seconds=TOKEN_SECONDS) as server:
        yield server


@pytest.fixture
def iceberg(polaris: PolarisLake, keycloak: Keycloak) -> IcebergResource:
    polaris.gateway.tokens.trust(jwks_uri=keycloak.jwks_uri, scope=keycloak.scope)
    return _resource(polaris, keycloak)


def _resource(polaris: PolarisLake, keycloak: Keycloak, **given: str) -> IcebergResource:
    known = {"client_id": keycloak.client_id, "client_secret": keycloak.client_secret, "scope": keycloak.scope}
    return polaris.resource(catalog={"token_url": keycloak.token_uri}, catalog_name="keycloak", **{**known, **given})


def test_its_tokens_open_the_catalog_and_are_renewed_while_a_long_write_runs(
    polaris: PolarisLake, iceberg: IcebergResource
) -> None:
    manager = iceberg.table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        time.sleep(TOKEN_SECONDS + 1)

    manager.append("sales.orders", pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
    assert polaris.rows(manager.load_table("sales.orders")) == [(1,), (2,)]


def test_spark_gets_its_own_token_and_renews_it(iceberg: IcebergResource) -> None:
    manager = iceberg.table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)
    manager.append("sales.orders", ROWS)
    session = spark_resource(iceberg).spark_session
    assert session.table("keycloak.sales.orders").count() == 2
    time.sleep(TOKEN_SECONDS + 1)
    assert session.table("keycloak.sales.orders").count() == 2


def test_a_wrong_secret_is_refused(polaris: PolarisLake, keycloak: Keycloak) -> None:
    with pytest.raises(CatalogAuthenticationError, match="token endpoint"):
        _resource(polaris, keycloak, client_secret="wrong-canary-secret").table_manager.list_namespaces()


def test_a_token_signed_with_another_key_is_refused(polaris: PolarisLake, iceberg: IcebergResource) -> None:
    iceberg.table_manager.list_namespaces()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {"scope": "catalog", "exp": int(time.time()) + 600}
    forged = jwt.encode(claims, key, algorithm="RS256", headers={"kid": "another-key"})
    with pytest.raises(CatalogAuthenticationError, match="401"):
        polaris.resource(token=forged).table_manager.list_namespaces()

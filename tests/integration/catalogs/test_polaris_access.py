"""Polaris from the outside: who may do what, with which token, and which error the others get."""

import logging
import time
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest
from support.polaris_lake import PolarisLake
from support.servers.faults import Fault

from floe_dagster_iceberg.errors import CatalogAuthenticationError, EngineCapabilityError, ValidationError

ROWS = pa.table({"id": [1, 2]})


def slow_batches(seconds: float) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        time.sleep(seconds)
        yield from ROWS.to_batches()

    return pa.RecordBatchReader.from_batches(ROWS.schema, batches())


@pytest.mark.requirement("S3-1", "S2-US1.2")
def test_client_credentials_and_a_role_open_the_catalog(polaris: PolarisLake) -> None:
    manager = polaris.resource(scope="PRINCIPAL_ROLE:engineer").table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)
    manager.append("sales.orders", ROWS)
    assert polaris.rows(manager.load_table("sales.orders")) == [(1,), (2,)]


@pytest.mark.requirement("S3-1")
def test_a_role_that_may_only_read_writes_neither_a_snapshot_nor_a_file(polaris: PolarisLake) -> None:
    manager = polaris.resource().table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)
    manager.append("sales.orders", ROWS)
    before = polaris.keys()

    reader = polaris.resource(scope="PRINCIPAL_ROLE:reader").table_manager
    with pytest.raises(CatalogAuthenticationError, match="403"):
        reader.append("sales.orders", ROWS)

    assert polaris.rows(reader.load_table("sales.orders")) == [(1,), (2,)]
    assert polaris.keys() == before


@pytest.mark.requirement("S3-1")
def test_a_scope_without_a_role_of_the_principal_is_refused(polaris: PolarisLake) -> None:
    with pytest.raises(CatalogAuthenticationError, match="invalid_scope"):
        polaris.resource(scope="PRINCIPAL_ROLE:nobody").table_manager.list_namespaces()


@pytest.mark.requirement("S3-1")
def test_an_unknown_warehouse_is_refused_with_a_sentence(polaris: PolarisLake) -> None:
    with pytest.raises(ValidationError, match="Check the catalog's URI and warehouse"):
        polaris.resource(warehouse="no-such-catalog").table_manager.list_namespaces()


@pytest.mark.requirement("S3-1")
def test_a_bearer_token_opens_the_catalog_until_it_is_refused(polaris: PolarisLake) -> None:
    manager = polaris.resource(token=polaris.gateway.tokens.token("engineer")).table_manager
    manager.create_namespace("sales")
    polaris.gateway.tokens.revoke_all()
    with pytest.raises(CatalogAuthenticationError, match="401"):
        manager.list_namespaces()


@pytest.mark.requirement("S3-1")
def test_tokens_are_renewed_while_a_long_write_runs(polaris: PolarisLake) -> None:
    polaris.gateway.tokens.lifetime_seconds = 2.0
    manager = polaris.resource(catalog_name="renewing").table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)
    issued = polaris.gateway.tokens.issued

    manager.append("sales.orders", slow_batches(2.5))

    assert polaris.gateway.tokens.issued > issued
    assert polaris.rows(manager.load_table("sales.orders")) == [(1,), (1,), (2,), (2,)]


@pytest.mark.requirement("S3-1")
def test_a_token_that_is_revoked_during_a_write_is_replaced(polaris: PolarisLake) -> None:
    manager = polaris.resource().table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        polaris.gateway.tokens.revoke_all()

    manager.append("sales.orders", pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
    assert polaris.rows(manager.load_table("sales.orders")) == [(1,), (2,)]


@pytest.mark.requirement("S3-1b", "S3-1")
def test_a_nested_namespace_is_made_with_those_above_it(polaris: PolarisLake) -> None:
    manager = polaris.resource().table_manager
    manager.create_namespace("gold.sales.daily")
    manager.create_namespace("gold.sales.daily", if_not_exists=True)
    manager.create_table("gold.sales.daily.orders", ROWS.schema)
    manager.append("gold.sales.daily.orders", ROWS)
    assert manager.list_namespaces("gold") == ["gold.sales"]
    assert manager.list_tables("gold.sales.daily") == ["orders"]
    assert polaris.rows(manager.load_table("gold.sales.daily.orders")) == [(1,), (2,)]


@pytest.mark.requirement("S3-1b")
def test_purging_is_refused_with_a_sentence_and_dropping_leaves_the_files(polaris: PolarisLake) -> None:
    manager = polaris.resource().table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)
    manager.append("sales.orders", ROWS)
    files = polaris.keys()

    with pytest.raises(EngineCapabilityError, match=r"refuses to purge 'sales\.orders'.*Drop it without purge"):
        manager.drop_table("sales.orders", purge=True)
    manager.drop_table("sales.orders")

    assert manager.list_tables("sales") == []
    assert polaris.keys() == files


@pytest.mark.requirement("S2-FR-046", "S3-1")
def test_a_secret_that_the_server_quotes_reaches_neither_a_message_nor_a_log(
    polaris: PolarisLake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = f"canary-{polaris.gateway.client_secret[::-1]}"
    with pytest.raises(CatalogAuthenticationError, match="unauthorized_client") as caught:
        polaris.resource(client_secret=wrong).table_manager.list_namespaces()
    assert wrong not in "".join(traceback.format_exception(caught.value))
    assert wrong not in caplog.text


@pytest.mark.requirement("S3-2b")
def test_a_slow_server_is_waited_for(polaris: PolarisLake) -> None:
    manager = polaris.resource().table_manager
    polaris.gateway.fail("GET", "/namespaces", Fault(delay_seconds=0.5))
    assert manager.list_namespaces() == []

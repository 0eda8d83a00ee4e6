"""Keys that the catalog vends for one table: used, sufficient, short-lived, and never shown."""

import logging
import re
import traceback

import pyarrow as pa
import pytest
from dagster import asset, materialize
from support.polaris_lake import PolarisLake

from floe_dagster_iceberg.errors import FloeStorageError, WriteError
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.table.manager import IcebergTableManager

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def manager(polaris: PolarisLake) -> IcebergTableManager:
    manager = polaris.resource().table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)
    return manager


def keys_used(polaris: PolarisLake) -> set[str]:
    """Ids of the keys that clients signed requests to the storage with."""
    signed = (seen.headers.get("authorization", "") for seen in polaris.storage.seen)
    return {found[1] for text in signed if (found := re.search(r"Credential=([^/]+)/", text))}


@pytest.mark.requirement("S3-1", "S0-P2")
def test_a_client_without_keys_writes_and_reads_with_vended_ones(
    polaris: PolarisLake, manager: IcebergTableManager
) -> None:
    polaris.storage.seen.clear()
    manager.append("sales.orders", ROWS)
    assert polaris.rows(manager.load_table("sales.orders")) == [(1,), (2,)]
    assert keys_used(polaris)
    assert all(key.startswith("spare-key-") for key in keys_used(polaris))


@pytest.mark.requirement("S3-1")
@pytest.mark.parametrize("in_config", [True, False], ids=["in the configuration too", "as storage credentials alone"])
def test_the_first_write_of_a_table_uses_vended_keys(polaris: PolarisLake, *, in_config: bool) -> None:
    polaris.gateway.vends_in_config = in_config

    @asset
    def orders() -> pa.Table:
        return ROWS

    iceberg = polaris.resource()
    materialize([orders], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)})
    assert polaris.rows(iceberg.catalog.load_table("public.orders")) == [(1,), (2,)]


@pytest.mark.requirement("S3-1")
def test_keys_that_expire_during_a_write_fail_it_without_a_trace_and_the_next_run_gets_new_ones(
    polaris: PolarisLake, manager: IcebergTableManager
) -> None:
    manager.append("sales.orders", ROWS)
    before = polaris.keys()
    polaris.storage.lifetime_seconds = 0.0
    with pytest.raises(WriteError, match=r"sales\.orders") as failure:
        manager.append("sales.orders", ROWS)
    assert polaris.keys() == before
    assert not any(secret in "".join(traceback.format_exception(failure.value)) for secret in polaris.storage.vended)

    polaris.storage.lifetime_seconds = 3600.0
    manager.append("sales.orders", ROWS)
    assert len(polaris.rows(manager.load_table("sales.orders"))) == 4


@pytest.mark.requirement("S3-1")
def test_a_key_is_good_for_its_own_table_alone(manager: IcebergTableManager) -> None:
    manager.create_table("sales.refunds", ROWS.schema)
    orders, refunds = manager.load_table("sales.orders"), manager.load_table("sales.refunds")
    orders.io.new_input(orders.metadata_location).open().close()
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        orders.io.new_input(refunds.metadata_location).open()


@pytest.mark.requirement("S3-1", "S0-P2")
def test_vended_keys_are_handed_out_on_request(polaris: PolarisLake, manager: IcebergTableManager) -> None:
    del manager
    vended = polaris.resource().catalog_plugin.vend_credentials("sales.orders", ["READ"])
    assert vended["s3.session-token"] in polaris.storage.vended
    assert vended["s3.access-key-id"].startswith("spare-key-")


@pytest.mark.requirement("S2-FR-046", "S3-1")
def test_vended_keys_reach_no_log_and_no_event(polaris: PolarisLake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @asset
    def orders() -> pa.Table:
        return ROWS

    iceberg = polaris.resource()
    result = materialize([orders], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)})
    output = caplog.text + "".join(str(event) for event in result.all_events) + repr(iceberg)
    assert polaris.storage.vended
    assert not [secret for secret in polaris.storage.vended if secret in output]


@pytest.mark.requirement("S3-1")
def test_a_catalog_that_vends_nothing_leaves_the_clients_own_keys_in_use(polaris: PolarisLake) -> None:
    polaris.gateway.vend = None
    own = polaris.own_keys()
    manager = polaris.resource(storage_properties=own).table_manager
    manager.create_namespace("sales")
    manager.create_table("sales.orders", ROWS.schema)
    manager.append("sales.orders", ROWS)
    assert len(polaris.rows(manager.load_table("sales.orders"))) == 2
    with pytest.raises(FloeStorageError, match="vends no credentials"):
        polaris.resource(storage_properties=own).catalog_plugin.vend_credentials("sales.orders", ["READ"])

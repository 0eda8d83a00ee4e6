"""What the REST client does when the server misbehaves: attempts, error types, bounds."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from support.http_stub import RestStub, refused_url, running_stub
from support.processes import wait_until
from support.servers.faults import HANG, RESET, TRUNCATED, Fault

from floe_dagster_iceberg.errors import (
    CatalogAuthenticationError,
    CatalogConnectionError,
    FloeStorageError,
    NoSuchTableError,
    ValidationError,
)
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin
from floe_dagster_iceberg.plugins.registry import open_catalog_plugin
from floe_dagster_iceberg.table.write.create_table import ensure_namespace

FAST = {"max_attempts": 3, "initial_wait_seconds": 0.1, "max_wait_seconds": 1, "jitter_seconds": 0}
LIST = r"/v1/namespaces\?|/v1/namespaces$"
COMMIT = r"/tables/orders$"


PluginFor = Callable[..., CatalogPlugin]


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RestStub]:
    with running_stub(tmp_path) as stub:
        stub.catalog.create_namespace("sales")
        yield stub


@pytest.fixture
def plugin_for() -> Iterator[PluginFor]:
    """Builds plugins with short bounds, and closes them."""
    bounds = {"connect_timeout_seconds": 0.5, "read_timeout_seconds": 10, "total_timeout_seconds": 30}
    built = []

    def build(url: str, **config: Any) -> CatalogPlugin:
        built.append(open_catalog_plugin("rest", {"uri": url, "retry": FAST, **bounds, **config}))
        return built[-1]

    yield build
    for plugin in built:
        plugin.shutdown()


@pytest.fixture
def fault() -> Fault:
    """Tests that are parametrized by a fault replace it."""
    return Fault()


@pytest.fixture
def plugin(stub: RestStub, plugin_for: PluginFor, fault: Fault) -> CatalogPlugin:
    # Only a client without a response waits that long; on a busy machine others may need more.
    plugin = plugin_for(stub.url, read_timeout_seconds=1 if fault.hang else 10)
    plugin.connect({})
    return plugin


@pytest.fixture
def orders(stub: RestStub, plugin: CatalogPlugin) -> Any:
    stub.catalog.create_table("sales.orders", pa.schema([("id", pa.int64())]))
    return plugin.catalog.load_table("sales.orders")


@pytest.mark.requirement("S3-2b")
@pytest.mark.parametrize(
    ("fault", "attempts", "error"),
    [
        (Fault(401), 1, CatalogAuthenticationError),
        (Fault(403), 1, CatalogAuthenticationError),
        (Fault(404), 1, FloeStorageError),
        (Fault(400), 1, ValidationError),
        (Fault(409), 1, ValidationError),
        (Fault(500), 1, CatalogConnectionError),
        (Fault(429), 3, CatalogConnectionError),
        (Fault(503), 3, CatalogConnectionError),
        (HANG, 3, CatalogConnectionError),
        (RESET, 3, CatalogConnectionError),
    ],
    ids=["401", "403", "404", "400", "409", "500", "429", "503", "hang", "reset"],
)
def test_a_read_is_repeated_only_after_passing_troubles(
    stub: RestStub, plugin: CatalogPlugin, fault: Fault, attempts: int, error: type[Exception]
) -> None:
    stub.fail("GET", LIST, *[fault] * 5)
    with pytest.raises(error):
        plugin.list_namespaces()
    assert stub.count("GET", LIST) == attempts


@pytest.mark.requirement("S3-2b")
@pytest.mark.parametrize("fault", [Fault(429), Fault(503), HANG, RESET], ids=["429", "503", "hang", "reset"])
def test_a_read_succeeds_when_the_trouble_passes(stub: RestStub, plugin: CatalogPlugin, fault: Fault) -> None:
    stub.fail("GET", LIST, fault, fault)
    assert plugin.list_namespaces() == ["sales"]


@pytest.mark.requirement("S3-2b")
@pytest.mark.parametrize(
    ("fault", "attempts"),
    [(Fault(503), 1), (HANG, 1), (RESET, 1), (Fault(429), 3)],
    ids=["503", "hang", "reset", "429"],
)
def test_a_change_that_may_have_arrived_is_not_repeated(
    stub: RestStub, plugin: CatalogPlugin, fault: Fault, attempts: int
) -> None:
    stub.fail("POST", "/v1/namespaces$", *[fault] * 5)
    with pytest.raises(CatalogConnectionError):
        plugin.create_namespace("marketing")
    assert stub.count("POST", "/v1/namespaces$") == attempts


@pytest.mark.requirement("S3-2b", "S2-FR-028")
@pytest.mark.parametrize(
    "fault", [Fault(500), Fault(503), HANG, RESET, TRUNCATED], ids=["500", "503", "hang", "reset", "truncated"]
)
def test_a_namespace_that_exists_in_the_end_counts_as_created_whatever_the_response(
    stub: RestStub, plugin: CatalogPlugin, fault: Fault
) -> None:
    stub.fail("POST", "/v1/namespaces$", fault.after())
    ensure_namespace(plugin.catalog, ("marketing",))
    assert ("marketing",) in stub.catalog.list_namespaces()
    assert stub.count("POST", "/v1/namespaces$") == 1


@pytest.mark.requirement("S3-2b", "S2-FR-028")
def test_a_namespace_that_is_not_there_in_the_end_is_an_error(stub: RestStub, plugin: CatalogPlugin) -> None:
    stub.fail("POST", "/v1/namespaces$", Fault(500))
    with pytest.raises(CatalogConnectionError, match="HTTP 500"), translate_errors("floe"):
        ensure_namespace(plugin.catalog, ("marketing",))
    assert stub.catalog.list_namespaces() == [("sales",)]


@pytest.mark.requirement("S3-2b", "S2-FR-028")
def test_a_look_that_fails_does_not_hide_why_a_namespace_is_missing(stub: RestStub, plugin: CatalogPlugin) -> None:
    stub.fail("POST", "/v1/namespaces$", Fault(403))
    stub.fail("HEAD", "/v1/namespaces/marketing", Fault(404), *[Fault(503)] * 5)
    with pytest.raises(CatalogAuthenticationError), translate_errors("floe"):
        ensure_namespace(plugin.catalog, ("marketing",))


@pytest.mark.requirement("S3-2b")
@pytest.mark.parametrize(
    "fault",
    [
        Fault(500, after_work=True),
        Fault(502, after_work=True),
        Fault(503, after_work=True),
        Fault(504, after_work=True),
        Fault(200, body="<html>", after_work=True),
        Fault(reset=True, after_work=True),
        Fault(hang=True, after_work=True),
    ],
    ids=["500", "502", "503", "504", "garbage", "reset", "hang"],
)
def test_a_commit_without_a_clear_response_is_unknown_and_not_repeated(
    stub: RestStub, orders: Any, fault: Fault
) -> None:
    stub.fail("POST", COMMIT, *[fault] * 5)
    with pytest.raises(CommitStateUnknownException):
        orders.append(pa.table({"id": [1]}))
    assert stub.count("POST", COMMIT) == 1
    # A client that stopped waiting may look before the server is done.
    wait_until(lambda: bool(stub.catalog.load_table("sales.orders").snapshots()), seconds=30, what="the commit")
    assert stub.catalog.load_table("sales.orders").scan().to_arrow().num_rows == 1


@pytest.mark.requirement("S3-2b")
def test_a_commit_that_was_turned_away_is_repeated(stub: RestStub, orders: Any) -> None:
    stub.fail("POST", COMMIT, Fault(429), Fault(429))
    orders.append(pa.table({"id": [1]}))
    assert stub.catalog.load_table("sales.orders").scan().to_arrow().num_rows == 1


@pytest.mark.requirement("S3-2b", "S0-X1..6")
def test_a_conflicting_commit_is_reported_as_one_and_lands_after_a_refresh(stub: RestStub, orders: Any) -> None:
    stub.fail("POST", COMMIT, Fault(409, body='{"error": {"message": "stale", "type": "x", "code": 409}}'))
    with pytest.raises(CommitFailedException), orders.transaction() as transaction:
        transaction.set_properties(owner="sales")
    orders.refresh()
    with orders.transaction() as transaction:
        transaction.set_properties(owner="sales")
    assert stub.catalog.load_table("sales.orders").properties["owner"] == "sales"


@pytest.mark.requirement("S2-E1")
def test_a_closed_port_is_a_connection_error_after_bounded_attempts(plugin_for: PluginFor) -> None:
    with refused_url() as url, pytest.raises(CatalogConnectionError) as caught:
        plugin_for(url).connect({})
    assert caught.value.retryable
    assert caught.value.__cause__ is not None


@pytest.mark.requirement("S3-2")
def test_all_attempts_together_stay_within_the_total_time(stub: RestStub, plugin_for: PluginFor) -> None:
    plugin = plugin_for(stub.url, total_timeout_seconds=1.0, read_timeout_seconds=0.7)
    stub.fail("GET", "/v1/config", *[HANG] * 9)
    with pytest.raises(CatalogConnectionError):
        plugin.connect({})
    # The first attempt takes 0.7 of the one second; the second one gets what is left.
    assert stub.count("GET", "/v1/config") <= 2


@pytest.mark.requirement("S3-2b")
def test_the_server_may_ask_for_a_longer_wait(stub: RestStub, plugin: CatalogPlugin) -> None:
    stub.fail("GET", LIST, Fault(429, headers={"Retry-After": "1"}))
    started = time.monotonic()
    plugin.list_namespaces()
    # A lower bound only: how much longer it takes is up to the machine.
    assert time.monotonic() - started >= 1.0


@pytest.mark.requirement("S3-6")
def test_a_missing_table_is_named(plugin: CatalogPlugin) -> None:
    with pytest.raises(NoSuchTableError, match=r"sales\.nothing"):
        plugin.drop_table("sales.nothing", purge=True)


def test_a_server_that_is_no_catalog_is_a_connection_error_without_its_page(
    stub: RestStub, plugin_for: PluginFor
) -> None:
    stub.fail("GET", "/v1/config", Fault(200, body="<html>login with hunter2-password</html>"))
    with pytest.raises(CatalogConnectionError) as caught:
        plugin_for(stub.url).connect({})
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.requirement("S3-1")
def test_the_servers_overrides_do_not_move_the_clients_storage_endpoint(stub: RestStub, plugin_for: PluginFor) -> None:
    stub.overrides = {"s3.endpoint": "http://inside-the-cluster:9000"}
    stub.table_config = {"s3.endpoint": "http://inside-the-cluster:9000", "s3.session-token": "vended"}
    stub.catalog.create_table("sales.orders", pa.schema([("id", pa.int64())]))
    catalog = plugin_for(stub.url).connect({"s3.endpoint": "http://outside:9000"})
    properties = catalog.load_table("sales.orders").io.properties
    assert properties["s3.endpoint"] == "http://outside:9000"
    assert properties["s3.session-token"] == "vended"


@pytest.mark.requirement("S0-P2", "S3-1")
def test_vended_credentials_are_those_the_client_did_not_bring(stub: RestStub, plugin_for: PluginFor) -> None:
    stub.table_config = {"s3.access-key-id": "vended-id", "s3.secret-access-key": "vended-secret"}
    stub.catalog.create_table("sales.orders", pa.schema([("id", pa.int64())]))
    plugin = plugin_for(stub.url)
    plugin.connect({"s3.access-key-id": "own-id"})
    assert plugin.vend_credentials("sales.orders", ["READ"]) == {
        "s3.access-key-id": "vended-id",
        "s3.secret-access-key": "vended-secret",
    }


def test_translated_leaves_our_own_errors_alone() -> None:
    mine = ValidationError("no")
    with pytest.raises(ValidationError) as caught, translate_errors("floe"):
        raise mine
    assert caught.value is mine

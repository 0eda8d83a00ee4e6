"""No secret and no word of a failing server is in what runs leave behind, wherever the server fails."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance, asset, materialize
from opentelemetry import trace
from support.canaries import Canary, CapturedOutput, capture_output, provider_into
from support.http_stub import RestStub, refused_url, running_stub
from support.servers.faults import Fault

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark.conf import SessionSettings

pytestmark = pytest.mark.requirement("S2-FR-044", "S3-5")
ONCE = json.dumps({"max_attempts": 1, "initial_wait_seconds": 0.1, "max_wait_seconds": 1, "jitter_seconds": 0})
TABLE = r"/tables/orders$"
# Where the server fails, how often a client asks there, and with which statuses.
FAULTS = {
    "while connecting": ("GET", "/v1/config", 500),
    "when asked for a token": ("POST", "/v1/oauth/tokens", 401),
    "when the table is loaded": ("GET", TABLE, 400),
    "away when the table is loaded": ("GET", TABLE, 503),
    "when the table is made": ("POST", r"/tables$", 400),
    "when rows are committed": ("POST", TABLE, 500),
    "in conflict when rows are committed": ("POST", TABLE, 409),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dagster")


@pytest.fixture(scope="module")
def instance(home: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.local_temp(str(home)) as instance:
        yield instance


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RestStub]:
    with running_stub(tmp_path) as stub:
        stub.catalog.create_namespace("public")
        yield stub


@pytest.fixture
def outputs(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CapturedOutput]:
    with capture_output(home) as outputs:
        monkeypatch.setattr(trace, "get_tracer", provider_into(outputs.spans).get_tracer)
        yield outputs


@asset
def orders() -> pa.Table:
    return pa.table({"id": [1]})


def run(iceberg: IcebergResource, instance: DagsterInstance) -> bool:
    resources = {"io_manager": ArrowIcebergIOManager(iceberg=iceberg)}
    return materialize([orders], resources=resources, instance=instance, raise_on_error=False).success


def polaris(stub: RestStub, secret: Canary, **settings: Any) -> IcebergResource:
    stub.client = ("loader", secret.word)
    bounds = {"connect_timeout_seconds": "1", "read_timeout_seconds": "1", "total_timeout_seconds": "2"}
    return IcebergResource(
        catalog_type="polaris",
        catalog_uri=stub.url,
        warehouse="w",
        client_id="loader",
        client_secret=secret.word,
        catalog_properties={"retry": ONCE, **bounds},
        manager={"max_commit_retries": 1, "retry_base_delay_seconds": 0.1},
        **settings,
    )


@pytest.mark.parametrize("failure", [*itertools.product(FAULTS, ["an error", "a page"])], ids=" with ".join)
def test_a_server_that_fails_is_not_quoted(
    stub: RestStub,
    instance: DagsterInstance,
    outputs: CapturedOutput,
    failure: tuple[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret, words, (where, body) = Canary(), Canary(), failure
    error = {"error": {"message": words.word, "type": words.word, "code": 0, "stack": [words.word]}}
    method, path, status = FAULTS[where]
    content = json.dumps(error) if body == "an error" else f"<html>{words.word}</html>"
    stub.fail(method, path, *[Fault(status, body=content)] * 9)

    assert not run(polaris(stub, secret), instance)

    assert stub.count(method, path) > 0
    outputs.others["output"] = "".join(capfd.readouterr())
    assert outputs.places_with(secret, words) == []


def test_vended_credentials_are_not_revealed(
    stub: RestStub, instance: DagsterInstance, outputs: CapturedOutput, capfd: pytest.CaptureFixture[str]
) -> None:
    secret, vended = Canary(), Canary()
    stub.catalog.create_table("public.orders", pa.schema([("id", pa.int64())]))
    stub.table_config = {"s3.secret-access-key": vended.word, "s3.session-token": vended.word}
    iceberg = polaris(stub, secret)

    assert run(iceberg, instance)
    assert run(iceberg, instance)

    outputs.others["repr"] = f"{iceberg!r} {iceberg.catalog_plugin!r} {iceberg.table_manager!r}"
    outputs.others["output"] = "".join(capfd.readouterr())
    assert outputs.places_with(secret, vended) == []


def test_keys_of_a_storage_that_refuses_them_are_not_revealed(
    tmp_path: Path, instance: DagsterInstance, outputs: CapturedOutput, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = Canary()
    with refused_url() as refused:
        keys = {"access_key_id": secret.word, "secret_access_key": secret.word, "session_token": secret.word}
        iceberg = IcebergResource(
            catalog_uri=f"sqlite:///{tmp_path}/catalog.db",
            warehouse="s3://lake/warehouse",
            storage_type="s3",
            storage_properties={"endpoint": refused, "region": "us-east-1", **keys},
        )

        assert not run(iceberg, instance)

    outputs.others["repr"] = (
        f"{iceberg!r} {iceberg.storage_plugin!r} {SessionSettings(catalog_conf=iceberg.spark_conf())!r}"
    )
    outputs.others["output"] = "".join(capfd.readouterr())
    assert outputs.places_with(secret) == []


def test_the_password_of_a_database_that_is_away_is_not_revealed(
    tmp_path: Path, instance: DagsterInstance, outputs: CapturedOutput, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = Canary()
    iceberg = IcebergResource(
        catalog_uri=f"postgresql+psycopg2://loader:{secret.word}@127.0.0.1:9/catalog",
        warehouse=f"file://{tmp_path}/warehouse",
    )

    assert not run(iceberg, instance)

    with pytest.raises(FloeStorageError) as caught:
        iceberg.table_manager.list_namespaces()
    outputs.add_error("error", caught.value)
    outputs.others["repr"] = f"{iceberg!r} {iceberg.catalog_plugin!r}"
    outputs.others["output"] = "".join(capfd.readouterr())
    assert outputs.places_with(secret) == []

"""The resource: lazy, shared, JSON-safe, and the same catalog wherever it is used."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    DagsterResourceFunctionError,
    Definitions,
    EnvVar,
    asset,
    materialize,
)
from support.http_stub import RestStub, running_stub
from support.servers.faults import HANG

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.errors import PluginNotFoundError, SecretNotFoundError, ValidationError, WriteError
from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.resources import IcebergResource, TableManagerSettings

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "artifacts"
CANARY = "canary-d02f-secret"


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RestStub]:
    with running_stub(tmp_path) as stub:
        yield stub


@asset
def orders(iceberg: IcebergResource) -> None:
    iceberg.catalog.create_namespace_if_not_exists("public")
    iceberg.table_manager.create_table_if_not_exists("public.orders", pa.schema([("id", pa.int64())]))
    iceberg.table_manager.append("public.orders", pa.table({"id": [1, 2]}))


@pytest.mark.requirement("D2", "S0-F2")
def test_an_asset_writes_a_table_with_nothing_configured(tmp_path: Path) -> None:
    iceberg = IcebergResource()
    assert materialize([orders], resources={"iceberg": iceberg}).success
    assert iceberg.catalog.load_table("public.orders").scan().to_arrow().num_rows == 2
    assert {path.name for path in (tmp_path / "floe").iterdir()} == {"catalog.db", "warehouse"}


@pytest.mark.requirement("D9")
def test_without_a_home_everything_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOE_HOME")
    monkeypatch.chdir(tmp_path)
    IcebergResource().catalog.create_namespace("public")
    assert (tmp_path / ".floe" / "catalog.db").exists()


@pytest.mark.requirement("S0-F2", "S2-FR-009")
def test_building_definitions_touches_nothing(tmp_path: Path) -> None:
    Definitions(assets=[orders], resources={"iceberg": IcebergResource()}).get_repository_def()
    assert not (tmp_path / "floe").exists()


@pytest.mark.requirement("S2-FR-009")
def test_resources_that_say_the_same_share_one_connection(stub: RestStub) -> None:
    first, second = (IcebergResource(catalog_type="rest", catalog_uri=stub.url) for _ in range(2))
    other = IcebergResource(catalog_type="rest", catalog_uri=stub.url, warehouse="other")
    assert stub.seen == []
    first.catalog.list_namespaces()
    second.catalog.list_namespaces()
    assert stub.count("GET", "/v1/config") == 1
    assert first.table_manager is second.table_manager
    assert first.table_manager is not other.table_manager


@pytest.mark.requirement("S0-F2")
def test_a_pickled_resource_opens_the_same_catalog() -> None:
    iceberg = IcebergResource(catalog_properties={"lock_timeout_seconds": "5"})
    assert pickle.loads(pickle.dumps(iceberg)).table_manager is iceberg.table_manager  # noqa: S301 - our own bytes


@pytest.mark.requirement("S2-FR-046")
def test_an_env_var_works_in_every_field(stub: RestStub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.client = ("analyst", CANARY)
    for name, value in {"URI": stub.url, "WAREHOUSE": "w", "ID": "analyst", "SECRET": CANARY, "SECONDS": "7"}.items():
        monkeypatch.setenv(f"LAKE_{name}", value)
    iceberg = IcebergResource(
        catalog_type="polaris",
        catalog_uri=EnvVar("LAKE_URI"),
        warehouse=EnvVar("LAKE_WAREHOUSE"),
        client_id=EnvVar("LAKE_ID"),
        client_secret=EnvVar("LAKE_SECRET"),
        catalog_properties={"read_timeout_seconds": EnvVar("LAKE_SECONDS")},
    )

    @asset
    def namespaces(iceberg: IcebergResource) -> list[Any]:
        return iceberg.catalog.list_namespaces()

    assert materialize([namespaces], resources={"iceberg": iceberg}).output_for_node("namespaces") == []
    assert iceberg.catalog.list_namespaces() == []


@pytest.mark.requirement("S2-FR-047")
def test_a_warehouse_that_cannot_be_written_to_fails_before_the_asset_runs_if_it_is_checked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    iceberg = IcebergResource(warehouse=str(tmp_path / "file" / "warehouse"), check_storage_at_start=True)
    ran = []

    @asset
    def late(context: AssetExecutionContext, iceberg: IcebergResource) -> None:
        ran.append((context, iceberg))

    defs = Definitions(assets=[late], resources={"iceberg": iceberg})
    with pytest.raises(DagsterResourceFunctionError) as caught:
        defs.resolve_implicit_global_asset_job_def().execute_in_process()
    assert isinstance(caught.value.__cause__, WriteError)
    assert f"{tmp_path}/file/warehouse' of catalog 'floe' cannot be written to" in str(caught.value.__cause__)
    assert ran == []


@pytest.mark.requirement("S2-FR-047")
def test_a_writable_warehouse_is_left_as_it_was(tmp_path: Path) -> None:
    iceberg = IcebergResource(warehouse=str(tmp_path / "warehouse"), check_storage_at_start=True)
    with iceberg.process_config_and_initialize_cm() as initialized:
        initialized.setup_for_execution(None)  # type: ignore[arg-type]
    assert not list((tmp_path / "warehouse").iterdir())


@pytest.mark.requirement("S0-F4")
def test_a_catalog_that_knows_its_storage_needs_none_here(stub: RestStub) -> None:
    iceberg = IcebergResource(catalog_type="rest", catalog_uri=stub.url)
    assert iceberg.storage_plugin is None
    iceberg.setup_for_execution(None)  # type: ignore[arg-type]
    assert stub.seen == []


@pytest.mark.requirement("S2-FR-047")
def test_keys_without_a_location_are_not_checked(stub: RestStub) -> None:
    keys = {"access_key_id": "AKIA", "secret_access_key": CANARY, "region": "us-east-1"}
    iceberg = IcebergResource(catalog_type="rest", catalog_uri=stub.url, storage_type="s3", storage_properties=keys)
    iceberg.setup_for_execution(None)  # type: ignore[arg-type]
    assert iceberg.spark_conf()["spark.sql.catalog.floe.s3.access-key-id"] == "AKIA"


def test_the_scheme_of_the_warehouse_chooses_the_storage() -> None:
    iceberg = IcebergResource(warehouse="s3://lake/tables", storage_properties={"endpoint": "http://127.0.0.1:1"})
    assert iceberg.spark_packages() == ["org.xerial:sqlite-jdbc:3.50.3.0", "iceberg-aws-bundle"]
    assert iceberg.spark_conf()["spark.sql.catalog.floe.warehouse"] == "s3://lake/tables"


@pytest.mark.requirement("S2-FR-011")
def test_files_land_where_the_storage_says(tmp_path: Path) -> None:
    iceberg = IcebergResource(storage_properties={"warehouse": str(tmp_path / "elsewhere")})
    assert materialize([orders], resources={"iceberg": iceberg}).success
    assert list((tmp_path / "elsewhere" / "public" / "orders" / "data").glob("*.parquet"))


@pytest.mark.requirement("S2-FR-011")
def test_storage_properties_reach_the_catalog(stub: RestStub) -> None:
    iceberg = IcebergResource(
        catalog_type="rest",
        catalog_uri=stub.url,
        storage_type="s3",
        storage_properties={"endpoint": "http://127.0.0.1:1", "s3.proxy-uri": "http://proxy"},
    )
    assert iceberg.catalog.properties["s3.endpoint"] == "http://127.0.0.1:1"
    assert iceberg.catalog.properties["s3.proxy-uri"] == "http://proxy"


@pytest.mark.requirement("S0-P4")
def test_a_hung_catalog_is_unhealthy_after_five_seconds(stub: RestStub) -> None:
    stub.fail("GET", "/v1/config", *[HANG] * 5)
    iceberg = IcebergResource(
        catalog_type="rest", catalog_uri=stub.url, catalog_properties={"retry": '{"max_attempts": 1}'}
    )
    status = iceberg.health_check()
    assert not status.healthy
    assert "5 seconds" in status.message


@pytest.mark.requirement("S0-P4")
def test_a_working_catalog_is_healthy() -> None:
    assert IcebergResource().health_check().healthy


def test_an_unknown_catalog_type_names_the_known_ones() -> None:
    with pytest.raises(PluginNotFoundError, match="polaris"):
        _ = IcebergResource(catalog_type="unity").table_manager


def test_a_missing_secret_is_an_error_at_first_use_only() -> None:
    iceberg = IcebergResource(catalog_type="rest", catalog_uri="http://x", token="${NOT_SET_ANYWHERE}")
    with pytest.raises(SecretNotFoundError, match="NOT_SET_ANYWHERE"):
        _ = iceberg.table_manager


def test_a_missing_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(SecretNotFoundError, match="NOT_SET_ANYWHERE"):
        _ = IcebergResource(catalog_uri=EnvVar("NOT_SET_ANYWHERE")).table_manager


def test_the_managers_settings_are_those_of_its_model() -> None:
    assert TableManagerSettings.model_fields.keys() == IcebergTableManagerConfig.model_fields.keys()
    assert TableManagerSettings().to_config() == IcebergTableManagerConfig()
    settings = TableManagerSettings(max_commit_retries=7)
    assert IcebergResource(manager=settings).table_manager.config.max_commit_retries == 7


@pytest.mark.requirement("S2-FR-004", "S2-US1.2", "S0-F3")
@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if "without_catalog" not in path.name))
def test_every_sample_of_artifacts_opens_a_working_catalog(
    name: str, stub: RestStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "LAKE": str(tmp_path),
        "CATALOG_URI": stub.url,
        "POLARIS_CLIENT_ID": "analyst",
        "POLARIS_CLIENT_SECRET": CANARY,
        "POLARIS_CREDENTIAL": f"analyst:{CANARY}",
        **dict.fromkeys(["LAKE_KEYS_ACCESS_KEY_ID", "MINIO_ACCESS_KEY"], "AKIA"),
        **dict.fromkeys(["LAKE_KEYS_SECRET_ACCESS_KEY", "MINIO_SECRET_KEY"], CANARY),
    }
    for variable, value in known.items():
        monkeypatch.setenv(variable, value)
    iceberg = IcebergResource.from_artifacts(CompiledArtifacts.from_json_file(SAMPLES / name))
    iceberg.catalog.create_namespace(iceberg.default_namespace)
    assert (iceberg.default_namespace,) in iceberg.catalog.list_namespaces()
    if stub.count("POST", "/v1/oauth/tokens"):
        (asked,) = [seen.body for seen in stub.seen if seen.path == "/v1/oauth/tokens"]
        assert f"client_id=analyst&client_secret={CANARY}&scope=PRINCIPAL_ROLE%3AANALYST".encode() in asked


@pytest.mark.requirement("S0-F4")
def test_artifacts_without_a_catalog_configure_no_resource() -> None:
    with pytest.raises(ValidationError, match="no catalog"):
        IcebergResource.from_artifacts(CompiledArtifacts.from_json_file(SAMPLES / "floe_without_catalog.json"))


@pytest.mark.requirement("S2-FR-046")
def test_a_resource_does_not_print_its_secrets() -> None:
    iceberg = IcebergResource(
        catalog_type="rest",
        catalog_uri=f"http://u:{CANARY}@x",
        client_id="a",
        client_secret=CANARY,
        token=CANARY,
        catalog_properties={"header.Authorization": CANARY},
        storage_properties={"secret_access_key": CANARY},
    )
    assert CANARY not in repr(iceberg)
    assert CANARY not in str(iceberg)


def test_a_forked_process_gets_a_connection_of_its_own() -> None:
    mine = id(IcebergResource().table_manager)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, b"same" if id(IcebergResource().table_manager) == mine else b"own")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"own"


@pytest.mark.requirement("S2-FR-046")
def test_a_secret_that_the_launchpad_masked_is_refused_with_the_remedy() -> None:
    masked = IcebergResource(catalog_type="rest", catalog_uri="http://127.0.0.1:1", token="********")

    with pytest.raises(ValidationError, match="Remove 'resources' from the run's configuration"):
        masked.table_manager  # noqa: B018 - the first use looks settings up

"""IO managers built from settings, from artifacts and around a connected catalog, handed straight to Dagster."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from dagster import (
    AssetsDefinition,
    Definitions,
    EnvVar,
    asset,
    build_input_context,
    build_output_context,
    materialize,
)
from pyiceberg.catalog.sql import SqlCatalog

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.errors import EngineCapabilityError, NoSuchTableError, SchemaEvolutionError, ValidationError
from floe_dagster_iceberg.io_managers.create import create_io_manager, create_io_manager_from_artifacts
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager, IcebergIOManager
from floe_dagster_iceberg.models import CommitStrategy, IcebergIOManagerConfig, WriteMode
from floe_dagster_iceberg.resources import IcebergResource


def numbers_asset(**settings: Any) -> AssetsDefinition:
    @asset(**settings)
    def numbers() -> pa.Table:
        return pa.table({"id": [1, 2]})

    return numbers


def sqlite(folder: Path) -> dict[str, str]:
    return {"catalog_uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("live", uri=f"sqlite:///{tmp_path}/live.db", warehouse=f"file://{tmp_path}/live")
    yield catalog
    catalog.close()


@pytest.mark.requirement("S4-create_io_manager", "S0-I1", "S0-F2", "S2-FR-037")
def test_it_goes_straight_into_definitions(tmp_path: Path) -> None:
    io_manager = create_io_manager(IcebergIOManagerConfig(**sqlite(tmp_path), default_namespace="bronze"))
    definitions = Definitions(
        assets=[numbers_asset(io_manager_key="iceberg_io_manager")], resources={"iceberg_io_manager": io_manager}
    )

    assert definitions.resolve_implicit_global_asset_job_def().execute_in_process().success
    assert io_manager.table_manager.scan("bronze.numbers").to_pydict() == {"id": [1, 2]}


@pytest.mark.requirement("S4-create_io_manager", "S0-F2")
def test_a_connected_catalog_survives_dagsters_configuration(catalog: SqlCatalog) -> None:
    io_manager = create_io_manager(IcebergIOManagerConfig(), catalog)
    definitions = Definitions(assets=[numbers_asset()], resources={"io_manager": io_manager})

    for _ in range(2):
        assert definitions.resolve_implicit_global_asset_job_def().execute_in_process().success

    assert catalog.load_table("public.numbers").scan().to_arrow().num_rows == 4
    assert io_manager.table_manager.catalog is catalog
    assert io_manager.iceberg.health_check().healthy


def test_a_connected_catalog_is_of_no_use_to_another_process(catalog: SqlCatalog) -> None:
    iceberg = create_io_manager(IcebergIOManagerConfig(), catalog).iceberg
    elsewhere = pickle.loads(pickle.dumps(iceberg)).model_copy(update={"handle": "of another process"})  # noqa: S301

    with pytest.raises(ValidationError, match=r"'live' is an object of another process.*in-process executor"):
        _ = elsewhere.table_manager
    with pytest.raises(EngineCapabilityError, match="which Spark cannot use"):
        iceberg.spark_conf()


@pytest.mark.requirement("S4-IOMConfig", "S1-T077/82-88")
def test_every_setting_reaches_the_io_manager() -> None:
    io_manager = create_io_manager(
        IcebergIOManagerConfig(
            default_namespace="bronze",
            write_mode=WriteMode.OVERWRITE,
            commit_strategy=CommitStrategy.MERGE_COMMIT,
            table_name_pattern="raw_{asset_key}",
            schema_evolution_enabled=False,
            auto_create_tables=False,
            partition_column="day",
            rows_outside_partition="drop",
            column_projection_enabled=False,
        )
    )

    assert io_manager.write_mode is WriteMode.OVERWRITE
    assert io_manager.commit_strategy is CommitStrategy.MERGE_COMMIT
    assert not io_manager.schema_evolution_enabled
    assert not io_manager.auto_create_tables
    assert io_manager.partition_column == "day"
    assert io_manager.rows_outside_partition == "drop"
    assert not io_manager.column_projection_enabled
    assert io_manager.get_table_identifier(build_output_context(asset_key="orders")) == "bronze.raw_orders"


def test_a_table_is_not_made_when_its_columns_may_not_come_from_the_data() -> None:
    assert not create_io_manager(IcebergIOManagerConfig(infer_schema_from_data=False)).auto_create_tables


@pytest.mark.requirement("S4-create_io_manager")
@pytest.mark.parametrize(
    ("uri", "catalog_type"),
    [
        (None, "sql"),
        ("postgresql+psycopg2://me@db/iceberg", "sql"),
        ("https://catalog.example.com/iceberg", "rest"),
        ("http://polaris:8181/api/catalog/", "polaris"),
    ],
)
def test_the_uri_decides_the_catalog_type(uri: str | None, catalog_type: str) -> None:
    io_manager = create_io_manager(IcebergIOManagerConfig(catalog_uri=uri, client_id="me", client_secret="hush-hush"))

    assert io_manager.iceberg.catalog_type == catalog_type
    assert io_manager.iceberg.client_secret == "hush-hush"
    assert "hush-hush" not in repr(io_manager)


ARTIFACTS = {
    "version": "0.2.0",
    "metadata": {"product_name": "shop", "product_version": "1.0.0"},
}


@pytest.mark.requirement("S4-from_artifacts")
def test_artifacts_in_a_file_name_catalog_and_namespace(tmp_path: Path) -> None:
    folder = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    file = tmp_path / ".floe" / "compiled_artifacts.json"
    file.parent.mkdir()
    plugins = {"catalog": {"type": "sql", "config": folder}}
    file.write_text(json.dumps({**ARTIFACTS, "plugins": plugins}))

    io_manager = create_io_manager_from_artifacts(CompiledArtifacts.from_json_file(file))
    materialize([numbers_asset()], resources={"io_manager": io_manager})

    assert io_manager.table_manager.scan("shop.numbers").num_rows == 2
    assert create_io_manager_from_artifacts(file).iceberg.catalog_uri == folder["uri"]


@pytest.mark.requirement("S4-from_artifacts")
def test_artifacts_without_a_catalog_are_refused() -> None:
    with pytest.raises(ValidationError, match="name no catalog"):
        create_io_manager_from_artifacts({**ARTIFACTS, "plugins": {}})


@pytest.mark.requirement("S4-IOM-fields")
def test_connection_settings_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_URI", sqlite(tmp_path)["catalog_uri"])
    iceberg = IcebergResource(catalog_uri=EnvVar("CATALOG_URI"), warehouse=sqlite(tmp_path)["warehouse"])

    materialize([numbers_asset()], resources={"io_manager": IcebergIOManager(iceberg=iceberg)})

    assert (tmp_path / "catalog.db").exists()
    assert iceberg.table_manager.scan("public.numbers").num_rows == 2


@pytest.mark.requirement("S4-IOM-fields")
def test_fields_have_the_documented_defaults() -> None:
    io_manager = IcebergIOManager(iceberg=IcebergResource())

    assert io_manager.write_mode is WriteMode.APPEND
    assert io_manager.schema_evolution_enabled
    assert io_manager.auto_create_tables
    assert io_manager.partition_column is None
    assert io_manager.commit_strategy is CommitStrategy.FAST_APPEND
    assert io_manager.rows_outside_partition == "error"
    assert io_manager.iceberg.default_namespace == "public"


@pytest.fixture
def io_manager(tmp_path: Path) -> ArrowIcebergIOManager:
    return ArrowIcebergIOManager(iceberg=IcebergResource(**sqlite(tmp_path)))


@pytest.mark.requirement("S3-3b", "S4-get_table_identifier")
@pytest.mark.parametrize(
    ("key", "table"),
    [
        (["customers"], "public.customers"),
        (["bronze", "raw_events"], "bronze.raw_events"),
        (["gold", "metrics", "daily"], "gold.metrics_daily"),
    ],
)
def test_an_asset_key_names_the_table(io_manager: ArrowIcebergIOManager, key: list[str], table: str) -> None:
    upstream = build_output_context(asset_key=key)

    assert io_manager.get_table_identifier(upstream) == table
    assert io_manager.get_table_identifier(build_input_context(asset_key=key, upstream_output=upstream)) == table


@pytest.mark.requirement("S4-get_table_identifier")
def test_metadata_wins_over_the_asset_key(io_manager: ArrowIcebergIOManager) -> None:
    named = build_output_context(asset_key=["a", "b"], definition_metadata={"schema": "sales", "table": "orders"})

    assert io_manager.get_table_identifier(named) == "sales.orders"


@pytest.mark.requirement("S4-handle_output", "S4-load_input", "S3-3")
def test_it_can_be_called_without_a_run(io_manager: ArrowIcebergIOManager) -> None:
    for number in (1, 2):
        output = build_output_context(asset_key="numbers")
        io_manager.handle_output(output, pd.DataFrame({"id": [number]}))

    loaded = io_manager.load_input(build_input_context(asset_key="numbers", upstream_output=output))

    assert sorted(loaded["id"].to_pylist()) == [1, 2]
    assert output.get_logged_metadata()["dagster/row_count"].value == 2


@pytest.mark.requirement("S4-handle_output", "S4-load_input", "S4-errors")
def test_without_a_run_our_own_errors_are_raised(io_manager: ArrowIcebergIOManager) -> None:
    first, second = (build_output_context(asset_key="numbers") for _ in range(2))
    with pytest.raises(NoSuchTableError):
        io_manager.load_input(build_input_context(asset_key="numbers", upstream_output=first))
    io_manager.handle_output(first, pa.table({"id": [1]}))
    with pytest.raises(SchemaEvolutionError):
        io_manager.handle_output(second, pa.table({"id": ["one"]}))

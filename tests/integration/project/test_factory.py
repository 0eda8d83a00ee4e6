"""`create_iceberg_resources()`: from artifacts to a code location."""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    Definitions,
    Failure,
    MaterializeResult,
    asset,
    in_process_executor,
    multi_asset,
)
from support.maintenance_lake import GROUP, NeglectedLake, metadata_of, run_asset

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.factory import IcebergBundle, create_iceberg_resources
from floe_dagster_iceberg.kubernetes import K8S_CONFIG_TAG
from floe_dagster_iceberg.models import ExpiryPolicy, MaintenancePolicy

ROOT = Path(__file__).resolve().parents[3]
KEYS = {"iceberg", "pyspark", "iceberg_io_manager", "iceberg_arrow_io_manager", "iceberg_spark_io_manager"}
MAINTENANCE = ["table_health", "retention", "compaction", "snapshot_expiry", "manifests", "orphan_files"]


@asset(key=["bronze", "orders"], io_manager_key="iceberg_io_manager", op_tags={"team": "shop"})
def orders() -> pa.Table:
    return pa.table({"id": [1, 2]})


@asset(io_manager_key="iceberg_arrow_io_manager", ins={}, deps=[orders])
def customers() -> pa.Table:
    return pa.table({"id": [3]})


@pytest.fixture
def neglected(tmp_path: Path) -> NeglectedLake:
    (tmp_path / "lake").mkdir()
    return NeglectedLake(tmp_path / "lake")


@pytest.mark.requirement("D5", "S0-F3", "S1-HEAD-T108-118")
def test_one_call_from_a_json_file_gives_a_pipeline_that_writes_and_maintains(
    neglected: NeglectedLake, tmp_path: Path
) -> None:
    file = tmp_path / "compiled_artifacts.json"
    file.write_text(json.dumps(neglected.artifacts()))
    definitions = create_iceberg_resources(file, assets=[orders, customers]).definitions()

    run = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        asset_selection=[orders.key, customers.key]
    )

    assert run.success
    assert neglected.ids("bronze.orders") == [1, 2]
    # The product's slug is the namespace of assets whose key has one part.
    assert neglected.ids("shop.customers") == [3]
    health = metadata_of(run_asset(definitions, "table_health"), "table_health")
    assert (health["iceberg/tables"], health["iceberg/files"]) == (2, 2)


@pytest.mark.requirement("D5", "D6")
def test_the_bundle_holds_everything_of_maintenance(neglected: NeglectedLake) -> None:
    bundle = create_iceberg_resources(neglected.artifacts(), assets=[orders])

    keys = {spec.key for spec in bundle.definitions().resolve_all_asset_specs()}
    assert keys == {orders.key, *(AssetKey([GROUP, name]) for name in MAINTENANCE)}
    assert len(bundle.jobs) == len(bundle.schedules) == len(MAINTENANCE)
    assert [len(bundle.asset_checks), len(bundle.sensors)] == [1, 1]


@pytest.mark.requirement("D5", "S1-HEAD-T108-118")
def test_the_bundle_is_a_mapping_over_its_resources(neglected: NeglectedLake) -> None:
    bundle = create_iceberg_resources(neglected.artifacts())

    assert isinstance(bundle, Mapping)
    assert set(bundle) == KEYS
    assert len(bundle) == len(KEYS)
    assert bundle["iceberg"] is bundle.resources["iceberg"]
    assert Definitions(assets=[orders], resources={**bundle}).resolve_implicit_global_asset_job_def()


@pytest.mark.parametrize("form", ["object", "dict", "path", "text of a path", "json text"])
def test_artifacts_come_in_any_form(form: str, neglected: NeglectedLake, tmp_path: Path) -> None:
    file = tmp_path / "artifacts.json"
    file.write_text(json.dumps(neglected.artifacts()))
    given: dict[str, Any] = {
        "object": CompiledArtifacts.from_json_file(file),
        "dict": neglected.artifacts(),
        "path": file,
        "text of a path": str(file),
        "json text": file.read_text(),
    }

    assert create_iceberg_resources(given[form])["iceberg"].default_namespace == "shop"


@pytest.mark.requirement("D9", "S0-F4")
def test_without_artifacts_there_is_the_embedded_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "home"))
    definitions = create_iceberg_resources(assets=[orders]).definitions()
    assert not (tmp_path / "home").exists()

    assert definitions.resolve_implicit_global_asset_job_def().execute_in_process(asset_selection=[orders.key]).success
    assert (tmp_path / "home" / "catalog.db").is_file()


@pytest.mark.requirement("S0-F4", "S1-HEAD-T108-118")
def test_artifacts_without_a_catalog_give_an_empty_bundle_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bundle = create_iceberg_resources({"plugins": {"compute": {"type": "duckdb"}}}, assets=[orders])

    assert "name no catalog" in caplog.text
    assert not bundle
    assert bundle.definitions().resolve_all_asset_specs() == []


@pytest.mark.requirement("S0-F4", "S2-E1")
def test_a_catalog_that_is_named_and_broken_is_an_error_at_execution_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    broken = {"uri": f"sqlite:///{tmp_path}/file/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    artifacts = {"plugins": {"catalog": {"type": "sql", "config": broken}}}
    definitions = create_iceberg_resources(artifacts, assets=[orders]).definitions()

    job = definitions.resolve_implicit_global_asset_job_def()
    with pytest.raises(Failure):
        job.execute_in_process(asset_selection=[orders.key])
    with pytest.raises(Failure):
        definitions.resolve_job_def(f"{GROUP}_table_health_job").execute_in_process()


def test_an_unknown_plugin_is_an_error_at_execution_only() -> None:
    artifacts = {"plugins": {"catalog": {"type": "no_such_catalog"}}}

    definitions = create_iceberg_resources(artifacts, assets=[orders]).definitions()

    assert definitions.get_repository_def()


def test_a_second_code_location_leaves_maintenance_to_the_first(neglected: NeglectedLake) -> None:
    bundle = create_iceberg_resources(neglected.artifacts(), assets=[orders], maintenance=False)

    assert [spec.key for spec in bundle.definitions().resolve_all_asset_specs()] == [orders.key]
    assert (bundle.jobs, bundle.schedules, bundle.sensors) == ((), (), ())
    assert len(bundle.asset_checks) == 1


def test_artifacts_that_cannot_be_read_are_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot be read"):
        create_iceberg_resources(tmp_path / "missing.json")


@pytest.mark.requirement("S0-I2", "S2-FR-024", "S2-C5")
def test_governance_decides_what_the_expiry_asset_keeps(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=6)
    # 36 milliseconds in hours, which takes switching off the package's own floor of a day.
    governance = {"default_ttl_hours": 0.00001, "snapshot_keep_last": 3}
    maintenance = {"expiry": {"overrides": ["expiry_age"]}}
    definitions = create_iceberg_resources(
        neglected.artifacts(governance=governance, maintenance=maintenance)
    ).definitions()

    metadata = metadata_of(run_asset(definitions, "snapshot_expiry"), "snapshot_expiry")

    assert neglected.snapshots("bronze.orders") == 3
    assert "| expiry.max_age | 0.036 seconds | governance |" in metadata["iceberg/policy"]
    assert "| expiry.min_snapshots_to_keep | 3 | governance |" in metadata["iceberg/policy"]


@pytest.mark.requirement("S2-FR-024")
def test_strict_governance_refuses_a_shorter_policy_when_definitions_are_built(neglected: NeglectedLake) -> None:
    artifacts = neglected.artifacts(governance={"default_ttl_hours": 240, "policy_enforcement_level": "strict"})

    with pytest.raises(ValidationError, match="governance requires 10 days"):
        create_iceberg_resources(artifacts, policy=MaintenancePolicy(expiry=ExpiryPolicy(max_age=timedelta(days=2))))


@pytest.mark.requirement("S2-FR-024")
def test_strict_governance_fails_only_the_table_that_asks_for_less(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.good", files=2)
    neglected.fill("bronze.hasty", files=2, properties={"floe.maintenance.expiry.max-age": "2d"})
    artifacts = neglected.artifacts(governance={"default_ttl_hours": 240, "policy_enforcement_level": "strict"})

    run = run_asset(create_iceberg_resources(artifacts).definitions(), "snapshot_expiry")

    metadata = metadata_of(run, "snapshot_expiry")
    assert metadata["iceberg/tables_failed"] == 1
    assert "governance requires 10 days" in metadata["iceberg/results"]


@pytest.mark.requirement("S2-FR-024")
def test_governance_that_only_warns_does_so_when_definitions_are_built(
    neglected: NeglectedLake, caplog: pytest.LogCaptureFixture
) -> None:
    governance = {"default_ttl_hours": 240, "policy_enforcement_level": "warn"}

    create_iceberg_resources(neglected.artifacts(governance=governance, maintenance={"expiry": {"max_age": "2d"}}))

    assert "governance requires 10 days" in caplog.text


@pytest.mark.requirement("D5")
def test_assets_get_their_table_kind_and_check(neglected: NeglectedLake) -> None:
    graph = create_iceberg_resources(neglected.artifacts(), assets=[orders]).definitions().resolve_asset_graph()

    node = graph.get(orders.key)
    assert node.metadata["dagster/table_name"].value == "bronze.orders"
    assert "iceberg" in node.kinds
    assert {key.name for key in node.check_keys} == {"iceberg_table_health"}


def test_what_an_asset_says_of_itself_stays(neglected: NeglectedLake) -> None:
    @asset(pool="mine", op_tags={"team": "shop"}, retry_policy=None, description="Mine.", code_version="7")
    def mine() -> pa.Table:
        return pa.table({"id": [1]})

    [described] = [
        each
        for each in create_iceberg_resources(neglected.artifacts(), assets=[mine]).assets
        if isinstance(each, AssetsDefinition) and each.key == mine.key
    ]

    assert described.op.pool == "mine"
    assert described.op.tags["team"] == "shop"
    assert described.get_asset_spec().code_version == "7"


@pytest.mark.requirement("D8")
def test_pod_sizes_reach_data_assets_maintenance_assets_and_jobs(neglected: NeglectedLake) -> None:
    presets = {"default": {"cpu": "250m"}, "compaction": {"memory": "4Gi"}}
    artifacts = neglected.artifacts(resource_presets=presets, executor={"type": "k8s_job_executor"})
    bundle = create_iceberg_resources(artifacts, assets=[orders])

    ops = {each.op.name: each.op.tags for each in bundle.assets if isinstance(each, AssetsDefinition)}
    steps = bundle.executor.apply_config_mapping({"config": {}}).value["config"]["per_step_k8s_config"]
    assert steps.keys() == {"bronze__orders", "bronze__orders_iceberg_table_health"}
    assert all("250m" in str(step) for step in steps.values())
    assert "4Gi" in str(ops[f"{GROUP}__compaction"][K8S_CONFIG_TAG])
    jobs = {job.name: job.tags for job in bundle.jobs}
    assert "4Gi" in str(jobs[f"{GROUP}_compaction_job"][K8S_CONFIG_TAG])


@pytest.mark.requirement("D8")
def test_the_executor_of_the_artifacts_is_the_bundles(neglected: NeglectedLake) -> None:
    bundle = create_iceberg_resources(neglected.artifacts(executor={"type": "in_process"}))

    assert bundle.executor is in_process_executor
    assert bundle.definitions().executor is in_process_executor
    assert create_iceberg_resources(neglected.artifacts()).executor is None


def test_two_assets_on_one_table_are_refused(neglected: NeglectedLake) -> None:
    @asset(key=["silver", "x"], metadata={"schema": "bronze"})
    def first() -> None: ...

    @asset(key=["bronze", "x"])
    def second() -> None: ...

    with pytest.raises(ValidationError, match="would both be stored in 'bronze"):
        create_iceberg_resources(neglected.artifacts(), assets=[first, second])


def test_specs_and_multi_assets_are_described_too(neglected: NeglectedLake) -> None:
    @multi_asset(specs=[AssetSpec(["gold", "a"]), AssetSpec(["gold", "b"])])
    def several() -> Any:
        yield MaterializeResult(asset_key=["gold", "a"])

    bundle = create_iceberg_resources(neglected.artifacts(), assets=[several, AssetSpec(["raw", "c"])])

    specs = {spec.key.to_user_string(): spec for spec in bundle.definitions().resolve_all_asset_specs()}
    assert [specs[key].metadata["dagster/table_name"].value for key in ("gold/a", "raw/c")] == ["gold.a", "raw.c"]
    assert len(bundle.asset_checks) == 3


@pytest.mark.requirement("D5")
def test_the_definitions_merge_with_others(neglected: NeglectedLake) -> None:
    @asset
    def elsewhere() -> None: ...

    others = Definitions(assets=[elsewhere], resources={"dbt": object()})

    merged = Definitions.merge(others, create_iceberg_resources(neglected.artifacts(), assets=[orders]).definitions())

    assert {"dbt", "iceberg"} <= set(merged.resources or {})
    assert merged.resolve_job_def(f"{GROUP}_compaction_job")


def test_spark_settings_of_the_artifacts_reach_the_spark_resource(neglected: NeglectedLake) -> None:
    artifacts = neglected.artifacts()
    artifacts["plugins"]["compute"] = {
        "type": "spark",
        "config": {"master": "spark://spark:7077", "conf": {"spark.executor.memory": "2g"}},
    }

    spark = create_iceberg_resources(artifacts)["pyspark"]

    assert spark.master == "spark://spark:7077"
    assert spark.spark_config == {"spark.executor.memory": "2g"}


def test_an_empty_bundle_is_false_and_a_full_one_is_not() -> None:
    assert not IcebergBundle()
    assert create_iceberg_resources()


LOAD_UNDER_WATCH = """
import os, sys
import dagster

REACHES_OUT = {"socket.connect", "socket.getaddrinfo", "subprocess.Popen", "sqlite3.connect", "os.mkdir"}

def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if event in REACHES_OUT or (writes and arguments[0] != os.devnull):
        raise SystemExit(f"loading did {event}{arguments}")

sys.addaudithook(watch)
from floe_dagster_iceberg import create_iceberg_resources

@dagster.asset(io_manager_key="iceberg_io_manager")
def orders(): ...

for artifacts in (None, "artifacts.json"):
    definitions = create_iceberg_resources(artifacts, assets=[orders]).definitions()
    assert definitions.get_repository_def().schedule_defs
assert "pyspark" not in sys.modules, "loading imported pyspark"
assert "kubernetes" not in sys.modules, "loading imported the Kubernetes client"
"""


@pytest.mark.requirement("D9", "S2-E1")
def test_loading_connects_to_nothing_and_writes_nothing(tmp_path: Path) -> None:
    polaris = {"uri": "http://127.0.0.1:1", "warehouse": "w", "client_id": "a", "client_secret": "${NOT_SET_ANYWHERE}"}
    (tmp_path / "artifacts.json").write_text(
        json.dumps({"plugins": {"catalog": {"type": "polaris", "config": polaris}, "compute": {"type": "spark"}}})
    )

    run = subprocess.run(
        [sys.executable, "-B", "-c", LOAD_UNDER_WATCH],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["artifacts.json"]

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetSpec,
    asset,
    define_asset_job,
    graph_asset,
    in_process_executor,
    multi_asset,
    multiprocess_executor,
    op,
)
from dagster_k8s import k8s_job_executor
from dagster_k8s.job import get_user_defined_k8s_config

from floe_dagster_iceberg import create_iceberg_resources
from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.kubernetes import K8S_CONFIG_TAG, PRESET_TAG, PodSizes, build_executor
from floe_dagster_iceberg.maintenance.settings import MaintenanceSettings
from floe_dagster_iceberg.models import MaintenanceOperation

FLOE = Path(__file__).resolve().parents[1] / "data" / "floe-0.3.0"
PRESETS = {
    "default": {"cpu": "250m", "memory": "512Mi"},
    "maintenance": {"cpu": 1, "memory": "2Gi"},
    "large": {
        "requests": {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": 1},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": 1},
        "node_selector": {"pool": "batch"},
        "tolerations": [{"key": "batch", "operator": "Exists", "effect": "NoSchedule"}],
    },
}


def artifacts_with(**config: Any) -> CompiledArtifacts:
    return CompiledArtifacts.from_dict({"plugins": {"orchestrator": {"type": "dagster", "config": config}}})


def resources_of(tags: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tags[K8S_CONFIG_TAG]["container_config"]["resources"]
    return found


@pytest.mark.requirement("D8")
def test_a_short_preset_is_both_requested_and_the_limit() -> None:
    assert PodSizes(PRESETS).tags_for("maintenance") == {
        K8S_CONFIG_TAG: {
            "container_config": {
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
            }
        }
    }


@pytest.mark.requirement("D8")
@pytest.mark.parametrize("product", sorted(FLOE.glob("*.json")), ids=lambda path: path.stem)
def test_a_product_that_floe_compiled_takes_presets_as_floe_writes_them(product: Path) -> None:
    compiled = json.loads(product.read_text())
    # Its collector is not here.
    del compiled["observability"]["telemetry"]
    preset = {"cpu_request": "250m", "cpu_limit": "1", "memory_request": "1Gi", "memory_limit": "2Gi"}
    presets = {"maintenance": preset, "small": {"cpu": "500m"}, "bounded": {"memory_limit": "4Gi"}}
    compiled["plugins"]["orchestrator"]["config"]["resource_presets"] = presets
    bundle = create_iceberg_resources(compiled)
    sizes = PodSizes(CompiledArtifacts.from_dict(compiled).resource_presets)

    (job,) = [each for each in bundle.jobs if each.name == "iceberg_maintenance_compaction_job"]
    requested = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
    assert resources_of({K8S_CONFIG_TAG: json.loads(job.tags[K8S_CONFIG_TAG])}) == requested
    assert resources_of(sizes.tags_for("small"))["limits"] == {"cpu": "500m"}
    assert resources_of(sizes.tags_for("bounded")) == {"limits": {"memory": "4Gi"}}


@pytest.mark.requirement("D8")
@pytest.mark.parametrize("preset", PRESETS)
def test_dagster_k8s_reads_the_tag_of_an_op_and_of_a_job(preset: str) -> None:
    tags = PodSizes(PRESETS).tags_for(preset)

    @asset(op_tags=tags)
    def orders() -> None: ...

    job = define_asset_job("orders_job", [AssetKey("orders")], tags=tags)
    for stored in (orders.op.tags, job.tags):
        config = get_user_defined_k8s_config({key: str(value) for key, value in (stored or {}).items()})
        assert config.container_config["resources"] == resources_of(tags)


def test_a_long_preset_also_says_where_its_pods_go() -> None:
    tags = PodSizes(PRESETS).tags_for("large")

    assert resources_of(tags)["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}
    assert tags[K8S_CONFIG_TAG]["pod_spec_config"]["node_selector"] == {"pool": "batch"}


@pytest.mark.requirement("D8")
def test_maintenance_takes_its_own_preset_then_the_one_called_like_it_then_the_common_one() -> None:
    settings = MaintenanceSettings.from_artifacts({"compaction": {"resources": "large"}})
    tags = PodSizes({**PRESETS, "manifests": {"cpu": "3"}}).maintenance_tags(settings)

    assert resources_of(tags[MaintenanceOperation.COMPACTION])["requests"]["memory"] == "8Gi"
    assert resources_of(tags[MaintenanceOperation.MANIFESTS])["requests"] == {"cpu": "3"}
    assert resources_of(tags[MaintenanceOperation.SNAPSHOT_EXPIRY])["requests"]["memory"] == "2Gi"


def test_a_data_asset_names_its_preset_by_a_tag_and_keeps_its_op() -> None:
    @asset(tags={PRESET_TAG: "large"})
    def orders() -> None: ...

    @multi_asset(specs=[AssetSpec("a"), AssetSpec("b")])
    def several() -> tuple[None, None]: ...

    @asset(op_tags={K8S_CONFIG_TAG: {"container_config": {}}})
    def decided() -> None: ...

    @op
    def one() -> int:
        return 1

    @graph_asset
    def graphed() -> Any:
        return one()

    configs = PodSizes(PRESETS).step_configs([orders, several, decided, graphed, AssetSpec("elsewhere")])

    assert configs.keys() == {"orders", "several"}
    assert configs["orders"]["container_config"]["resources"]["requests"]["cpu"] == "2"
    assert configs["several"]["container_config"]["resources"]["requests"]["cpu"] == "250m"
    assert PodSizes({}).step_configs([orders.map_asset_specs(lambda spec: spec.replace_attributes(tags={}))]) == {}


@pytest.mark.requirement("D8")
def test_the_executor_gives_each_step_what_its_asset_gets_unless_its_own_config_says_it() -> None:
    given = {"type": "k8s_job_executor", "config": {"per_step_k8s_config": {"b": {"container_config": {"image": "b"}}}}}
    small = {"container_config": {"resources": {"limits": {"cpu": "1"}}}}

    executor = build_executor(artifacts_with(executor=given), {"a": small, "b": small})

    config = executor.apply_config_mapping({"config": {}}).value["config"]["per_step_k8s_config"]
    assert config["a"]["container_config"] == small["container_config"]
    assert config["b"]["container_config"] == {"image": "b"}
    assert build_executor(artifacts_with(executor={"type": "in_process"}), {"a": small}) is in_process_executor


@pytest.mark.requirement("D8")
def test_a_health_check_gets_as_much_as_the_asset_that_measures_health() -> None:
    @asset(io_manager_key="iceberg_io_manager")
    def orders() -> None: ...

    config = {"executor": {"type": "k8s_job_executor"}, "resource_presets": {"maintenance": {"cpu": "3"}}}
    plugins = {"catalog": {"type": "sql"}, "orchestrator": {"type": "dagster", "config": config}}
    executor = create_iceberg_resources({"plugins": plugins}, assets=[orders]).executor

    assert executor is not None
    sizes = executor.apply_config_mapping({"config": {}}).value["config"]["per_step_k8s_config"]
    assert sizes.keys() == {"orders_iceberg_table_health"}
    assert resources_of({K8S_CONFIG_TAG: sizes["orders_iceberg_table_health"]})["limits"] == {"cpu": "3"}


def test_a_preset_that_is_not_there_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"no resource preset 'huge' .* Known are default, large, maintenance"):
        PodSizes(PRESETS).tags_for("huge")


@pytest.mark.parametrize(
    ("preset", "path"),
    [
        ({"cpu": "lots"}, "resource_presets.x.cpu"),
        ({"memory": "1GB"}, "resource_presets.x.memory"),
        ({"cpu": "1", "limits": {"cpu": "2"}}, "cpu and memory; requests and limits: two ways"),
        ({"cpu": "1", "cpu_limit": "2"}, "two ways to say the same, use one"),
        ({"memory_limit": "1GB"}, "resource_presets.x.memory_limit"),
        ({"cpu_request": "2", "cpu_limit": "1"}, "the cpu request 2 is above its limit 1"),
        ({"gpu": "1"}, "resource_presets.x.gpu"),
        ({"tolerations": [{"key": "batch", "operator": "Is"}]}, r"resource_presets\.x\.tolerations\..*operator"),
        ({"tolerations": [{"effect": "NoExecute"}]}, "without a key needs the operator Exists"),
    ],
)
def test_a_bad_preset_is_named_by_its_path(preset: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationError, match=path):
        PodSizes({"x": preset})


@pytest.mark.requirement("D8")
@pytest.mark.parametrize(
    ("requests", "limits", "sentence"),
    [
        ({"memory": "2Gi"}, {"memory": "2000Mi"}, "the memory request 2Gi is above its limit 2000Mi"),
        ({"memory": "1Gi"}, {"memory": "1G"}, "above its limit 1G"),
        ({"cpu": 2}, {"cpu": "1900m"}, "the cpu request 2 is above its limit 1900m"),
        ({"nvidia.com/gpu": 1}, {}, "nvidia.com/gpu is never shared, so its limit must equal the request, 1"),
        ({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}, "never shared"),
        ({"memory": "512m"}, {}, "thousandths of a byte: write 512Mi"),
    ],
)
def test_what_kubernetes_would_refuse_at_night_is_refused_at_once(
    requests: dict[str, Any], limits: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=rf"resource_presets\.x.*{sentence}"):
        PodSizes({"x": {"requests": requests, "limits": limits}})


@pytest.mark.parametrize(
    ("requests", "limits"),
    [
        ({"memory": "1Gi"}, {"memory": "1024Mi"}),
        ({"memory": "1G"}, {"memory": "1000M"}),
        ({"memory": "1k"}, {"memory": "1Ki"}),
        ({"cpu": 0.5}, {"cpu": "500m"}),
        ({"cpu": "100m"}, {"memory": "1Gi"}),
        ({}, {"nvidia.com/gpu": 1}),
    ],
)
def test_a_request_up_to_its_limit_is_taken(requests: dict[str, Any], limits: dict[str, Any]) -> None:
    sizes = resources_of(PodSizes({"x": {"requests": requests, "limits": limits}}).tags_for("x"))

    assert sizes.get("requests", {}).keys() == requests.keys()


@pytest.mark.parametrize("spelling", ["toleration_seconds", "tolerationSeconds"])
def test_a_toleration_may_be_written_as_kubernetes_does(spelling: str) -> None:
    toleration = {"key": "spot", "operator": "Exists", "effect": "NoExecute", spelling: 60}

    tags = PodSizes({"x": {"cpu": "1", "tolerations": [toleration]}}).tags_for("x")

    [stored] = tags[K8S_CONFIG_TAG]["pod_spec_config"]["tolerations"]
    assert stored["toleration_seconds"] == 60


@pytest.mark.requirement("D8")
@pytest.mark.parametrize(
    ("name", "executor"),
    [
        ("in_process", in_process_executor),
        ("multiprocess", multiprocess_executor),
        ("k8s_job_executor", k8s_job_executor),
    ],
)
def test_the_artifacts_name_the_executor(name: str, executor: Any) -> None:
    assert build_executor(artifacts_with(executor={"type": name})) is executor


@pytest.mark.requirement("D8")
def test_the_executor_takes_its_own_config() -> None:
    executor = build_executor(artifacts_with(executor={"type": "k8s_job_executor", "config": {"max_concurrent": 4}}))

    assert executor is not None
    assert executor.name == k8s_job_executor.name
    assert executor is not k8s_job_executor


def test_without_an_executor_dagster_decides() -> None:
    assert build_executor(artifacts_with()) is None


def test_an_unknown_executor_is_an_error_with_its_path() -> None:
    with pytest.raises(ValidationError, match=r"plugins\.orchestrator\.config\.executor\.type"):
        build_executor(artifacts_with(executor={"type": "celery"}))


@pytest.mark.requirement("D9")
def test_no_kubernetes_client_is_loaded_unless_its_executor_is_asked_for() -> None:
    code = (
        "import sys\nfrom floe_dagster_iceberg.artifacts import CompiledArtifacts\n"
        "from floe_dagster_iceberg.kubernetes import PodSizes, build_executor\n"
        "PodSizes({'default': {'cpu': '1'}}).tags_for(None)\n"
        "build_executor(CompiledArtifacts())\n"
        "assert 'kubernetes' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr

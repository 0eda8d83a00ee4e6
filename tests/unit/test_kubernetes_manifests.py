"""What dagster-k8s makes of our tags, judged by Kubernetes' own schemas."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dagster_k8s import DagsterK8sJobConfig, construct_dagster_k8s_job
from dagster_k8s.job import UserDefinedDagsterK8sConfig
from kubernetes.client import ApiClient
from sqlalchemy import create_engine

from floe_dagster_iceberg import CompiledArtifacts
from floe_dagster_iceberg.kubernetes import K8S_CONFIG_TAG, PodSizes

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VALUES: dict[str, Any] = yaml.safe_load((DEPLOY / "values.yaml").read_text())
# One that is in use today; the schemas of all versions since 1.25 come with the package.
KUBERNETES_VERSION = "1.31"
PRESETS: dict[str, Any] = {
    "short": {"cpu": "250m", "memory": "512Mi"},
    "whole": {"cpu": 2, "memory": "2Gi"},
    "long": {
        "requests": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": 1},
        "limits": {"memory": "2Gi", "nvidia.com/gpu": 1},
        "node_selector": {"pool": "batch"},
        "tolerations": [{"key": "batch", "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 60}],
    },
    "placed": {"tolerations": [{"operator": "Exists"}], "node_selector": {"disk": "ssd"}},
}
pytestmark = pytest.mark.requirement("D8")


def job_with(config: dict[str, Any]) -> dict[str, Any]:
    """The Job that the run launcher and the executor post for a tag `dagster-k8s/config`."""
    job = construct_dagster_k8s_job(
        DagsterK8sJobConfig(job_image="shop:1", dagster_home="/opt/dagster", instance_config_map="instance"),
        ["dagster", "api", "execute_step"],
        "dagster-step-1",
        user_defined_k8s_config=UserDefinedDagsterK8sConfig.from_dict(config),
    )
    manifest: dict[str, Any] = ApiClient().sanitize_for_serialization(job)
    return manifest


def check(manifest: dict[str, Any]) -> None:
    """Hold a manifest against Kubernetes' own schema. Strict: an unknown field is refused, not dropped."""
    kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_job_of_a_preset_is_one_that_kubernetes_takes(preset: str) -> None:
    check(job_with(PodSizes(PRESETS).tags_for(preset)[K8S_CONFIG_TAG]))


def test_the_job_has_the_size_and_the_place_of_its_preset() -> None:
    pod = job_with(PodSizes(PRESETS).tags_for("long")[K8S_CONFIG_TAG])["spec"]["template"]["spec"]

    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "2Gi", "nvidia.com/gpu": "1"},
    }
    assert pod["nodeSelector"] == {"pool": "batch"}
    assert pod["tolerations"] == [
        {"key": "batch", "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 60}
    ]


@pytest.mark.parametrize("file", sorted(file.name for file in DEPLOY.glob("*.yaml") if file.name != "values.yaml"))
def test_the_manifests_of_deploy_are_ones_that_kubernetes_takes(file: str) -> None:
    manifests = list(yaml.safe_load_all((DEPLOY / file).read_text()))

    assert manifests
    for manifest in manifests:
        check(manifest)


@pytest.mark.parametrize("file", ["artifacts.yaml", "spark-on-kubernetes.yaml"])
def test_the_presets_of_the_sample_artifacts_are_ones_that_kubernetes_takes(file: str) -> None:
    [config_map] = [each for each in yaml.safe_load_all((DEPLOY / file).read_text()) if each["kind"] == "ConfigMap"]
    sizes = PodSizes(CompiledArtifacts.from_dict(config_map).resource_presets)

    for preset in ("default", "spark", "maintenance"):
        check(job_with(sizes.tags_for(preset)[K8S_CONFIG_TAG]))


def test_the_driver_that_the_values_name_for_dagsters_database_is_one_that_is_there() -> None:
    scheme = VALUES["postgresql"]["postgresqlScheme"]

    assert create_engine(f"{scheme}://dagster:password@127.0.0.1/dagster").driver == "psycopg2"


def test_the_code_server_with_and_without_the_chart_has_the_same_secrets_and_volumes() -> None:
    _, deployment = yaml.safe_load_all((DEPLOY / "user-code.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    handed_on = json.loads(variables["DAGSTER_CONTAINER_CONTEXT"])["k8s"]
    [by_chart] = VALUES["dagster-user-deployments"]["deployments"]

    assert handed_on["env_secrets"] == [secret["name"] for secret in by_chart["envSecrets"]]
    assert handed_on["volumes"] == pod["volumes"] == by_chart["volumes"]
    assert handed_on["volume_mounts"] == container["volumeMounts"] == by_chart["volumeMounts"]

"""What Dagster's Helm chart makes of our values, as far as pods depend on it.

Written after the templates of the chart (`_run-launcher.tpl`, `k8sContainerContext`): there is no chart in
any package registry. Keys that the chart does not know are an error here as they are there.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

VALUES = Path(__file__).resolve().parents[2] / "deploy" / "values.yaml"
# The keys of a user-code deployment and of the run launcher in the chart's schema.
DEPLOYMENT_KEYS = frozenset(
    re.findall(
        r"\w+",
        "name image port dagsterApiGrpcArgs codeServerArgs includeConfigInLaunchedRuns env envConfigMaps envSecrets "
        "annotations nodeSelector affinity tolerations podSecurityContext securityContext resources livenessProbe "
        "readinessProbe startupProbe labels volumeMounts volumes schedulerName initContainers sidecarContainers "
        "deploymentStrategy serviceAccount",
    )
)
LAUNCHER_KEYS = frozenset(
    re.findall(
        r"\w+",
        "image imagePullPolicy jobNamespace loadInclusterConfig kubeconfigFile envConfigMaps envSecrets envVars "
        "volumeMounts volumes labels failPodOnRunFailure resources schedulerName securityContext runK8sConfig",
    )
)
RUN_CONFIG_KEYS = {
    "containerConfig": "container_config",
    "podSpecConfig": "pod_spec_config",
    "podTemplateSpecMetadata": "pod_template_spec_metadata",
    "jobSpecConfig": "job_spec_config",
    "jobMetadata": "job_metadata",
}


def load_values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(VALUES.read_text())
    return values


def deployment_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The one user-code deployment."""
    [deployment] = values["dagster-user-deployments"]["deployments"]
    assert deployment.keys() <= DEPLOYMENT_KEYS
    return dict(deployment)


def container_context(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """What the code server hands on to run and step pods."""
    return {
        "k8s": {
            "image_pull_policy": deployment["image"]["pullPolicy"],
            "env_secrets": [secret["name"] for secret in deployment["envSecrets"]],
            "volume_mounts": deployment["volumeMounts"],
            "volumes": deployment["volumes"],
            "resources": deployment["resources"],
            "namespace": "dagster",
            "service_account_name": "dagster",
            "env": deployment["env"],
            "run_k8s_config": {"pod_spec_config": {"automount_service_account_token": True}},
        }
    }


def run_launcher(values: Mapping[str, Any], *, kubeconfig: Path, dagster_home: Path) -> dict[str, Any]:
    """The run launcher in `dagster.yaml`; outside of a cluster it needs a kubeconfig."""
    launcher = values["runLauncher"]["config"]["k8sRunLauncher"]
    assert values["runLauncher"]["type"] == "K8sRunLauncher"
    assert launcher.keys() <= LAUNCHER_KEYS
    config = {
        "load_incluster_config": False,
        "kubeconfig_file": str(kubeconfig),
        "job_namespace": "dagster",
        "image_pull_policy": launcher["imagePullPolicy"],
        "service_account_name": "dagster",
        "dagster_home": str(dagster_home),
        "instance_config_map": "dagster-instance",
        "postgres_password_secret": values["global"]["postgresqlSecretName"],
        "security_context": launcher["securityContext"],
        "run_k8s_config": {RUN_CONFIG_KEYS[key]: value for key, value in launcher["runK8sConfig"].items()},
    }
    return {"module": "dagster_k8s", "class": "K8sRunLauncher", "config": config}

"""A run on Kubernetes as deploy/ sets it up: the launcher's Job, the executor's Jobs, and what comes of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from support.helm_chart import container_context, deployment_of, load_values, run_launcher
from support.processes import wait_until
from support.small_cluster import SmallCluster, small_cluster

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
DEFINITIONS = """
import dagster as dg
import pyarrow as pa

from floe_dagster_iceberg import CompiledArtifacts, create_iceberg_resources


@dg.asset(tags={"floe/resources": "spark"}, io_manager_key="iceberg_io_manager")
def orders() -> pa.Table:
    return pa.table({"id": [1, 2, 3]})


iceberg = create_iceberg_resources(CompiledArtifacts.from_environment(), assets=[orders])
health = next(each for each in iceberg.assets if each.key.path[-1] == "table_health")
everything = dg.define_asset_job("everything", [orders.key, health.key])
defs = dg.Definitions.merge(iceberg.definitions(), dg.Definitions(jobs=[everything]))
"""
# The asset names its preset by a tag; what looks after its table takes that of maintenance.
STEPS = {
    "orders": {"cpu": "2", "memory": "4Gi"},
    "orders_iceberg_table_health": {"cpu": "1", "memory": "4Gi"},
    "iceberg_maintenance__table_health": {"cpu": "1", "memory": "4Gi"},
}
# No daemon that takes runs from a queue.
AT_ONCE = {"module": "dagster.core.run_coordinator", "class": "DefaultRunCoordinator"}

pytestmark = [pytest.mark.slow, pytest.mark.requirement("D8")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's code, Dagster's home, and the ConfigMap of the sample, on a catalog of this machine."""
    folder = tmp_path_factory.mktemp("cluster")
    for name in ("app", "dagster", "etc", "scratch"):
        (folder / name).mkdir()
    (folder / "app" / "definitions.py").write_text(DEFINITIONS)
    config_map = yaml.safe_load((DEPLOY / "artifacts.yaml").read_text())
    artifacts = json.loads(config_map["data"]["compiled_artifacts.json"])
    artifacts["plugins"]["catalog"] = {"type": "sql", "config": {"uri": f"sqlite:///{folder}/catalog.db"}}
    artifacts["plugins"]["storage"] = {"type": "local", "config": {"warehouse": str(folder / "warehouse")}}
    (folder / "etc" / "compiled_artifacts.json").write_text(json.dumps(artifacts))
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[SmallCluster]:
    """The cluster after one run: launched from a code server, done by pods."""
    values = load_values()
    deployment = deployment_of(values)
    volumes = {"artifacts": folder / "etc", "scratch": folder / "scratch", "polaris": folder / "scratch"}
    with small_cluster(folder, secrets={"minio": {}}, volumes=volumes) as cluster:
        launcher = run_launcher(values, kubeconfig=cluster.kubeconfig, dagster_home=folder / "dagster")
        settings = {"run_launcher": launcher, "run_coordinator": AT_ONCE}
        (folder / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(settings))
        _launch(folder, deployment)
        wait_until(lambda: cluster.finished, seconds=240, what="The end of the run's pods")
        yield cluster


def _launch(folder: Path, deployment: dict[str, Any]) -> None:
    image = deployment["image"]
    environment = {
        "DAGSTER_HOME": str(folder / "dagster"),
        "DAGSTER_CURRENT_IMAGE": f"{image['repository']}:{image['tag']}",
        "DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT": json.dumps(container_context(deployment)),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "FLOE_ARTIFACTS": str(folder / "etc" / "compiled_artifacts.json"),
    }
    dagster, code = Path(sys.executable).with_name("dagster"), folder / "app" / "definitions.py"
    run = subprocess.run(
        [dagster, "job", "launch", "-f", code, "-j", "everything"],
        cwd=folder / "app",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


def test_kubernetes_takes_every_job_and_the_run_writes_its_table(cluster: SmallCluster, folder: Path) -> None:
    assert cluster.refused == []
    assert len(cluster.jobs) == 1 + len(STEPS), cluster.logs()
    catalog = SqlCatalog("floe", uri=f"sqlite:///{folder}/catalog.db")
    assert catalog.load_table("shop.orders").scan().to_arrow().num_rows == 3, cluster.logs()
    catalog.close()


@pytest.mark.parametrize(("step", "size"), STEPS.items())
def test_a_step_has_the_size_of_its_preset(cluster: SmallCluster, step: str, size: dict[str, str]) -> None:
    container = cluster.container("step_worker", op=step)

    assert container["resources"] == {"requests": size, "limits": size}


@pytest.mark.parametrize("component", ["run_worker", "step_worker"])
def test_every_pod_has_the_image_the_mounts_and_the_rights_of_the_values(cluster: SmallCluster, component: str) -> None:
    container = cluster.container(component, **({"op": "orders"} if component == "step_worker" else {}))

    assert container["image"] == "shop:1"
    assert container["envFrom"] == [{"secretRef": {"name": "minio"}}]
    assert {"/etc/floe", "/var/run/secrets/polaris", "/scratch"} <= {
        mount["mountPath"] for mount in container["volumeMounts"]
    }
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_pods_run_as_the_user_of_the_image_and_go_after_a_day(cluster: SmallCluster) -> None:
    for job in cluster.jobs.values():
        assert job["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 1000
        assert job["spec"]["ttlSecondsAfterFinished"] == 86_400

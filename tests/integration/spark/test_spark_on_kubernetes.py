"""Spark with executors that are pods: what the driver posts, judged by Kubernetes' own schemas."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.processes import running, wait_until
from support.small_cluster import SmallCluster, small_cluster

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
DRIVER = """
import sys
import time
from floe_dagster_iceberg import create_iceberg_resources

session = create_iceberg_resources(sys.argv[1])["pyspark"].spark_session
time.sleep(180)  # the test ends it before
"""

pytestmark = [pytest.mark.slow, pytest.mark.requirement("D7")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    """The cluster after a driver asked it for executors, by the artifacts of deploy/."""
    folder = tmp_path_factory.mktemp("spark")
    manifests = yaml.safe_load_all((DEPLOY / "spark-on-kubernetes.yaml").read_text())
    [config_map] = [each for each in manifests if each["kind"] == "ConfigMap"]
    artifacts = json.loads(config_map["data"]["compiled_artifacts.json"])
    artifacts["plugins"] |= {"catalog": {"type": "sql", "config": {"uri": f"sqlite:///{folder}/catalog.db"}}}
    del artifacts["plugins"]["storage"]
    with small_cluster(folder) as cluster:
        address = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        artifacts["plugins"]["compute"]["config"]["master"] = f"k8s://{address}"
        (folder / "artifacts.json").write_text(json.dumps(artifacts))
        # What values.yaml takes from the pod.
        environment = {"SPARK_LOCAL_HOSTNAME": "127.0.0.1", "KUBECONFIG": str(cluster.kubeconfig)}
        command = [sys.executable, "-c", DRIVER, str(folder / "artifacts.json")]
        with running(command, folder / "driver.log", environment) as driver:
            wait_until(lambda: _asked(cluster, driver), seconds=180, what="Spark's executors")
            yield cluster


def _asked(cluster: SmallCluster, driver: "subprocess.Popen[bytes]") -> bool:
    assert driver.poll() is None, cluster.logs()
    return len(cluster.pods) + len(cluster.refused) >= 3


def test_kubernetes_takes_the_executors(cluster: SmallCluster) -> None:
    assert cluster.refused == []
    assert len(cluster.pods) == 3


def test_an_executor_has_the_size_and_the_account_of_the_artifacts(cluster: SmallCluster) -> None:
    pod = next(iter(cluster.pods.values()))["spec"]
    [container] = pod["containers"]

    assert pod["serviceAccountName"] == "spark"
    assert container["image"] == "spark:4.1.4"
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "4096Mi"},
        "limits": {"cpu": "2", "memory": "4096Mi"},
    }


def test_an_executor_is_told_an_address_of_its_driver_that_it_can_reach(cluster: SmallCluster) -> None:
    pod: dict[str, Any] = next(iter(cluster.pods.values()))["spec"]
    variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}

    assert "@127.0.0.1:" in variables["SPARK_DRIVER_URL"]

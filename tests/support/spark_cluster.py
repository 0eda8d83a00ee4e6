"""A real Spark standalone cluster: a master and workers, all from the installed PySpark."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from support.processes import free_port, running, wait_until

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")


@dataclass(frozen=True)
class SparkCluster:
    """Where the master is, and what it knows."""

    url: str
    web_port: int

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=10) as response:
            status: dict[str, Any] = json.load(response)
        return status

    def has_workers(self, count: int) -> bool:
        try:
            return int(self.status()["aliveworkers"]) == count
        except (OSError, ValueError):
            return False


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2) -> Iterator[SparkCluster]:
    """A master and some workers of one core each."""
    port, web_port = free_port(), free_port()
    environment = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_DIRS": str(folder)}
    cluster = SparkCluster(f"spark://127.0.0.1:{port}", web_port)
    address = ["--host", "127.0.0.1", "--port"]
    with ExitStack() as stack:
        master = [SPARK_CLASS, "org.apache.spark.deploy.master.Master", *address, str(port)]
        stack.enter_context(running([*master, "--webui-port", str(web_port)], folder / "master.log", environment))
        wait_until(lambda: cluster.has_workers(0), seconds=60, what="The Spark master")
        for number in range(workers):
            worker = [SPARK_CLASS, "org.apache.spark.deploy.worker.Worker", *address, str(free_port())]
            size = ["--cores", "1", "--memory", "768m", "--work-dir", str(folder / f"worker-{number}")]
            command = [*worker, "--webui-port", str(free_port()), *size, cluster.url]
            stack.enter_context(running(command, folder / f"worker-{number}.log", environment))
        wait_until(lambda: cluster.has_workers(workers), seconds=60, what="The Spark workers")
        yield cluster

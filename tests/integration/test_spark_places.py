"""Where Spark runs is configuration: one pipeline, unchanged, on one machine, on a cluster and over Connect."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from services import spark_pipeline
from services.spark_cluster import spark_cluster
from services.spark_connect import spark_connect_server

TESTS = Path(__file__).resolve().parents[1]
EXPECTED = {
    "orders": {
        "snapshots": 2,
        "rows": {"2024-01-01": 1000, "2024-01-02": 1000, "2024-01-03": 1000},
        "sum": "8991.00",
        "last_day": "2024-01-03",
    },
    "revenue": {
        "snapshots": 2,
        "rows": {"2024-01-01": 1, "2024-01-02": 1, "2024-01-03": 1},
        "sum": "8991.00",
        "last_day": "2024-01-03",
    },
}


def run_pipeline(folder: Path, **spark: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, spark_pipeline.__file__],
        input=json.dumps({"folder": str(folder), "spark": spark}),
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.partition("ANSWER")[2])
    return answer


@pytest.mark.requirement("D7")
def test_on_one_machine(tmp_path: Path) -> None:
    assert run_pipeline(tmp_path, master="local[2]", spark_config={"spark.driver.memory": "1g"}) == EXPECTED


@pytest.mark.requirement("D7")
def test_on_a_cluster_of_two_workers(tmp_path: Path) -> None:
    conf = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    with spark_cluster(tmp_path) as cluster:
        assert run_pipeline(tmp_path, master=cluster.url, spark_config=conf) == EXPECTED

        # Both workers did their part of what the driver handed out.
        applications = cluster.status()["completedapps"]
    assert [application["cores"] for application in applications] == [2]
    assert all((tmp_path / f"worker-{number}").iterdir() for number in range(2))


@pytest.mark.requirement("D7")
def test_over_spark_connect(tmp_path: Path) -> None:
    with spark_connect_server(tmp_path) as remote:
        assert run_pipeline(tmp_path, remote=remote) == EXPECTED

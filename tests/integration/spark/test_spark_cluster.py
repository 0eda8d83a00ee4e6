"""The pipeline of `test_spark_places.py` on a cluster; apart from it, because five JVMs take their time."""

from pathlib import Path

import pytest
from support.spark_cluster import spark_cluster
from support.spark_pipeline import EXPECTED, run_in_a_process


@pytest.mark.slow
@pytest.mark.requirement("D7")
def test_on_a_cluster_of_two_workers(tmp_path: Path) -> None:
    conf = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    with spark_cluster(tmp_path) as cluster:
        assert run_in_a_process(tmp_path, master=cluster.url, spark_config=conf) == EXPECTED

        # Both workers did their part of what the driver handed out.
        applications = cluster.status()["completedapps"]
    assert [application["cores"] for application in applications] == [2]
    assert all((tmp_path / f"worker-{number}").iterdir() for number in range(2))

"""Where Spark runs is configuration: one pipeline, unchanged, over Connect. `test_spark_cluster.py` has a cluster."""

from pathlib import Path

import pytest
from support.spark_connect import spark_connect_server
from support.spark_pipeline import EXPECTED, run_in_a_process

pytestmark = pytest.mark.requirement("D7")


@pytest.mark.slow
def test_over_spark_connect(tmp_path: Path) -> None:
    with spark_connect_server(tmp_path) as remote:
        assert run_in_a_process(tmp_path, remote=remote) == EXPECTED

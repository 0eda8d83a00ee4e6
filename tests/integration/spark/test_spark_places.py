"""Where Spark runs is configuration: one pipeline, unchanged, on one machine, on a cluster and over Connect."""

from pathlib import Path

import pytest
from support.spark_connect import spark_connect_server
from support.spark_pipeline import EXPECTED, run, run_in_a_process
from support.spark_session import MASTER, SMALL_MACHINE

pytestmark = pytest.mark.requirement("D7")


def test_on_one_machine(tmp_path: Path) -> None:
    assert run(str(tmp_path), {"master": MASTER, "spark_config": SMALL_MACHINE}) == EXPECTED


def test_over_spark_connect(tmp_path: Path) -> None:
    with spark_connect_server(tmp_path) as remote:
        assert run_in_a_process(tmp_path, remote=remote) == EXPECTED

"""Spark, its server, or the whole process is killed in the middle of a write; or asked to stop, which is not as bad."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from support import spark_slow_run, spark_slow_write
from support.processes import running, wait_until
from support.spark_connect import spark_connect_server
from support.spark_lake import SparkLake
from support.spark_slow_write import KEY, PARTS

from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.table.maintenance.orphan_files import find_orphans

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S2-US5.4", "S2-FR-026", "S2-E2")]


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    opened = SparkLake.open(tmp_path)
    opened.write(opened.frame({"id": [-1]}))
    return opened


@contextmanager
def half_written(lake: SparkLake, *remote: str, program: ModuleType = spark_slow_write) -> Iterator[psutil.Process]:
    """The program that writes, when some of its files are there and most are not."""
    before, path = lake.files(), os.pathsep.join(sys.path)
    command = [sys.executable, str(program.__file__), str(lake.folder), *remote]
    environment = {"PYTHONPATH": path, "FLOE_SPARK_SCRATCH": str(lake.folder)}
    with running(command, lake.folder / "killed.log", environment) as process:
        wait_until(lambda: len(lake.files() - before) > 1, seconds=180, what="The first files")
        yield psutil.Process(process.pid)
    assert len(lake.files() - before) < PARTS


def assert_nothing_happened_but_orphans(lake: SparkLake) -> None:
    assert lake.rows() == [(-1,)]
    assert len(lake.table().metadata.snapshots) == 1
    later = datetime.now(UTC) + timedelta(days=30)
    found = find_orphans(lake.table(), now=later, older_than=timedelta(days=7), grace=timedelta(days=7))
    assert len([file for file in found.orphans.files if file.location.endswith(".parquet")]) > 1


def assert_the_same_work_succeeds_afterwards(lake: SparkLake) -> None:
    lake.write(lake.session.range(50 * PARTS).toDF("id"), mode=WriteMode.APPEND, idempotency_key=KEY)

    assert lake.rows() == sorted([(-1,), *((number,) for number in range(50 * PARTS))], key=repr)


def jvm_below(process: psutil.Process, words: str = "") -> psutil.Process:
    """The Java that a process started, whose command has these words."""
    return next(
        child
        for child in process.children(recursive=True)
        if child.name() == "java" and words in " ".join(child.cmdline())
    )


def wait_for_the_end(program: psutil.Process) -> None:
    wait_until(lambda: not program.is_running() or program.status() == "zombie", seconds=120, what="The end")


def test_a_jvm_that_is_killed_leaves_nothing_visible(lake: SparkLake) -> None:
    with half_written(lake) as program:
        jvm_below(program).kill()
        wait_for_the_end(program)

    assert "CommitOutcomeUnknownError" in (lake.folder / "killed.log").read_text()
    assert_nothing_happened_but_orphans(lake)
    assert_the_same_work_succeeds_afterwards(lake)


def test_a_connect_server_that_is_killed_leaves_nothing_visible(lake: SparkLake) -> None:
    with spark_connect_server(lake.folder) as remote, half_written(lake, remote) as program:
        jvm_below(psutil.Process(), "SparkConnectServer").kill()
        wait_for_the_end(program)

    assert "CommitOutcomeUnknownError" in (lake.folder / "killed.log").read_text()
    assert_nothing_happened_but_orphans(lake)
    assert_the_same_work_succeeds_afterwards(lake)


def test_a_process_that_is_killed_with_its_jvm_leaves_nothing_visible(lake: SparkLake) -> None:
    with half_written(lake) as program:
        for process in [*program.children(recursive=True), program]:
            process.kill()

    assert_nothing_happened_but_orphans(lake)
    assert_the_same_work_succeeds_afterwards(lake)


def test_a_run_that_is_terminated_commits_nothing(lake: SparkLake) -> None:
    with half_written(lake, program=spark_slow_run) as program:
        program.send_signal(signal.SIGTERM)
        wait_for_the_end(program)

    assert "DagsterExecutionInterruptedError" in (lake.folder / "killed.log").read_text()
    assert lake.rows() == [(-1,)]
    assert len(lake.table().metadata.snapshots) == 1

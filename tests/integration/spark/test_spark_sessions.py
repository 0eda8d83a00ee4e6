"""The life of Spark in a process: started by the first use, shared, stopped by the run that started it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession
from support import spark_lifecycle
from support.spark_lake import EVENTS, SparkLake
from support.spark_session import SMALL_MACHINE, spark_resource

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.spark.session import ensure_catalog

pytestmark = [pytest.mark.slow, pytest.mark.requirement("D7")]


def jars_of(session: SparkSession) -> list[str]:
    """The jars that an application was started with."""
    return [urlsplit(jar).path for jar in session.sparkContext.getConf().get("spark.jars", "").split(",")]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program of two runs saw, in a process of its own, from a folder of its own."""
    folder, elsewhere = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("elsewhere")
    lake = SparkLake.open(tmp_path_factory.mktemp("lake"))
    environment = {
        "PYTHONPATH": str(Path(spark_lifecycle.__file__).parents[1]),
        "FLOE_SPARK_JARS": ",".join(jars_of(lake.session)),
        # Where Spark would keep jars that it fetched.
        "HOME": str(elsewhere / "missing"),
    }
    done = subprocess.run(
        [sys.executable, spark_lifecycle.__file__, str(folder)],
        env={**os.environ, **environment},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.partition("ANSWER")[2])
    return {**seen, "stderr": done.stderr, "left": sorted(path.name for path in folder.glob("floe-spark-*"))}


def test_spark_is_not_even_loaded_by_a_run_that_does_not_use_it(facts: dict[str, Any]) -> None:
    assert not facts["loaded_before"]
    assert not facts["loaded_by_a_run_without_spark"]


def test_assets_of_a_run_share_a_session_and_runs_do_not(facts: dict[str, Any]) -> None:
    (one, two), (three, four) = facts["sessions"][:2], facts["sessions"][2:]

    assert one == two
    assert three == four
    assert one[1] != three[1]


def test_jars_come_from_the_places_that_are_named(facts: dict[str, Any]) -> None:
    assert [Path(jar).name for jar in facts["jars"]] == [Path(jar).name for jar in facts["named_jars"]]


def test_one_core_shuffles_into_two_partitions(facts: dict[str, Any]) -> None:
    assert facts["shuffle_partitions"] == "2"


def test_the_run_that_started_spark_stops_it(facts: dict[str, Any]) -> None:
    assert not facts["running_after"]


def test_scratch_files_are_in_their_folder_and_gone_in_the_end(facts: dict[str, Any]) -> None:
    assert {"blocks", "tmp", "warehouse"} <= set(facts["scratch"])
    assert facts["left"] == []
    assert facts["left_in_working_directory"] == []


@pytest.mark.requirement("S2-FR-044")
def test_secrets_reach_only_spark(facts: dict[str, Any]) -> None:
    assert facts["secret_arrived"]
    assert not facts["secret_in_process_list"]
    assert not facts["secret_shown"]


@pytest.mark.requirement("S2-FR-043", "S2-FR-044")
def test_sparks_warnings_come_through_python_without_secrets(facts: dict[str, Any]) -> None:
    assert facts["log"][0] == ["spark.org.example.Class", "WARNING", 'a "quoted" warning, password=***']


def test_spark_itself_writes_nothing_to_the_console(facts: dict[str, Any]) -> None:
    lines = [line for line in facts["stderr"].splitlines() if " - dagster - " not in line]

    # Java prints this before logging can be configured.
    assert lines == ["WARNING: Using incubator modules: jdk.incubator.vector"]


def test_each_catalog_has_a_session_of_its_own_under_the_same_name(tmp_path: Path) -> None:
    lakes = [SparkLake.open(tmp_path / name) for name in ("one", "two")]

    for number, lake in enumerate(lakes):
        lake.write(lake.frame({"id": [number]}))

    assert [lake.rows() for lake in lakes] == [[(0,)], [(1,)]]
    assert lakes[0].session is not lakes[1].session
    assert lakes[0].session.sparkContext is lakes[1].session.sparkContext


def test_resources_that_say_the_same_share_a_session(tmp_path: Path) -> None:
    lake = SparkLake.open(tmp_path)

    assert spark_resource(lake.iceberg).spark_session is lake.session


def test_a_second_way_to_run_spark_is_refused(tmp_path: Path) -> None:
    lake = SparkLake.open(tmp_path)

    with pytest.raises(EngineCapabilityError, match="has started Spark with another master, remote or spark_config"):
        _ = IcebergSparkResource(iceberg=lake.iceberg, master="local[1]", spark_config=SMALL_MACHINE).spark_session


def test_a_frame_of_the_users_own_session_learns_the_catalog(tmp_path: Path) -> None:
    lake = SparkLake.open(tmp_path)
    own = lake.session.newSession()

    ensure_catalog(own, lake.iceberg.spark_conf())
    lake.write(own.range(3).toDF("id"))

    assert lake.rows() == [(0,), (1,), (2,)]


def test_a_frame_of_a_session_with_another_catalog_of_that_name_is_refused(tmp_path: Path) -> None:
    lake = SparkLake.open(tmp_path)
    other = IcebergResource(catalog_uri=f"sqlite:///{tmp_path}/other.db", warehouse=f"file://{tmp_path}/other")

    with pytest.raises(EngineCapabilityError, match="whose catalog 'floe' differs from the IO manager's"):
        ensure_catalog(lake.session, other.spark_conf())


def test_spark_sees_what_pyiceberg_has_just_changed(tmp_path: Path) -> None:
    lake = SparkLake.open(tmp_path)
    lake.write(lake.frame({"id": [1]}))
    assert lake.session.table("floe.public.events").count() == 1

    lake.manager.append(EVENTS, lake.manager.scan(EVENTS))

    assert lake.session.table("floe.public.events").count() == 2

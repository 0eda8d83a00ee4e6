"""What happens before Spark starts: Java, jars, conf. No JVM is started here."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.spark.conf import Scratch, SessionSettings, application_conf, launch_environment
from floe_dagster_iceberg.spark.environment import ensure_java, jar_conf, maven_coordinates

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
HOME = Path(pyspark.__file__).parent
CANARY = "canary-91fe-secret"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scratch]:
    monkeypatch.setenv("FLOE_SPARK_SCRATCH", str(tmp_path))
    opened = Scratch()
    yield opened
    opened.remove()


def jars_for(*packages: str, home: Path = HOME, **given: str) -> dict[str, str]:
    return jar_conf(packages, spark_version="4.1.4", spark_home=home, given=given)


def has_java(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A JDK whose java does just this."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(folder))


def test_this_machine_has_a_java_for_spark() -> None:
    ensure_java()


def test_no_java_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EngineCapabilityError, match=r"Spark needs Java, and there is none on the PATH\. Install a JDK"):
        ensure_java()


def test_an_old_java_is_refused_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_java(tmp_path, monkeypatch, """case $1 in --add*) exit 1 ;; esac; echo 'openjdk version "11.0.2"' >&2""")

    with pytest.raises(EngineCapabilityError, match="needs Java 17 or newer, and found Java 11"):
        ensure_java()


def test_a_java_without_the_modules_of_spark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_java(tmp_path, monkeypatch, """case $1 in --add*) exit 1 ;; esac; echo 'openjdk version "17.0.2"' >&2""")

    with pytest.raises(EngineCapabilityError, match=r"lacks the module jdk\.incubator\.vector"):
        ensure_java()


def test_the_runtime_is_the_one_for_the_running_spark() -> None:
    assert maven_coordinates([SQLITE, "iceberg-aws-bundle"], spark_version=pyspark.__version__) == [
        RUNTIME,
        SQLITE,
        "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    ]


def test_a_spark_without_iceberg_is_refused_with_those_that_have_it() -> None:
    with pytest.raises(
        EngineCapabilityError, match=r"no Iceberg runtime for Spark 9\.9 .* Install PySpark 4\.0 or 4\.1"
    ):
        maven_coordinates([], spark_version="9.9.1")


def test_only_the_jars_that_are_needed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOE_SPARK_JARS", raising=False)

    assert jars_for(SQLITE) == {"spark.jars.packages": f"{RUNTIME},{SQLITE}"}
    assert jars_for(SQLITE, **{"spark.jars.packages": f"{SQLITE},a:b:1"}) == {
        "spark.jars.packages": f"{RUNTIME},{SQLITE},a:b:1"
    }


def test_jars_may_come_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = [tmp_path / "iceberg.jar", tmp_path / "jdbc.jar"]
    for jar in jars:
        jar.touch()
    for named in (str(tmp_path), f"{jars[0]},{jars[1]}", os.pathsep.join(map(str, jars))):
        monkeypatch.setenv("FLOE_SPARK_JARS", named)

        assert jars_for(SQLITE) == {"spark.jars": ",".join(jar.as_uri() for jar in jars)}


@pytest.mark.parametrize("named", ["{}/missing.jar", "{}/", "{0}/missing.jar,"])
def test_a_place_without_jars_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("FLOE_SPARK_JARS", named.format(tmp_path))

    with pytest.raises(ValidationError, match=r"FLOE_SPARK_JARS names .* where there is no jar"):
        jars_for(SQLITE)


def test_jars_on_the_class_path_are_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar").touch()

    assert jars_for(SQLITE, home=tmp_path) == {}
    assert jars_for(SQLITE, **{"spark.jars": "/opt/iceberg-spark-runtime-4.1_2.13-1.12.0.jar"}) == {}


def test_one_machine_stays_on_loopback_and_is_quiet(scratch: Scratch) -> None:
    conf = application_conf(SessionSettings(master="local[3]"), scratch)

    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.ui.enabled"] == conf["spark.ui.showConsoleProgress"] == "false"


def test_a_cluster_keeps_its_own_addresses(scratch: Scratch) -> None:
    conf = application_conf(SessionSettings(master="spark://host:7077"), scratch)

    assert conf["spark.master"] == "spark://host:7077"
    assert conf.keys().isdisjoint({"spark.driver.bindAddress", "spark.driver.host"})


def test_what_the_user_sets_wins(scratch: Scratch) -> None:
    given = {"spark.sql.shuffle.partitions": "99", "spark.ui.enabled": "true", "spark.app.name": "mine"}

    assert application_conf(SessionSettings(conf=given), scratch).items() >= given.items()


def test_extensions_of_the_user_are_beside_icebergs(scratch: Scratch) -> None:
    conf = application_conf(SessionSettings(conf={"spark.sql.extensions": "io.example.Extension"}), scratch)

    iceberg = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    assert conf["spark.sql.extensions"] == f"io.example.Extension,{iceberg}"


def test_scratch_files_go_to_one_writable_folder(scratch: Scratch, tmp_path: Path) -> None:
    conf = application_conf(SessionSettings(), scratch)

    assert scratch.folder.parent == tmp_path
    assert f"-Djava.io.tmpdir={scratch.folder / 'tmp'}" in conf["spark.driver.defaultJavaOptions"]
    assert conf["spark.sql.warehouse.dir"] == (scratch.folder / "warehouse").as_uri()
    with launch_environment(SessionSettings(), scratch):
        assert os.environ["SPARK_LOCAL_DIRS"] == str(scratch.folder / "blocks")
        assert Path(tempfile.gettempdir()) == scratch.folder / "tmp"
    assert "SPARK_LOCAL_DIRS" not in os.environ
    assert Path(tempfile.gettempdir()) != scratch.folder / "tmp"
    scratch.remove()
    assert not scratch.folder.exists()


def test_a_scratch_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_SPARK_SCRATCH", str(tmp_path / "missing"))

    with pytest.raises(EngineCapabilityError, match=r"cannot write to '.*missing' .* Set FLOE_SPARK_SCRATCH to"):
        Scratch()


@pytest.mark.requirement("S2-FR-044")
def test_secrets_of_the_conf_are_no_arguments_of_a_process(scratch: Scratch) -> None:
    settings = SessionSettings(
        conf={"spark.hadoop.fs.s3a.secret.key": CANARY, "spark.sql.catalog.floe.token": CANARY},
        catalog_conf={"spark.sql.catalog.floe.credential": CANARY},
    )

    assert CANARY not in str(application_conf(settings, scratch))
    assert CANARY not in repr(settings)
    with launch_environment(settings, scratch):
        file = scratch.folder / "secrets.properties"
        assert CANARY not in str(os.environ)
        assert file.read_text() == f"spark.hadoop.fs.s3a.secret.key {CANARY}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.exists()

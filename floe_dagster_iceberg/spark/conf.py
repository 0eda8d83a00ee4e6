"""The conf of a Spark application: our defaults, and its folder for temporary files."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.secrets import REDACTION_REGEX, is_secret_key
from floe_dagster_iceberg.spark.environment import find_spark_home, find_user_home, jar_conf, listed
from floe_dagster_iceberg.spark.log_bridge import LogBridge

SCRATCH_VARIABLE: Final = "FLOE_SPARK_SCRATCH"
CATALOG_PREFIX: Final = "spark.sql.catalog."
_LOCAL: Final = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_EXTENSIONS: Final = "spark.sql.extensions"
_ICEBERG: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a Spark session.

    Attributes:
        master: Where Spark runs; not used with `remote`.
        remote: Address of a Spark Connect server, which configures its own application.
        packages: Jars that catalog and storage need besides the Iceberg runtime.
        conf: The user's conf.
        catalog_conf: Conf of the catalogs, with resolved secrets.
    """

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)
    packages: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    catalog_conf: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def application(self) -> dict[str, str]:
        """The conf that all sessions of an application share."""
        return {key: value for key, value in self.conf.items() if not key.startswith(CATALOG_PREFIX)}

    @property
    def session(self) -> dict[str, str]:
        """The conf that each session sets after the start: conf given at the start shows up in process lists."""
        conf = {**self.catalog_conf, **self.conf}
        return {key: value for key, value in conf.items() if key.startswith(CATALOG_PREFIX)}

    @property
    def all_packages(self) -> frozenset[str]:
        """The names of all jars: of catalog and storage, and of the user's conf."""
        named = {*self.packages, *listed(self.conf.get("spark.jars.packages"))}
        # The same jar may be given with or without its group and version.
        return frozenset(name.split(":")[1] if ":" in name else name for name in named)

    @property
    def is_local(self) -> bool:
        return self.remote is None and _LOCAL.fullmatch(self.master) is not None


class Scratch:
    """The folder of a JVM's temporary files: blocks, downloads, Derby, the empty warehouse.

    Raises:
        EngineCapabilityError: The folder cannot be created.
    """

    def __init__(self) -> None:
        place = os.environ.get(SCRATCH_VARIABLE)
        try:
            # Never the working directory: it may be read-only, as the root file system of a pod often is.
            self.folder = Path(tempfile.mkdtemp(prefix="floe-spark-", dir=place))
        except OSError as error:
            where = f"'{place}'" if place else "the system's temporary folder"
            raise EngineCapabilityError(
                f"Spark needs a folder for temporary files and cannot write to {where} ({error.strerror}). "
                f"Set {SCRATCH_VARIABLE} to an existing folder that is writable, such as a mounted volume.",
                engine="spark",
            ) from error
        self.log: LogBridge | None = None
        for name in ("tmp", "blocks", "warehouse"):
            (self.folder / name).mkdir()

    def open_log(self) -> LogBridge:
        self.log = self.log or LogBridge(self.folder)
        return self.log

    def remove(self) -> None:
        """Delete everything but files that a dying JVM still holds."""
        if self.log is not None:
            self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def application_conf(settings: SessionSettings, scratch: Scratch) -> dict[str, str]:
    """The conf to start an application with; the user's own wins.

    Raises:
        EngineCapabilityError: There is no Iceberg for this version of Spark.
        ValidationError: `$FLOE_SPARK_JARS` names no jars.
    """
    given = settings.application
    conf = {
        "spark.app.name": "floe_dagster_iceberg",
        "spark.master": settings.master,
        "spark.redaction.regex": REDACTION_REGEX,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": (scratch.folder / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.is_local:
        conf |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    if (home := find_user_home()) is None or not os.access(home, os.W_OK):
        conf["spark.jars.ivy"] = str(scratch.folder / "ivy")
    conf |= {key: value for key, value in given.items() if not is_secret_key(key)}
    conf |= jar_conf(settings.packages, spark_version=pyspark.__version__, spark_home=find_spark_home(), given=given)
    # Next to those of other table formats.
    extensions = dict.fromkeys([*listed(given.get(_EXTENSIONS)), _ICEBERG])
    return {**conf, _EXTENSIONS: ",".join(extensions), _JAVA_OPTIONS: _java_options(given, scratch)}


@contextmanager
def launch_environment(settings: SessionSettings, scratch: Scratch) -> Iterator[None]:
    """Set the environment that the JVM starts in, and restore this process's own.

    Secrets of the user's conf are passed in a file that only this user can read, and that is deleted
    once Spark has started: every user can see the arguments of a process.
    """
    secrets = {key: value for key, value in settings.application.items() if is_secret_key(key)}
    variables: dict[str, str] = {}
    if "spark.local.dir" not in settings.application:
        variables["SPARK_LOCAL_DIRS"] = str(scratch.folder / "blocks")
    if settings.is_local:
        variables |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    variables = {name: os.environ.get(name, value) for name, value in variables.items()}
    file = scratch.folder / "secrets.properties"
    if secrets:
        file.touch(mode=0o600)
        file.write_text("".join(f"{key} {_escaped(value)}\n" for key, value in secrets.items()), encoding="utf-8")
        arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        variables["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {file} --load-spark-defaults {arguments}"
    before, temporary = {name: os.environ.get(name) for name in variables}, tempfile.tempdir
    os.environ.update(variables)
    # PySpark reads the port of its JVM from a file there, and the system's folder may be read-only.
    tempfile.tempdir = str(scratch.folder / "tmp")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        tempfile.tempdir = temporary
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _java_options(given: Mapping[str, str], scratch: Scratch) -> str:
    theirs = given.get(_JAVA_OPTIONS, "")
    ours = [f"-Djava.io.tmpdir={scratch.folder / 'tmp'}", f"-Dderby.system.home={scratch.folder}"]
    if "log4j2.configurationFile" not in f"{theirs} {given.get('spark.driver.extraJavaOptions', '')}":
        ours.append(scratch.open_log().java_option)
    return " ".join([*ours, theirs]).strip()


def _escaped(value: str) -> str:
    # Java reads a properties file with escapes of its own.
    return value.replace("\\", "\\\\").replace("\n", "\\n")

"""What Spark needs to start: Java, a user name and jars. Without them PySpark shows a stack trace."""

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote, urlsplit

import pyspark

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.plugins.sql import POSTGRESQL_JDBC, SQLITE_JDBC

_OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(?P<major>\d+)')
_REMEDY: Final = "Install a JDK 17 or 21, or point JAVA_HOME at one."


def ensure_java() -> int:
    """Check that Spark can run with this Java and this user, and return Java's major version.

    Raises:
        EngineCapabilityError: Java is missing, too old, or lacks modules that Spark needs; or the user has
            no name, as in a pod whose `runAsUser` is not in the image.
    """
    if _user() is None:
        raise EngineCapabilityError(
            f"Spark cannot run as user {os.getuid()}, who has no name in /etc/passwd; Hadoop needs one. "
            "Run the pod as a user of the image, or add that user to the image.",
            engine="spark",
        )
    java = _find_java()
    if java is None:
        where = "below JAVA_HOME" if os.environ.get("JAVA_HOME") else "on the PATH"
        raise EngineCapabilityError(f"Spark needs Java, and there is none {where}. {_REMEDY}", engine="spark")
    # Checks the version and the module in one run; without the module Spark starts, and fails later.
    run = _run(java, "--add-modules", "jdk.incubator.vector", "-version")
    version = _VERSION.search(run.stderr if run.returncode == 0 else _run(java, "-version").stderr)
    if version is None or int(version["major"]) < _OLDEST:
        found = "another one" if version is None else f"Java {version['major']}"
        raise EngineCapabilityError(
            f"Spark needs Java {_OLDEST} or newer, and found {found}. {_REMEDY}", engine="spark"
        )
    if run.returncode != 0:
        raise EngineCapabilityError(
            f"The Java found lacks the module jdk.incubator.vector that Spark needs. {_REMEDY}", engine="spark"
        )
    return int(version["major"])


def find_user_home() -> Path | None:
    """The home folder as Java sees it: the user's own, or `$HOME` where that is missing or the root folder."""
    user = _user()
    home = user.pw_dir if user is not None and len(user.pw_dir) > 1 else os.environ.get("HOME")
    return Path(home) if home else None


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _find_java() -> str | None:
    # PySpark looks in the same places, in the same order.
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


def _run(java: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 - the user's Java


JARS_VARIABLE: Final = "FLOE_SPARK_JARS"
_RUNTIME: Final = "iceberg-spark-runtime"

# Versions of Spark and the newest Iceberg that has a runtime for each; both are Scala 2.13.
_ICEBERG_VERSIONS: Final[Mapping[str, str]] = {"4.0": "1.11.0", "4.1": "1.12.0"}
_SCALA: Final = "2.13"


def jar_conf(
    packages: Iterable[str], *, spark_version: str, spark_home: Path, given: Mapping[str, str]
) -> dict[str, str]:
    """Spark conf that puts the jars on the class path of driver and executors.

    Args:
        packages: What catalog and storage need: Maven coordinates, or bare names of Iceberg's bundles.
        spark_version: Version of PySpark.
        spark_home: Folder of Spark, with its own jars.
        given: The user's conf, which may name the jars itself.

    Raises:
        EngineCapabilityError: There is no Iceberg for that version of Spark.
        ValidationError: `$FLOE_SPARK_JARS` names no jars.
    """
    keys = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    if any(_RUNTIME in given.get(key, "") for key in keys) or any((spark_home / "jars").glob(f"*{_RUNTIME}*.jar")):
        return {}
    if jars := os.environ.get(JARS_VARIABLE):
        return {"spark.jars": ",".join([*listed(given.get("spark.jars")), *_jars_in(jars)])}
    wanted = [*maven_coordinates(packages, spark_version=spark_version), *listed(given.get("spark.jars.packages"))]
    return {"spark.jars.packages": ",".join(dict.fromkeys(wanted))}


def maven_coordinates(packages: Iterable[str], *, spark_version: str) -> list[str]:
    """The Iceberg runtime for a version of Spark and the packages of catalog and storage, with versions.

    Raises:
        EngineCapabilityError: There is no Iceberg for that version of Spark.
    """
    minor = ".".join(spark_version.split(".")[:2])
    iceberg = _ICEBERG_VERSIONS.get(minor)
    if iceberg is None:
        raise EngineCapabilityError(
            f"PySpark {spark_version} is installed, and there is no Iceberg runtime for Spark {minor} that is known to "
            f"work. Install PySpark {' or '.join(_ICEBERG_VERSIONS)}, or set {JARS_VARIABLE} to compatible jars.",
            engine="spark",
        )
    runtime = f"org.apache.iceberg:{_RUNTIME}-{minor}_{_SCALA}:{iceberg}"
    return [runtime, *(name if ":" in name else f"org.apache.iceberg:{name}:{iceberg}" for name in packages)]


def _jars_in(places: str) -> list[str]:
    """The jars in a list of files and folders, separated by commas or the system's path separator."""
    jars: list[str] = []
    for place in places.replace(",", os.pathsep).split(os.pathsep):
        path = Path(place.strip())
        found = sorted(path.glob("*.jar")) if path.is_dir() else [path]
        if not place.strip() or not found or not all(jar.is_file() for jar in found):
            raise ValidationError(
                f"{JARS_VARIABLE} names '{place.strip()}', where there is no jar. Name jars, or folders that hold them."
            )
        jars += [jar.absolute().as_uri() for jar in found]
    return jars


def listed(value: str | None) -> list[str]:
    """The items of a comma-separated conf."""
    return [item.strip() for item in (value or "").split(",") if item.strip()]


# Where Spark 4 caches the jars of spark.jars.packages, below the user's home.
_CACHE: Final = ".ivy2.5.2"


@dataclass(frozen=True)
class JarPlaces:
    """Where Spark gets its jars from, and the Maven coordinates that it downloads at its next start."""

    source: str
    missing: tuple[str, ...] = ()


def find_jars(packages: Iterable[str], given: Mapping[str, str]) -> JarPlaces:
    """Find the jars that the installed PySpark will use.

    Raises:
        EngineCapabilityError: There is no Iceberg for this version of Spark, or the jars are for another one.
        ValidationError: `$FLOE_SPARK_JARS` names no jars.
    """
    conf = jar_conf(packages, spark_version=pyspark.__version__, spark_home=find_spark_home(), given=given)
    if "spark.jars" in conf:
        _check_version(conf["spark.jars"])
        return JarPlaces(f"{len(conf['spark.jars'].split(','))} jars of ${JARS_VARIABLE}")
    if "spark.jars.packages" not in conf:
        return JarPlaces("on Spark's class path")
    coordinates, cache = conf["spark.jars.packages"].split(","), _cache(given)
    missing = tuple(name for name in coordinates if cache is None or not (cache / _file_name(name)).is_file())
    return JarPlaces(", ".join(name.split(":", 1)[1] for name in coordinates), missing)


def find_spark_home() -> Path:
    """The folder of the Spark that PySpark starts."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def _cache(given: Mapping[str, str]) -> Path | None:
    """The folder of cached jars; None where each start of Spark has its own."""
    if (folder := given.get("spark.jars.ivy")) is not None:
        return Path(folder) / "jars"
    home = find_user_home()
    return None if home is None else home / _CACHE / "jars"


def _check_version(jars: str) -> None:
    """Refuse an Iceberg runtime for another Spark, which would fail in the middle of a run."""
    [runtime, *_] = maven_coordinates([], spark_version=pyspark.__version__)
    wanted = runtime.split(":")[1]
    if f"{wanted}-" not in jars:
        raise EngineCapabilityError(
            f"{JARS_VARIABLE} holds no {wanted}, which PySpark {pyspark.__version__} needs. Add that jar ({runtime}).",
            engine="spark",
        )


def _file_name(coordinates: str) -> str:
    group, artifact, version = coordinates.split(":")[:3]
    return f"{group}_{artifact}-{version}.jar"


PLACES: Final[Mapping[str, str]] = {
    "sqlite": SQLITE_JDBC,
    "postgres": POSTGRESQL_JDBC,
    "s3": "iceberg-aws-bundle",
    "gcs": "iceberg-gcp-bundle",
    "azure": "iceberg-azure-bundle",
}
"""The package that each kind of catalog or storage needs besides the Iceberg runtime; others need none."""

_START_SPARK: Final = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.jars.packages", sys.argv[1])
for folder in sys.argv[2:]:
    builder.config("spark.jars.ivy", folder)
session = builder.getOrCreate()
print(session.sparkContext.getConf().get("spark.jars"))
session.stop()
"""


def fetch_jars(places: Iterable[str], folder: Path) -> list[Path]:
    """Download the Iceberg runtime for the installed PySpark, and the packages of `places`, into a folder.

    Other jars in the folder stay; running it again changes nothing.

    Args:
        places: Keys of `PLACES`.
        folder: Created if it is missing.

    Raises:
        EngineCapabilityError: Java is missing, there is no Iceberg for this PySpark, or a download fails.
    """
    ensure_java()
    coordinates = maven_coordinates([PLACES[place] for place in places], spark_version=pyspark.__version__)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="floe-jars-") as scratch:
        home = find_user_home()
        # The user's own cache, so that nothing is downloaded twice; image builds have none.
        cache = [] if home is not None and os.access(home, os.W_OK) else [scratch]
        jars = _start_spark(",".join(coordinates), cache, working_directory=scratch)
        return [Path(shutil.copy2(jar, folder)) for jar in jars]


def _start_spark(packages: str, cache: list[str], *, working_directory: str) -> list[Path]:
    command = [sys.executable, "-c", _START_SPARK, packages, *cache]
    run = subprocess.run(  # noqa: S603 - our own code, on our own interpreter
        command,
        cwd=working_directory,
        env={"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": working_directory, **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        sys.stderr.write(run.stderr)
        raise EngineCapabilityError(
            f"Spark could not download {packages}; see its output above. Without access to Maven Central, set a "
            "mirror as spark.jars.ivySettings in Spark's conf/spark-defaults.conf.",
            engine="spark",
        )
    # Spark prints more than our line.
    jars = next(line for line in reversed(run.stdout.splitlines()) if line.startswith("file:"))
    return [Path(unquote(urlsplit(url).path)) for url in jars.split(",")]

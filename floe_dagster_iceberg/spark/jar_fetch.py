"""Jars into a folder, for an image whose pods have no network.

Spark itself fetches them, by its own Ivy and with whatever mirror it is configured for, so this
also shows that Java and Spark work in the image.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote, urlsplit

import pyspark

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.plugins.sql import POSTGRESQL_JDBC, SQLITE_JDBC
from floe_dagster_iceberg.spark.java import ensure_java, find_user_home
from floe_dagster_iceberg.spark.packages import maven_coordinates

PLACES: Final[Mapping[str, str]] = {
    "sqlite": SQLITE_JDBC,
    "postgres": POSTGRESQL_JDBC,
    "s3": "iceberg-aws-bundle",
    "gcs": "iceberg-gcp-bundle",
    "azure": "iceberg-azure-bundle",
}
"""What each kind of catalog or storage needs besides the Iceberg runtime; catalogs with a server need nothing."""

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
    """Put the Iceberg runtime for the installed PySpark, and what the places need, into a folder.

    Jars that are there already stay; running it again changes nothing.

    Args:
        places: Keys of `PLACES`.
        folder: Where the jars go; it is made if it is missing.

    Raises:
        EngineCapabilityError: Java is missing, there is no Iceberg for this PySpark, or a jar cannot be fetched.
    """
    ensure_java()
    coordinates = maven_coordinates([PLACES[place] for place in places], spark_version=pyspark.__version__)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="floe-jars-") as scratch:
        home = find_user_home()
        # The user's own cache, so that nothing is fetched twice; builds of images have none.
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
            f"Spark could not fetch {packages}; what it wrote above says why. Without a way to Maven Central, name a "
            "mirror by spark.jars.ivySettings in Spark's conf/spark-defaults.conf.",
            engine="spark",
        )
    # Spark writes more than our line.
    listed = next(line for line in reversed(run.stdout.splitlines()) if line.startswith("file:"))
    return [Path(unquote(urlsplit(url).path)) for url in listed.split(",")]

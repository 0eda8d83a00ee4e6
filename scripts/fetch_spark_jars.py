"""Download the jars that Spark needs for Iceberg, once, to Spark's own cache.

This starts a session with `spark.jars.packages`, so it also verifies that Java and Spark work on
this machine. Later sessions use the cache and need no network.
"""

import os
import subprocess
import sys
from pathlib import Path

# The last two are for the tests on PostgreSQL and S3.
PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.postgresql:postgresql:42.7.7",
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
)
CACHE = Path.home() / ".ivy2.5.2" / "jars"  # where Spark 4.1 keeps what spark.jars.packages resolved

START_SPARK = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.jars.packages", sys.argv[1]).getOrCreate().stop()
"""


def cached_jar(package: str) -> Path:
    """Where Spark puts the jar of a `group:artifact:version`."""
    group, artifact, version = package.split(":")
    return CACHE / f"{group}_{artifact}-{version}.jar"


def main() -> int:
    """Download missing jars; return 0 if all jars are present."""
    if os.environ.get("FLOE_SPARK_JARS") or all(cached_jar(package).is_file() for package in PACKAGES):
        return 0
    print(f"setup: starting Spark once to download {', '.join(PACKAGES)}", flush=True)
    log = Path(sys.prefix) / "spark-jars.log"
    environment = {"SPARK_LOCAL_IP": "127.0.0.1", **os.environ}
    with log.open("w") as output:
        started = subprocess.run(  # noqa: S603 - our own code, on our own interpreter
            [sys.executable, "-c", START_SPARK, ",".join(PACKAGES)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )
    if started.returncode == 0:
        return 0
    print(
        f"setup: Spark could not start with its Iceberg jars, see {log}; "
        "without network access, set FLOE_SPARK_JARS to a folder with the jars.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())

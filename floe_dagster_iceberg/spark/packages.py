"""Which jars Spark needs for Iceberg, and where they come from.

In this order: already on Spark's class path, as in an image; named by `$FLOE_SPARK_JARS`;
fetched by Spark itself from their Maven coordinates.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError

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
        spark_version: Version of the running PySpark.
        spark_home: Where Spark's own jars are.
        given: The user's own conf, which may bring the jars itself.

    Raises:
        EngineCapabilityError: There is no Iceberg for that version of Spark.
        ValidationError: `$FLOE_SPARK_JARS` names nothing.
    """
    if any(
        _RUNTIME in given.get(key, "") for key in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    ):
        return {}
    if next((spark_home / "jars").glob(f"*{_RUNTIME}*.jar"), None) is not None:
        return {}
    if jars := os.environ.get(JARS_VARIABLE):
        return {"spark.jars": ",".join([*listed(given.get("spark.jars")), *_jars_in(jars)])}
    wanted = [*maven_coordinates(packages, spark_version=spark_version), *listed(given.get("spark.jars.packages"))]
    return {"spark.jars.packages": ",".join(dict.fromkeys(wanted))}


def maven_coordinates(packages: Iterable[str], *, spark_version: str) -> list[str]:
    """The Iceberg runtime for a version of Spark, and what catalog and storage need, with versions.

    Raises:
        EngineCapabilityError: There is no Iceberg for that version of Spark.
    """
    minor = ".".join(spark_version.split(".")[:2])
    iceberg = _ICEBERG_VERSIONS.get(minor)
    if iceberg is None:
        raise EngineCapabilityError(
            f"PySpark {spark_version} is installed, and there is no Iceberg runtime for Spark {minor} that is known to "
            f"work. Install PySpark {' or '.join(_ICEBERG_VERSIONS)}, or set {JARS_VARIABLE} to jars that fit.",
            engine="spark",
        )
    runtime = f"org.apache.iceberg:{_RUNTIME}-{minor}_{_SCALA}:{iceberg}"
    return [runtime, *(name if ":" in name else f"org.apache.iceberg:{name}:{iceberg}" for name in packages)]


def _jars_in(places: str) -> list[str]:
    """Jars of a list of files and folders, separated by commas or as paths are."""
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
    """The items of a conf that is a list."""
    return [item.strip() for item in (value or "").split(",") if item.strip()]

"""Whether the jars that Spark needs for Iceberg are at hand, without starting it."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.spark.java import find_user_home
from floe_dagster_iceberg.spark.packages import JARS_VARIABLE, jar_conf, maven_coordinates

# Where Spark 4 keeps what spark.jars.packages resolved, below the user's home.
_CACHE: Final = ".ivy2.5.2"


@dataclass(frozen=True)
class JarPlaces:
    """Where Spark gets its jars from.

    Attributes:
        source: In a few words.
        missing: Maven coordinates that Spark fetches at its next start.
    """

    source: str
    missing: tuple[str, ...] = ()


def find_jars(packages: Iterable[str], given: Mapping[str, str]) -> JarPlaces:
    """Look where Spark will look, for the PySpark that is installed.

    Args:
        packages: What catalog and storage need besides the Iceberg runtime.
        given: The user's Spark conf.

    Raises:
        EngineCapabilityError: There is no Iceberg for this version of Spark, or the jars given are for another.
        ValidationError: `$FLOE_SPARK_JARS` names nothing.
    """
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    conf = jar_conf(packages, spark_version=pyspark.__version__, spark_home=home, given=given)
    if "spark.jars" in conf:
        _check_version(conf["spark.jars"])
        return JarPlaces(f"{len(conf['spark.jars'].split(','))} jars of ${JARS_VARIABLE}")
    if "spark.jars.packages" not in conf:
        return JarPlaces("on Spark's class path")
    coordinates, cache = conf["spark.jars.packages"].split(","), _cache(given)
    missing = tuple(name for name in coordinates if cache is None or not (cache / _file_name(name)).is_file())
    return JarPlaces(", ".join(name.split(":", 1)[1] for name in coordinates), missing)


def _cache(given: Mapping[str, str]) -> Path | None:
    """Where jars would be; None where each start of Spark has a cache of its own."""
    if (folder := given.get("spark.jars.ivy")) is not None:
        return Path(folder) / "jars"
    home = find_user_home()
    return None if home is None else home / _CACHE / "jars"


def _check_version(jars: str) -> None:
    """Refuse an Iceberg runtime that was built for another Spark, which fails in the middle of a run."""
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

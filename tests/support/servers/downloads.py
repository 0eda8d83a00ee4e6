"""What no wheel holds: the jars of the REST catalog server, and Keycloak. Fetched once, by PySpark's Ivy.

`python -m support.servers.downloads` fetches them ahead, as `make setup` does.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pyspark

MAVEN = "http://ant.apache.org/ivy/maven"
FETCH_SECONDS = 900


@dataclass(frozen=True)
class Artifact:
    """A file on Maven Central, and whether what it needs comes along."""

    group: str
    name: str
    version: str
    classifiers: tuple[str, ...] = ("",)
    extension: str = "jar"
    transitive: bool = True


REST_CATALOG = (
    Artifact("org.apache.iceberg", "iceberg-open-api", "1.11.0", classifiers=("test-fixtures",), transitive=False),
    Artifact("org.apache.iceberg", "iceberg-core", "1.11.0", classifiers=("", "tests")),
    Artifact("org.apache.iceberg", "iceberg-aws", "1.11.0"),
    Artifact("org.apache.iceberg", "iceberg-aws-bundle", "1.11.0"),
    Artifact("org.apache.hadoop", "hadoop-client-api", "3.4.3"),
    Artifact("org.apache.hadoop", "hadoop-client-runtime", "3.4.3"),
    Artifact("org.eclipse.jetty.ee10", "jetty-ee10-servlet", "12.1.10"),
    Artifact("org.eclipse.jetty.compression", "jetty-compression-server", "12.1.10"),
    Artifact("org.eclipse.jetty.compression", "jetty-compression-gzip", "12.1.10"),
    Artifact("org.xerial", "sqlite-jdbc", "3.50.3.0"),
    Artifact("org.postgresql", "postgresql", "42.7.7"),
    Artifact("org.slf4j", "slf4j-simple", "2.0.17"),
)
KEYCLOAK = (Artifact("org.keycloak", "keycloak-quarkus-dist", "26.5.6", extension="zip", transitive=False),)


def rest_catalog_jars() -> Path:
    """The folder with the jars of the REST catalog server."""
    return _once("rest-catalog-1.11.0", lambda folder: _fetch(REST_CATALOG, folder))


def keycloak_home() -> Path:
    """The folder with Keycloak, built for a database in memory; it must not be written to."""
    return _once("keycloak-26.5.6", _make_keycloak)


def java() -> str:
    """The Java that Spark uses."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _make_keycloak(folder: Path) -> None:
    _fetch(KEYCLOAK, folder / "zip")
    [archive] = (folder / "zip").iterdir()
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    shutil.rmtree(folder / "zip")
    [home] = folder.iterdir()
    for file in home.iterdir():
        file.rename(folder / file.name)
    home.rmdir()
    # A build ahead of time takes half of the start away, and leaves nothing to write later.
    build = ["sh", folder / "bin" / "kc.sh", "build", "--db=dev-mem", "--cache=local"]
    subprocess.run(build, check=True, timeout=FETCH_SECONDS, stdout=subprocess.DEVNULL)


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "floe-dagster-iceberg" / "servers"


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, made by the first process that needs it and never seen half made."""
    folder = _cache() / name
    if folder.is_dir():
        return folder
    with _locked(folder.with_name(f"{name}.lock")):
        if not folder.is_dir():
            print(f"fetching {name} into {_cache()}", file=sys.stderr, flush=True)  # noqa: T201 - takes a minute
            unfinished = folder.with_name(f"{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(artifacts: tuple[Artifact, ...], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    wanted, log = folder / "ivy.xml", folder / "ivy.log"
    _ivy_file(artifacts).write(wanted)
    names = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"
    command = [
        *(java(), "-cp", ivy, "org.apache.ivy.Main", "-ivy", wanted, "-confs", "default"),
        *("-types", "jar", "bundle", "zip", "-cache", folder / "cache", "-retrieve", folder / names),
    ]
    with log.open("wb") as output:
        fetched = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, timeout=FETCH_SECONDS)
    if fetched.returncode != 0:
        closing = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        raise RuntimeError(f"Ivy could not fetch {', '.join(artifact.name for artifact in artifacts)}:\n{closing}")
    shutil.rmtree(folder / "cache")
    wanted.unlink()
    log.unlink()


def _ivy_file(artifacts: tuple[Artifact, ...]) -> "ET.ElementTree[ET.Element[str]]":
    ET.register_namespace("m", MAVEN)
    root = ET.Element("ivy-module", version="2.0")
    ET.SubElement(root, "info", organisation="floe", module="servers")
    ET.SubElement(ET.SubElement(root, "configurations"), "conf", name="default")
    dependencies = ET.SubElement(root, "dependencies")
    for artifact in artifacts:
        dependency = ET.SubElement(
            dependencies,
            "dependency",
            org=artifact.group,
            name=artifact.name,
            rev=artifact.version,
            conf="default->master,runtime" if artifact.transitive else "default->master",
            transitive=str(artifact.transitive).lower(),
        )
        for classifier in artifact.classifiers:
            kind = {"name": artifact.name, "type": artifact.extension, "ext": artifact.extension}
            marked = {f"{{{MAVEN}}}classifier": classifier} if classifier else {}
            ET.SubElement(dependency, "artifact", {**kind, **marked})
    return ET.ElementTree(root)


if __name__ == "__main__":
    rest_catalog_jars()
    keycloak_home()

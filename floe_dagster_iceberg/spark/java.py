"""Whether Spark can start here. PySpark's own answer is a stack trace."""

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from floe_dagster_iceberg.errors import EngineCapabilityError

_OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(?P<major>\d+)')
_REMEDY: Final = "Install a JDK 17 or 21, or point JAVA_HOME at one."


def ensure_java() -> int:
    """Refuse to start Spark without a Java that it can run on, or as a user that it cannot run as.

    Returns:
        Its major version.

    Raises:
        EngineCapabilityError: Java is missing, too old, or cut down to fewer modules than Spark needs; or
            the user has no name, as in a pod whose `runAsUser` the image does not know.
    """
    if _user() is None:
        raise EngineCapabilityError(
            f"Spark cannot run as user {os.getuid()}, who has no name: Hadoop inside it asks /etc/passwd for one. "
            "Run the pod as a user of the image, or add that user to the image.",
            engine="spark",
        )
    java = _find_java()
    if java is None:
        where = "below JAVA_HOME" if os.environ.get("JAVA_HOME") else "on the PATH"
        raise EngineCapabilityError(f"Spark needs Java, and there is none {where}. {_REMEDY}", engine="spark")
    # One start tells both: runtimes that lack this module start, and then fail inside Spark.
    answer = _run(java, "--add-modules", "jdk.incubator.vector", "-version")
    version = _VERSION.search(answer.stderr if answer.returncode == 0 else _run(java, "-version").stderr)
    if version is None or int(version["major"]) < _OLDEST:
        found = "another one" if version is None else f"Java {version['major']}"
        raise EngineCapabilityError(
            f"Spark needs Java {_OLDEST} or newer, and found {found}. {_REMEDY}", engine="spark"
        )
    if answer.returncode != 0:
        raise EngineCapabilityError(
            f"The Java found lacks the module jdk.incubator.vector that Spark needs. {_REMEDY}", engine="spark"
        )
    return int(version["major"])


def find_user_home() -> Path | None:
    """The home folder as Java sees it: the user's own, and `$HOME` only where that is none or the root folder."""
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

"""`make setup` on machines that lack something: one sentence, no stack trace, nothing made."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "dirname", "sed", "awk", "cat", "cksum", "head", "grep", "env")


class Machine:
    """A folder with the setup script and a PATH that holds only what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.path = folder / "clone", folder / "bin"
        self.path.mkdir()
        for tool in TOOLS:
            (self.path / tool).symlink_to(shutil.which(tool) or tool)
        (self.clone / "scripts").mkdir(parents=True)
        for file in ("pyproject.toml", "requirements.lock", "scripts/setup.sh", "scripts/fetch_spark_jars.py"):
            shutil.copy(ROOT / file, self.clone / file)

    def has(self, name: str, script: str) -> Path:
        program = self.path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    def has_python(self) -> None:
        self.has("python3", f'exec {sys.executable} "$@"')

    def has_java(self, version: str, *, modules: bool = True) -> None:
        refuse = "" if modules else 'case "$*" in *jdk.incubator.vector*) exit 1 ;; esac; '
        self.has("java", f"""{refuse}echo 'openjdk version "{version}" 2025-04-15' >&2""")

    def setup(self, **environment: str) -> str:
        run = subprocess.run(
            [self.clone / "scripts" / "setup.sh"],
            env={"PATH": str(self.path), "HOME": str(self.clone), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 1
        assert run.stdout == ""
        assert not (self.clone / ".venv").exists()
        return run.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_python_setup_says_which_ones_fit(machine: Machine) -> None:
    assert machine.setup() == (
        "setup: Python 3.11, 3.12 or 3.13 is needed and none was found; "
        "install one, or name it with PYTHON=/path/to/python.\n"
    )


def test_a_python_of_another_version_counts_as_none(machine: Machine) -> None:
    machine.has("python3", "exit 1")

    assert "none was found" in machine.setup()


def test_a_python_given_by_name_must_fit(machine: Machine) -> None:
    machine.has_python()

    assert machine.setup(PYTHON="/no/such/python") == (
        "setup: PYTHON=/no/such/python is not a Python 3.11, 3.12 or 3.13; point it at one, or unset it.\n"
    )


def test_without_a_java_setup_says_which_ones_fit(machine: Machine) -> None:
    machine.has_python()

    assert machine.setup() == (
        "setup: Spark needs a JDK 17 or 21 and java was not found; "
        "install one (on Debian: apt-get install openjdk-17-jdk-headless), or set JAVA_HOME.\n"
    )


def test_java_home_wins_over_the_path(machine: Machine) -> None:
    machine.has_python()
    machine.has_java("17.0.15")

    assert "/no/such/jdk/bin/java was not found" in machine.setup(JAVA_HOME="/no/such/jdk")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "170.1", "25"])
def test_a_java_of_another_version_is_refused(machine: Machine, version: str) -> None:
    machine.has_python()
    machine.has_java(version)

    assert f"is version {version}; install one" in machine.setup()


def test_a_java_without_the_modules_of_spark_is_refused(machine: Machine) -> None:
    machine.has_python()
    machine.has_java("21.0.4", modules=False)

    assert "lacks the module jdk.incubator.vector that Spark needs" in machine.setup()


def test_a_python_without_venv_is_named_with_the_package_that_brings_it(machine: Machine) -> None:
    machine.has("python3", f"""case "$*" in *ensurepip*) exit 1 ;; esac; exec {sys.executable} "$@" """)
    machine.has_java("17.0.15")

    assert "apt-get install python3-venv" in machine.setup()

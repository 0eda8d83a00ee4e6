"""The steps of a Dockerfile, done in a folder: there is no Docker in CI, and what is ours in them can be tried.

A path of the image is that path below the folder. What the distribution does (`apt-get`, `useradd`) and
what is here already (`pip`) is left out.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_NOT_OURS = ("apt-get ", "useradd ", "pip ")


@dataclass(frozen=True)
class Step:
    """An instruction and what it says."""

    instruction: str
    text: str


def stages(file: Path) -> list[list[Step]]:
    """The steps after each FROM."""
    found: list[list[Step]] = []
    for step in _steps(file.read_text()):
        if step.instruction == "FROM":
            found.append([])
        elif found:
            found[-1].append(step)
    return found


def _steps(text: str) -> Iterator[Step]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        if line.strip():
            instruction, _, rest = line.partition(" ")
            yield Step(instruction, rest)


@dataclass
class Image:
    """A folder that stands for the root of an image, and what its steps have set so far."""

    root: Path
    context: Path
    variables: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    command: str = ""

    def build(self, steps: Sequence[Step], *, other: Path | None = None, **given: str) -> None:
        """Do the steps.

        Args:
            steps: What to do.
            other: The root of the image that `COPY --from` takes from.
            given: Values that win over those of ARG and ENV.
        """
        for step in steps:
            match step.instruction:
                case "ARG" | "ENV":
                    self._set(step.text, given)
                case "WORKDIR":
                    self.workdir = step.text
                    self.inside(step.text).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(step.text, other)
                case "RUN" if not step.text.startswith(_NOT_OURS):
                    self._run(step.text)
                case "USER":
                    self.user = step.text
                case "CMD":
                    self.command = step.text
                case "RUN" | "EXPOSE":
                    pass
                case unknown:
                    raise AssertionError(f"Nobody has taught this file what {unknown} does.")

    def inside(self, path: str) -> Path:
        """Where a path of the image is."""
        return self.root / (Path(self.workdir) / path).relative_to("/")

    def _set(self, text: str, given: Mapping[str, str]) -> None:
        for assignment in shlex.split(text):
            name, _, value = assignment.partition("=")
            # The PATH of the image goes before that of this machine.
            parts = [part if part == "$PATH" else self._as_here(part) for part in value.split(":")]
            self.variables[name] = given.get(name, ":".join(parts).replace("$PATH", os.environ["PATH"]))

    def _as_here(self, value: str) -> str:
        return str(self.root / value[1:]) if value.startswith("/") else value

    def _copy(self, text: str, other: Path | None) -> None:
        *sources, target = self._expanded(text).split()
        if sources[0].startswith("--from"):
            assert other is not None
            [_, source] = sources
            # A venv holds absolute paths, which a copy would leave pointing at the other folder all the same.
            self.inside(target).parent.mkdir(parents=True, exist_ok=True)
            self.inside(target).symlink_to(other / source[1:])
            return
        for source in sources:
            place = self.inside(target)
            if (self.context / source).is_dir():
                shutil.copytree(self.context / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(self.context / source, place)

    def _expanded(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: self.variables[found[1]], text)

    def _run(self, command: str) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **self.variables}
        run = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.inside(""),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, f"RUN {command}\n{run.stdout}\n{run.stderr}"

"""The pages of docs/, and their code blocks as a reader would run them."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
_FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL
)
LONGEST_SECONDS = 1500


@dataclass(frozen=True)
class Block:
    """A code block; with a title, it is a file of that name."""

    language: str
    title: str | None
    code: str


def blocks_of(page: str) -> list[Block]:
    """All code blocks of a page, from top to bottom."""
    return [Block(**found.groupdict()) for found in _FENCE.finditer((DOCS / page).read_text())]


def code_of(page: str, language: str) -> list[str]:
    """The blocks in one language, without those that are files."""
    return [block.code for block in blocks_of(page) if block.language == language and block.title is None]


def run_python(page: str, **names: Any) -> None:
    """Run the Python blocks of a page from top to bottom, as one program."""
    names["__name__"] = "docs"
    for number, code in enumerate(code_of(page, "python"), start=1):
        exec(compile(code, f"{page}, python block {number}", "exec"), names)  # noqa: S102 - the page is ours


@dataclass
class Shell:
    """A shell that is left open between two blocks: folder and variables stay as the last one left them."""

    folder: Path
    variables: Mapping[str, str]
    log: list[str] = field(default_factory=list)

    def run(self, code: str) -> str:
        """Run a block, which has to succeed, and return what it prints."""
        state = Path(self.variables["HOME"]) / "state-of-the-shell"
        done = subprocess.run(
            ["/bin/sh", "-c", f"set -eu\n{code}\n{{ pwd; env -0; }} > '{state}'"],
            cwd=self.folder,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        folder, _, variables = state.read_text().partition("\n")
        self.folder = Path(folder)
        self.variables = dict(pair.split("=", 1) for pair in variables.split("\0") if pair)
        return done.stdout

    def write(self, block: Block) -> None:
        """Save a block with a title as the file that it names."""
        assert block.title is not None
        (self.folder / block.title).write_text(block.code)


def newcomers_variables(home: Path) -> dict[str, str]:
    """The environment of a person whose home is empty; neither our .venv nor our settings, or make's, are in it."""
    ours = ("FLOE_", "MAKE", "MFLAGS", "PYTHON", "VIRTUAL_ENV", "DAGSTER_", "PYTEST_", "PYICEBERG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [entry for entry in os.environ["PATH"].split(os.pathsep) if ".venv" not in Path(entry).parts]
    # What pip has downloaded before need not come again.
    cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
    return {
        **kept,
        "HOME": str(home),
        "PATH": os.pathsep.join(path),
        "PIP_CACHE_DIR": cache,
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }

"""A contender's process, as the benchmark sees it."""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SHOWN_LINES = 30
# The location of jars depends on the machine; other settings would affect the measurement.
_OTHERS_SETTINGS = ("DAGSTER_", "PYICEBERG_", "FLOE_HOME")
_PATIENCE_SECONDS = 30


class ContenderFailedError(RuntimeError):
    """A worker ended during an operation."""


class Contender:
    """One worker process, stopped by `close`.

    Args:
        name: Name in the results.
        module: The program, such as `benchmarks.workers.ours`.
        folder: Folder of its log and other files.
        python: Interpreter of its environment; ours if not given.
    """

    def __init__(self, name: str, module: str, folder: Path, *, python: Path | None = None) -> None:
        self.name = name
        self._log = folder / f"{module.rpartition('.')[2]}-{os.urandom(4).hex()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own programs
                [str(python or sys.executable), "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=_environment(folder),
            )

    def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Run an operation in the worker and return its response.

        Raises:
            ContenderFailedError: The worker ended instead.
        """
        pipes = self._process
        if pipes.stdin is None or pipes.stdout is None:
            raise ContenderFailedError(f"{self.name} has no pipes.")
        request = json.dumps({"operation": operation, "arguments": arguments})
        try:
            pipes.stdin.write(request + "\n")
            pipes.stdin.flush()
            line = pipes.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            with self._log.open(errors="replace") as log:
                last = "".join(deque(log, maxlen=_SHOWN_LINES))
            raise ContenderFailedError(f"{self.name} failed in {operation}:\n{last}")
        response: Mapping[str, Any] = json.loads(line)
        return response

    def close(self) -> None:
        """Stop the worker, which exits at the end of its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _environment(folder: Path) -> dict[str, str]:
    """An environment with the settings of the benchmark only."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS_SETTINGS)}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYICEBERG_HOME": str(folder),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        # Writing warnings to a log takes time that should not count.
        "PYTHONWARNINGS": "ignore",
    }

"""Load a code location.

New interpreters import Dagster, this package and the peer. The time is taken inside of them, so it does not
include the start of Python. Then `dagster definitions validate` of this repository's code location against an
empty one, from its start to its first output.

Target: within 0.5 s of `import dagster`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.contender import ROOT
from benchmarks.measure import Effort, Turn
from benchmarks.peer.environment import ensure_peer
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, PEER, Session

DAGSTER, EMPTY = "dagster", "an empty location"
_IMPORTS = {
    DAGSTER: "import dagster",
    OURS: "import dagster, floe_dagster_iceberg, floe_dagster_iceberg.factory",
    PEER: "import dagster, dagster_iceberg.io_manager.arrow",
}
_TIMED = "import time; started = time.perf_counter(); {imports}; print(time.perf_counter() - started)"


def run(session: Session) -> list[Curve]:
    """Measure."""
    effort = Effort(rounds=9, least=5, seconds=40)
    imports = session.measure("import", "(no size)", (1,), lambda _: _imports(session), effort=effort)
    validate = session.measure(
        "dagster definitions validate", "(no size)", (1,), lambda _: _validations(session), effort=effort
    )
    return [*imports, *validate]


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the target."""
    mine, alone = curves[0].median(1, OURS), curves[0].median(1, DAGSTER)
    more = None if mine is None or alone is None else mine - alone
    return [Target("import: more than Dagster alone", more, 0.5, unit="s")]


def _imports(session: Session) -> dict[str, Turn]:
    def turn(name: str) -> Turn:
        def measure() -> Mapping[str, float]:
            python = ensure_peer() if name == PEER else Path(sys.executable)
            command = [str(python), "-c", _TIMED.format(imports=_IMPORTS[name])]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603
            return {"seconds": float(done.stdout)}

        return measure

    return {name: turn(name) for name in _IMPORTS if session.has_peer or name != PEER}


def _validations(session: Session) -> dict[str, Turn]:
    empty = session.lake.folder / "empty"
    empty.mkdir(exist_ok=True)
    (empty / "empty_location.py").write_text("from dagster import Definitions\n\ndefs = Definitions()\n")
    home = session.lake.folder / "dagster_home"
    home.mkdir(exist_ok=True)
    return {
        OURS: lambda: _first_words("definitions.py", ROOT, home),
        EMPTY: lambda: _first_words("empty_location.py", empty, home),
    }


def _first_words(file: str, folder: Path, home: Path) -> Mapping[str, float]:
    """Seconds until the first output of the command, which has to succeed."""
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-f", file]
    environment = {**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    started = time.perf_counter()
    with subprocess.Popen(  # noqa: S603 - Dagster, as locked
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {"seconds": seconds}

"""The peer's environment: created once, outside the repository, from its own lock file."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import say

_LOCK = Path(__file__).with_name("requirements.lock")
CACHE_VARIABLE = "FLOE_BENCH_CACHE"


def ensure_peer() -> Path:
    """The peer's interpreter; the first call installs it, which takes a minute.

    Raises:
        subprocess.CalledProcessError: It could not be installed; see uv's output.
    """
    environment = _cache() / f"peer-{_fingerprint()}"
    python, ready = environment / "bin" / "python", environment / ".ready"
    if ready.is_file():
        return python
    say(f"installing the peer from {_LOCK.name}")
    shutil.rmtree(environment, ignore_errors=True)
    uv = [sys.executable, "-m", "uv"]
    _run([*uv, "venv", "--quiet", "--python", sys.executable, str(environment)])
    _run([*uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(_LOCK)])
    ready.touch()
    return python


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - uv, as locked


def _cache() -> Path:
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floe-bench"


def _fingerprint() -> str:
    return hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]

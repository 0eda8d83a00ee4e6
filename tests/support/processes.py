"""Processes that tests start: on loopback, waited for with an end, stopped by their own id."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

LONGEST_SECONDS = 900

# The system may offer a port again before the server that was to listen there has started.
_GIVEN: set[int] = set()


def free_port() -> int:
    """A port that is free right now, and that nobody else in this process was given."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(listener.getsockname()[1])
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


def is_listening(port: int) -> bool:
    """Whether a port of this machine accepts connections."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def serves(url: str) -> bool:
    """Whether a server responds to a request, with whatever."""
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Wait for something to become true, and fail when it does not."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} did not come within {seconds} seconds"
        time.sleep(0.2)


def printed_by(command: Sequence[str | Path], *, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints that has to succeed; with an environment given, that one and no other."""
    run = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    return run.stdout


@contextmanager
def running(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, with everything that it starts itself, for the length of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)

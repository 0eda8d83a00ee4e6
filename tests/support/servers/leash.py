"""A server on a leash: it ends with the block that started it, or with the process, should that be killed.

Run as a script, this file is the leash: it starts the command, and stops it when its own standard input
ends, which happens at the latest when the other end of the pipe dies. So it imports nothing of ours.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STOP_SECONDS = 20


@contextmanager
def on_leash(
    command: Sequence[str | Path],
    log: Path,
    *,
    is_up: Callable[[], bool],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
    remove: Path | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """A server and all that it starts, from when it is up to the end of the block.

    Args:
        command: The server, in the foreground.
        log: Where it writes.
        is_up: Whether it is up.
        seconds: How long that may take.
        environment: What it gets besides our own environment.
        user: Id of the user and group to run as, when we are root and the server refuses to be.
        remove: A folder that goes with the server.
        stop_signal: How to ask it to stop.
    """
    settings = [str(int(stop_signal)), "" if user is None else str(user), str(remove or "")]
    holder = [sys.executable, "-S", __file__, *settings, *command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            holder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        _wait(process, log, is_up, time.monotonic() + seconds)
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=2 * STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], log: Path, is_up: Callable[[], bool], deadline: float) -> None:
    while not is_up():
        ended, late = process.poll() is not None, time.monotonic() > deadline
        if ended or late:
            closing = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise RuntimeError(f"{'it ended' if ended else 'it was not up in time'}; its log closes with\n{closing}")
        time.sleep(0.1)


def _stop_at_the_end_of_input(server: subprocess.Popen[bytes], stop_signal: int) -> None:
    # Not through sys.stdin, whose lock a daemon thread would hold when the interpreter ends.
    os.read(0, 1)
    try:
        os.killpg(server.pid, stop_signal)
        server.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _hold(stop_signal: int, user: int | None, remove: str, command: Sequence[str]) -> int:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, user=user, group=user)
    threading.Thread(target=_stop_at_the_end_of_input, args=(server, stop_signal), daemon=True).start()
    ended = server.wait()
    if remove:
        shutil.rmtree(remove, ignore_errors=True)
    return ended


if __name__ == "__main__":
    sys.exit(_hold(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2] else None, sys.argv[3], sys.argv[4:]))

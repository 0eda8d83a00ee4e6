"""Work that must not take longer than promised."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STARTUP_SECONDS = 30.0
HEALTH_CHECK_SECONDS = 5.0


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Run `work`, and stop waiting for it after so many seconds.

    A thread cannot be killed, so the work itself goes on in the background; it never keeps
    the process alive.

    Raises:
        TimeoutError: `work` is not done in time.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            results.append(work())
        # Whatever it is belongs to the caller's thread, which raises it again.
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    thread = threading.Thread(target=collect, name="floe-bounded-work", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return results[0]

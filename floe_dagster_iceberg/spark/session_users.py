"""Who may still want Spark. Apart from the sessions, because counting must not load PySpark."""

import os
import threading
from collections.abc import Callable


class SessionUsers:
    """Counts Dagster resources between their setup and teardown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._process = os.getpid()
        self.when_none_is_left: Callable[[], None] = lambda: None

    @property
    def any_left(self) -> bool:
        """Whether a run is going on that may use Spark."""
        return self._count > 0 and self._process == os.getpid()

    def take(self) -> None:
        """Begin a use."""
        with self._lock:
            if self._process != os.getpid():
                # A forked child has none of its parent's runs.
                self._count, self._process = 0, os.getpid()
            self._count += 1

    def give_back(self) -> None:
        """End a use."""
        with self._lock:
            self._count -= 1
            none_left = self._count == 0
        if none_left:
            self.when_none_is_left()


SESSION_USERS = SessionUsers()

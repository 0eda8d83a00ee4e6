"""The Dagster runs that may use Spark. Not in `session`, because counting them must not load PySpark."""

import os
import threading
from collections.abc import Callable


class SessionUsers:
    """Counts Dagster resources between their setup and teardown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._process = 0, os.getpid()
        self.on_last_removed: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return self._count > 0 and self._process == os.getpid()

    def add(self) -> None:
        with self._lock:
            if self._process != os.getpid():
                # A forked child has none of its parent's runs.
                self._count, self._process = 0, os.getpid()
            self._count += 1

    def remove(self) -> None:
        with self._lock:
            self._count -= 1
            none_left = self._count == 0
        if none_left:
            self.on_last_removed()


SESSION_USERS = SessionUsers()

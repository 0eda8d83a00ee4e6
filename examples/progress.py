"""What the demo says while it works."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


class Progress:
    """Tells what is being done, and how long it took."""

    def __init__(self, console: Console, *, log: Path) -> None:
        self._console, self._log = console, log

    def headline(self, text: str) -> None:
        """Begin a part."""
        self._console.print(f"\n[bold]{text}[/]")

    def there_already(self, title: str) -> None:
        """Say that there is nothing to do."""
        self._console.print(f"  [dim]·  {title}: there already[/]")

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Say what is being done; a failure says where to look."""
        started = time.perf_counter()
        with self._console.status(f" {title}"):
            try:
                yield
            except BaseException:
                self._console.print(f"  [red]x  {title}[/] failed. make ui shows the run, {self._log} the log.")
                raise
        self._console.print(f"  [green]✓[/]  {title:<66} {time.perf_counter() - started:5.1f} s")

    @contextmanager
    def quiet_children(self) -> Iterator[None]:
        """Let processes that start meanwhile write to the log what they would write to the terminal."""
        terminal = os.dup(2)
        with self._log.open("ab") as log:
            os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)

"""Progress output of the demo."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


class Progress:
    """Prints each step and its duration."""

    def __init__(self, console: Console, *, log: Path) -> None:
        self._console, self._log = console, log

    def headline(self, text: str) -> None:
        """Start a section."""
        self._console.print(f"\n[bold]{text}[/]")

    def up_to_date(self, title: str) -> None:
        """Print that there is nothing to do."""
        self._console.print(f"  [dim]·  {title}: up to date[/]")

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a step and its duration; on failure, print where to look."""
        started = time.perf_counter()
        with self._console.status(f" {title}"):
            try:
                yield
            except BaseException:
                self._console.print(
                    f"  [red]x  {title}[/] failed. See the run in `make ui`, and the log in {self._log}."
                )
                raise
        self._console.print(f"  [green]✓[/]  {title:<66} {time.perf_counter() - started:5.1f} s")

    @contextmanager
    def quiet_children(self) -> Iterator[None]:
        """Redirect the stderr of child processes to the log."""
        terminal = os.dup(2)
        with self._log.open("ab") as log:
            os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)

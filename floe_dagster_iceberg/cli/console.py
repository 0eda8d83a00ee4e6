"""Reports, errors and warnings in a terminal or a pipe."""

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import IO, Any, Final

import click
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from floe_dagster_iceberg.errors import FloeStorageError, NoSuchNamespaceError, RollbackError, SnapshotNotFoundError
from floe_dagster_iceberg.secrets import redact

# A pipe has no width: nothing is wrapped there, so that grep finds whole lines.
_WIDTH_OF_A_PIPE: Final = 1000
_GAP: Final = 2
_NOTHING: Final = "-"


def open_console(*, to_errors: bool = False) -> Console:
    """A console as wide as the terminal, or as wide as needed without one."""
    stream = sys.stderr if to_errors else sys.stdout
    fits = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, width=None if fits else _WIDTH_OF_A_PIPE, highlight=False)


def cell(value: object, style: str = "") -> Text:
    """A value as plain text: square brackets are no markup."""
    match value:
        case None | "":
            text = _NOTHING
        case int():
            text = f"{value:,}"
        case datetime():
            text = f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            text = redact(str(value))
    return Text(text, style=style, overflow="fold")


def heading(console: Console, text: str) -> None:
    """Print the heading of a section."""
    console.print()
    console.print(cell(text, "bold"))


def short_run(run_id: str | None) -> str | None:
    """A run id as the Dagster UI shortens it."""
    return None if run_id is None else run_id[:8]


class CliError(click.ClickException):
    """An error message, wrapped at word boundaries."""

    def show(self, file: IO[Any] | None = None) -> None:
        del file
        open_console(to_errors=True).print(cell(f"Error: {self.format_message()}"))


def warn(*messages: str | None) -> None:
    """Print warnings to standard error."""
    for message in filter(None, messages):
        open_console(to_errors=True).print(cell(f"Warning: {message}", "yellow"))


def cli_message(error: FloeStorageError) -> str:
    """The message of an error; where the original suggests Python code, a command replaces it."""
    match error:
        case SnapshotNotFoundError():
            return (
                f"Table '{error.table}' has no snapshot, branch or tag '{error.snapshot}'. It may have expired; "
                f"'floe-iceberg inspect {error.table} --snapshots 100' lists the existing ones."
            )
        case RollbackError():
            return (
                f"Table '{error.table}' cannot be rolled back to '{error.snapshot}': {error.reason}. "
                f"'floe-iceberg inspect {error.table} --snapshots 100' lists the snapshots of the table."
            )
        case NoSuchNamespaceError():
            return f"Namespace '{error.namespace}' not found in the catalog. 'floe-iceberg tables' lists the tables."
        case _:
            return str(error)


class Listing:
    """Rows under headings: a table if it fits the terminal, otherwise one block per row. Nothing is cut off.

    Args:
        columns: Headings; the first column names the row.
        numbers: Columns that are right-aligned.
        wrapped: The column that may wrap.
    """

    def __init__(self, *columns: str, numbers: Sequence[str] = (), wrapped: str | None = None) -> None:
        self._columns, self._numbers, self._wrapped = columns, numbers, wrapped
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *values: object) -> None:
        self._rows.append(tuple(value if isinstance(value, Text) else cell(value) for value in values))

    def print(self, console: Console) -> None:
        # Empty columns are left out.
        shown = [i for i in range(len(self._columns)) if any(row[i].plain != _NOTHING for row in self._rows)]
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for index in shown:
            name = self._columns[index]
            justify: JustifyMethod = "right" if name in self._numbers else "left"
            widest = max(len(name), *(row[index].cell_len for row in self._rows))
            table.add_column(
                name, justify=justify, overflow="fold", min_width=None if name == self._wrapped else widest
            )
        for row in self._rows:
            table.add_row(*(row[index] for index in shown))
        unlimited = console.options.update(width=_WIDTH_OF_A_PIPE)
        if console.measure(table, options=unlimited).minimum <= console.width:
            console.print(table)
        else:
            self._print_blocks(console)

    def _print_blocks(self, console: Console) -> None:
        for name, *row in self._rows:
            block = Table.grid(padding=(0, _GAP))
            for heading_, value in zip(self._columns[1:], row, strict=True):
                if value.plain != _NOTHING:
                    block.add_row(Text(heading_, style="dim"), value)
            console.print(name, Padding(block, (0, 0, 0, _GAP), expand=False))

"""How reports look in a terminal, in a pipe and without colours."""

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from floe_dagster_iceberg.secrets import redact

# A pipe has no width: nothing is folded there, so that grep finds what it looks for.
_WIDTH_OF_A_PIPE: Final = 1000
_GAP: Final = 2
_NOTHING: Final = "-"
# Narrower than this, a sentence in a column is hard to read.
_NARROWEST_SENTENCE: Final = 24


def open_console(*, to_errors: bool = False) -> Console:
    """A console as wide as the terminal, or as wide as needed where there is none."""
    stream = sys.stderr if to_errors else sys.stdout
    fits = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, width=None if fits else _WIDTH_OF_A_PIPE, highlight=False)


def cell(value: object, style: str = "") -> Text:
    """A value to show; square brackets in it are just text."""
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
    """Begin a part of a report."""
    console.print()
    console.print(cell(text, "bold"))


def short_run(run_id: str | None) -> str | None:
    """A run as the Dagster UI names it."""
    return None if run_id is None else run_id[:8]


class Listing:
    """Rows under headings, as a table where that fits, else one below the other. Nothing is ever cut off.

    Args:
        columns: Headings; the first names the row.
        numbers: Those that hold numbers.
        sentence: The one that may be broken into lines.
        spare: Those that a narrow terminal does without before the table is given up.
    """

    def __init__(
        self, *columns: str, numbers: Sequence[str] = (), sentence: str | None = None, spare: Sequence[str] = ()
    ) -> None:
        self._columns, self._numbers, self._sentence, self._spare = columns, numbers, sentence, spare
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *values: object) -> None:
        """Add a row; what is no `Text` yet becomes a cell."""
        self._rows.append(tuple(value if isinstance(value, Text) else cell(value) for value in values))

    def print(self, console: Console) -> None:
        """Print what fits the console best."""
        everything = [index for index in range(len(self._columns)) if index == 0 or self._says_something(index)]
        essential = [index for index in everything if self._columns[index] not in self._spare]
        for shown in (everything, essential):
            if self._width(shown) <= console.width:
                self._print_table(console, shown)
                return
        self._print_blocks(console)

    def _says_something(self, index: int) -> bool:
        return any(row[index].plain != _NOTHING for row in self._rows)

    def _width(self, shown: Sequence[int]) -> int:
        """Columns of the terminal that a table of these needs at least."""
        total = _GAP * (len(shown) - 1)
        for index in shown:
            width = max([len(self._columns[index]), *(row[index].cell_len for row in self._rows)])
            total += min(width, _NARROWEST_SENTENCE) if self._columns[index] == self._sentence else width
        return total

    def _print_table(self, console: Console, shown: Sequence[int]) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for index in shown:
            name = self._columns[index]
            justify = "right" if name in self._numbers else "left"
            table.add_column(name, justify=justify, no_wrap=name != self._sentence, overflow="fold")  # type: ignore[arg-type]
        for row in self._rows:
            table.add_row(*(row[index] for index in shown))
        with console.capture() as captured:
            console.print(table)
        # The last column is padded, which only gets in the way when it is copied or compared.
        print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n", file=console.file)

    def _print_blocks(self, console: Console) -> None:
        for row in self._rows:
            console.print(row[0])
            pairs = zip(self._columns[1:], row[1:], strict=True)
            parts = [Text.assemble((f"{name} ", "dim"), value) for name, value in pairs if value.plain != _NOTHING]
            console.print(Padding(Text(", ").join(parts), (0, 0, 0, _GAP), expand=False))

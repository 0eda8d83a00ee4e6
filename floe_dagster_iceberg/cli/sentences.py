"""Errors and warnings as a person at a terminal reads them. What prints them is loaded when there is one."""

from typing import IO, Any

import click

from floe_dagster_iceberg.errors import FloeStorageError, NoSuchNamespaceError, SnapshotNotFoundError


class Told(click.ClickException):
    """An error as a sentence, broken between words where the terminal ends."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        del file
        _print(f"Error: {self.format_message()}")


def warn(*faults: str | None) -> None:
    """Tell what is wrong, but in nobody's way."""
    for fault in filter(None, faults):
        _print(f"Warning: {fault}", "yellow")


def in_our_words(error: FloeStorageError) -> str:
    """An error with a remedy for who has no Python at hand."""
    match error:
        case SnapshotNotFoundError():
            return (
                f"Table '{error.table}' has no snapshot, branch or tag '{error.snapshot}'. It may have expired; "
                f"'floe-iceberg inspect {error.table} --snapshots 100' lists what is there."
            )
        case NoSuchNamespaceError():
            return f"Namespace '{error.namespace}' not found in the catalog. 'floe-iceberg tables' lists what is there."
        case _:
            return str(error)


def _print(sentence: str, style: str = "") -> None:
    from floe_dagster_iceberg.cli.console import cell, open_console  # noqa: PLC0415 - it brings rich along

    open_console(to_errors=True).print(cell(sentence, style))

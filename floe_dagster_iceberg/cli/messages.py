"""Errors and warnings on the terminal."""

from typing import IO, Any

import click

from floe_dagster_iceberg.errors import FloeStorageError, NoSuchNamespaceError, SnapshotNotFoundError


class CliError(click.ClickException):
    """An error message, wrapped between words where the terminal ends."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        del file
        _print(f"Error: {self.format_message()}")


def warn(*messages: str | None) -> None:
    """Print warnings to standard error."""
    for message in filter(None, messages):
        _print(f"Warning: {message}", "yellow")


def cli_message(error: FloeStorageError) -> str:
    """The message of an error, with a command as its remedy where the original names Python code."""
    match error:
        case SnapshotNotFoundError():
            return (
                f"Table '{error.table}' has no snapshot, branch or tag '{error.snapshot}'. It may have expired; "
                f"'floe-iceberg inspect {error.table} --snapshots 100' lists the existing ones."
            )
        case NoSuchNamespaceError():
            return f"Namespace '{error.namespace}' not found in the catalog. 'floe-iceberg tables' lists the tables."
        case _:
            return str(error)


def _print(message: str, style: str = "") -> None:
    from floe_dagster_iceberg.cli.console import cell, open_console  # noqa: PLC0415 - it imports rich

    open_console(to_errors=True).print(cell(message, style))

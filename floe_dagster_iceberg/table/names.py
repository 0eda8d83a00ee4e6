"""Names of tables: as users pass them, as PyIceberg holds them, as messages print them."""

from typing import Protocol, TypeAlias

from pyiceberg.table import Table

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableConfig, TableIdentifier
from floe_dagster_iceberg.models.identifiers import join_parts, split_parts

TableRef: TypeAlias = Table | str | TableIdentifier
"""A table, by itself or by name."""


class Named(Protocol):
    """A table, or one that is about to be created."""

    def name(self) -> tuple[str, ...]: ...


def table_name(table: Named) -> str:
    """The name of a table as text."""
    return join_parts(table.name())


def check_new_name(identifier: TableIdentifier) -> None:
    """Check the name of a table before it is created; the names of existing tables are their own.

    Raises:
        ValidationError: It breaks the naming rule.
    """
    if not identifier.follows_naming_rule:
        raise ValidationError(
            f"Table '{identifier}' cannot be created: its name is not valid. Use parts of letters, digits, '_' and "
            "'-', joined by dots.",
            table=identifier,
        )


def to_identifier(table: TableRef | TableConfig) -> TableIdentifier:
    """The name of a table; in text, parts that another tool named are accepted as they are, or in backticks.

    Raises:
        ValidationError: The text is no table name.
    """
    match table:
        case TableIdentifier():
            return table
        case TableConfig():
            return table.identifier
        case Table():
            return TableIdentifier.from_tuple(table.name())
        case str():
            try:
                return TableIdentifier.from_tuple(split_parts(table))
            except ValueError as error:
                raise ValidationError(str(error), table=table) from None
        case _:
            raise ValidationError(
                f"A table is given as 'namespace.name', a TableIdentifier or a Table, not as {type(table).__name__}."
            )

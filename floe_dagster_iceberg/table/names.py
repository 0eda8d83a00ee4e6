"""Names of tables: as users pass them, as PyIceberg holds them, as messages print them."""

from typing import Protocol, TypeAlias

from pyiceberg.table import Table

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableConfig, TableIdentifier

TableRef: TypeAlias = Table | str | TableIdentifier
"""A table, by itself or by name."""


class Named(Protocol):
    """A table, or one that is about to be created."""

    def name(self) -> tuple[str, ...]: ...


def table_name(table: Named) -> str:
    """The name of a table as text."""
    return ".".join(table.name())


def to_identifier(table: TableRef | TableConfig) -> TableIdentifier:
    """The name of a table.

    Raises:
        ValidationError: The text is no table name.
    """
    match table:
        case TableIdentifier():
            return table
        case TableConfig():
            return table.identifier
        case Table():
            *namespace, name = table.name()
            return TableIdentifier.model_construct(namespace=".".join(namespace), name=name)
        case str():
            try:
                return TableIdentifier.from_string(table)
            except ValueError as error:
                raise ValidationError(str(error), table=table) from None
        case _:
            raise ValidationError(
                f"A table is given as 'namespace.name', a TableIdentifier or a Table, not as {type(table).__name__}."
            )

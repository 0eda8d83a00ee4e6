"""Names of tables."""

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field

from floe_dagster_iceberg.models.base import FrozenModel

_PART: Final = r"[\w-]+"
_RULE: Final = "letters, digits, '_' and '-'"
_NAME_PATTERN: Final = re.compile(rf"{_PART}\Z")

IDENTIFIER_PATTERN: Final = re.compile(rf"{_PART}(?:\.{_PART})*\Z")
"""A namespace or a whole identifier: parts of letters (of any script), digits, '_' and '-', joined by single dots."""


def _check_namespace(namespace: str) -> str:
    if not IDENTIFIER_PATTERN.match(namespace):
        raise ValueError(f"namespace {namespace!r} is not valid: use parts of {_RULE}, joined by single dots")
    return namespace


def _check_name(name: str) -> str:
    if not _NAME_PATTERN.match(name):
        raise ValueError(f"table name {name!r} is not valid: use {_RULE}; dots belong to the namespace")
    return name


Namespace = Annotated[str, AfterValidator(_check_namespace)]
TableName = Annotated[str, AfterValidator(_check_name)]


class TableIdentifier(FrozenModel):
    """Namespace and name of a table.

    >>> TableIdentifier.from_string("bronze.raw.events").namespace
    'bronze.raw'
    """

    namespace: Namespace = Field(description="Namespace; nested levels are joined by dots, as in 'bronze.raw'.")
    name: TableName = Field(description="Name of the table inside its namespace.")

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @classmethod
    def from_string(cls, identifier: str) -> Self:
        """Parse 'namespace.table', where the namespace may have several parts.

        Raises:
            ValueError: The text has no namespace, or a part breaks the naming rule.
        """
        namespace, dot, name = identifier.rpartition(".")
        if not dot:
            raise ValueError(f"Table identifier {identifier!r} has no namespace: write it as 'namespace.table'.")
        if not IDENTIFIER_PATTERN.match(identifier):
            raise ValueError(f"Table identifier {identifier!r} is not valid: use parts of {_RULE}, joined by dots.")
        return cls(namespace=namespace, name=name)

    @property
    def namespace_parts(self) -> tuple[str, ...]:
        """The levels of the namespace, outermost first."""
        return tuple(self.namespace.split("."))

    @property
    def as_tuple(self) -> tuple[str, ...]:
        """Namespace levels and name, as PyIceberg's catalogs take them."""
        return (*self.namespace_parts, self.name)

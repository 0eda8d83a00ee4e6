"""Names of tables."""

import re
from collections.abc import Sequence
from typing import Annotated, Final, Self, cast

from pydantic import AfterValidator, Field

from floe_dagster_iceberg.models.base import FrozenModel

_PART: Final = r"[\w-]+"
_RULE: Final = "letters, digits, '_' and '-'"
_NAME_PATTERN: Final = re.compile(rf"{_PART}\Z")
_QUOTED: Final = r"`(?:[^`]|``)+`"
_QUOTED_PATTERN: Final = re.compile(rf"(?:{_QUOTED}|{_PART})(?:\.(?:{_QUOTED}|{_PART}))*\Z")
# Also parts that are empty, or that only another tool allows.
_ANY_PART: Final = re.compile(r"`(?:[^`]|``)*`|[^.`]+")

IDENTIFIER_PATTERN: Final = re.compile(rf"{_PART}(?:\.{_PART})*\Z")
"""A namespace or a whole identifier: parts of letters (of any script), digits, '_' and '-', joined by single dots."""


def join_parts(parts: Sequence[str]) -> str:
    """Join the parts of a name by dots; parts with a dot or a backtick are quoted with backticks, as in Spark.

    >>> join_parts(("bronze", "my events", "v1.0"))
    'bronze.my events.`v1.0`'
    """
    return ".".join(f"`{part.replace('`', '``')}`" if not part or set(".`") & set(part) else part for part in parts)


def split_parts(name: str) -> tuple[str, ...]:
    """Split a name at its dots, except inside backticks; the reverse of `join_parts`.

    >>> split_parts("`my events`.`v1.0`")
    ('my events', 'v1.0')

    Raises:
        ValueError: A part is empty, or a backtick is not closed.
    """
    parts, at = [], 0
    while (found := _ANY_PART.match(name, at)) is not None:
        part, at = found[0], found.end() + 1
        parts.append(part[1:-1].replace("``", "`") if part.startswith("`") else part)
        if found.end() == len(name):
            return tuple(parts)
        if name[found.end()] != ".":
            break
    raise ValueError(f"{name!r} is not a name: it has an empty part, or a backtick that is not closed.")


def namespace_of(name: str) -> str:
    """The namespace of a table's name, as text; empty if there is none.

    >>> namespace_of("bronze.raw.`v1.0`")
    'bronze.raw'
    """
    try:
        return join_parts(split_parts(name)[:-1])
    except ValueError:
        return name.rpartition(".")[0]


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

    The naming rule is for tables that this package creates. The name of an existing table may have other parts:
    `from_string` takes them in backticks, as Spark does, and `from_tuple` as PyIceberg lists them.

    >>> TableIdentifier.from_string("bronze.raw.events").namespace
    'bronze.raw'
    >>> TableIdentifier.from_string("`my events`.`v1.0`").as_tuple
    ('my events', 'v1.0')
    """

    namespace: Namespace = Field(description="Namespace; nested levels are joined by dots, as in 'bronze.raw'.")
    name: TableName = Field(description="Name of the table inside its namespace.")

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @classmethod
    def from_string(cls, identifier: str) -> Self:
        """Parse 'namespace.table', where the namespace may have several parts, and parts may be in backticks.

        Raises:
            ValueError: The text has no namespace, or a part breaks the naming rule and is not in backticks.
        """
        if _QUOTED_PATTERN.match(identifier):
            *namespace, name = split_parts(identifier)
            if namespace:
                return cls.from_tuple((*namespace, name))
        elif "." in identifier:
            raise ValueError(
                f"Table identifier {identifier!r} is not valid: use parts of {_RULE}, joined by dots; put other names "
                "in backticks."
            )
        raise ValueError(f"Table identifier {identifier!r} has no namespace: write it as 'namespace.table'.")

    @classmethod
    def from_tuple(cls, parts: Sequence[str]) -> Self:
        """The identifier of an existing table, by namespace levels and name as PyIceberg lists them.

        The naming rule does not apply: another tool may have chosen the name.

        Raises:
            ValueError: There is no namespace.
        """
        *namespace, name = parts
        if not namespace:
            raise ValueError(f"Table identifier {name!r} has no namespace: write it as 'namespace.table'.")
        return cast("Self", cls.model_construct(namespace=join_parts(namespace), name=join_parts([name])))

    @property
    def namespace_parts(self) -> tuple[str, ...]:
        """The levels of the namespace, outermost first."""
        return self.as_tuple[:-1]

    @property
    def as_tuple(self) -> tuple[str, ...]:
        """Namespace levels and name, as PyIceberg's catalogs take them."""
        return (*split_parts(self.namespace), *split_parts(self.name))

    @property
    def follows_naming_rule(self) -> bool:
        """Whether this package may create a table of this name."""
        return all(_NAME_PATTERN.match(part) for part in self.as_tuple)

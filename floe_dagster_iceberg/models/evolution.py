"""Changes to a table's schema."""

from enum import StrEnum
from typing import Final, Self

from pydantic import Field, model_validator
from pyiceberg.types import IcebergType

from floe_dagster_iceberg.models.base import FrozenModel, Items
from floe_dagster_iceberg.models.fields import ColumnType, to_pyiceberg_type


class SchemaChangeType(StrEnum):
    """The kinds of change to a schema."""

    ADD_COLUMN = "add_column"
    RENAME_COLUMN = "rename_column"
    WIDEN_TYPE = "widen_type"
    MAKE_OPTIONAL = "make_optional"
    MAKE_REQUIRED = "make_required"
    DELETE_COLUMN = "delete_column"
    UPDATE_DOC = "update_doc"


# By kind of change: its required arguments, then its optional ones.
_ARGUMENTS: Final[dict[SchemaChangeType, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    SchemaChangeType.ADD_COLUMN: (("new_type",), ("new_doc", "precision", "scale", "length")),
    SchemaChangeType.RENAME_COLUMN: (("new_name",), ()),
    SchemaChangeType.WIDEN_TYPE: (("new_type",), ("precision", "scale", "length")),
    SchemaChangeType.MAKE_OPTIONAL: ((), ()),
    SchemaChangeType.MAKE_REQUIRED: ((), ()),
    SchemaChangeType.DELETE_COLUMN: ((), ()),
    SchemaChangeType.UPDATE_DOC: (("new_doc",), ()),
}
_ALL_ARGUMENTS: Final = ("new_type", "new_name", "new_doc", "precision", "scale", "length")
_INCOMPATIBLE: Final = frozenset({SchemaChangeType.DELETE_COLUMN, SchemaChangeType.MAKE_REQUIRED})


class SchemaChange(FrozenModel):
    """One change to one column.

    A new column is always optional, because existing rows have no value for it.
    """

    change_type: SchemaChangeType = Field(description="What happens to the column.")
    column_name: str = Field(min_length=1, description="The column; dots reach into structs, as in 'address.city'.")
    new_type: ColumnType | None = Field(default=None, description="Type of an added or widened column.")
    new_name: str | None = Field(default=None, min_length=1, description="New name, without the path to it.")
    new_doc: str | None = Field(default=None, description="New documentation; empty text clears it.")
    precision: int | None = Field(default=None, description="Digits of a decimal.")
    scale: int | None = Field(default=None, description="Digits after the point of a decimal.")
    length: int | None = Field(default=None, description="Length in bytes of a fixed column.")

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        needed, optional = _ARGUMENTS[self.change_type]
        for argument in _ALL_ARGUMENTS:
            given = getattr(self, argument) is not None
            if argument in needed and not given:
                raise ValueError(f"{self.change_type} of '{self.column_name}' needs {argument}")
            if given and argument not in (*needed, *optional):
                raise ValueError(f"{self.change_type} of '{self.column_name}' takes no {argument}; leave it out")
        return self

    @model_validator(mode="after")
    def _check_type_arguments(self) -> Self:
        self.to_pyiceberg_type()
        return self

    @property
    def path(self) -> tuple[str, ...]:
        """The column name in parts, as PyIceberg's schema update takes it."""
        return tuple(self.column_name.split("."))

    @property
    def is_incompatible(self) -> bool:
        """Whether the change can break existing readers or writers."""
        return self.change_type in _INCOMPATIBLE

    def to_pyiceberg_type(self) -> IcebergType | None:
        """`new_type` as a PyIceberg type; None for changes without a type."""
        if self.new_type is None:
            return None
        try:
            return to_pyiceberg_type(self.new_type, precision=self.precision, scale=self.scale, length=self.length)
        except ValueError as error:
            raise ValueError(f"{self.change_type} of '{self.column_name}': {error}") from error


class SchemaEvolution(FrozenModel):
    """Changes that are applied together: all of them in one commit, or none."""

    changes: Items[SchemaChange] = Field(min_length=1, description="The changes, in order.")
    allow_incompatible_changes: bool = Field(
        default=False, description="Whether columns may be deleted or made required, which can break readers."
    )

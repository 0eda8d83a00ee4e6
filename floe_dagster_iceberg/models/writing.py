"""How rows are written to a table."""

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, Self, TypeAlias, get_args

import pydantic
from pyiceberg.expressions import BooleanExpression

from floe_dagster_iceberg.models.base import FrozenModel, Items, first_duplicate

_COMPUTED_BY_ICEBERG: Final = re.compile(
    r"operation|(added|deleted|removed|total)-.*|changed-partition-count|partitions\..*"
)

RowsOutside: TypeAlias = Literal["error", "drop", "allow"]
"""What happens to rows that do not belong to the partitions being written."""


FormatVersion: TypeAlias = Literal[1, 2, 3]
"""Version of Iceberg's table format."""
FORMAT_VERSIONS: Final[tuple[int, ...]] = get_args(FormatVersion)
DEFAULT_FORMAT_VERSION: Final = 2
FORMAT_VERSION: Final = "format-version"
"""The reserved table property that names it."""


class WriteMode(StrEnum):
    """What happens to existing rows."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    UPSERT = "upsert"


class EvolutionMode(StrEnum):
    """Which schema changes a write may make; none ever drops or renames a column."""

    NONE = "none"
    ADD = "add"
    WIDEN = "widen"


class CommitStrategy(StrEnum):
    """How a commit treats the table's manifests.

    A fast append adds one manifest and reads none, except that ten small ones become one. A merge
    commit merges small manifests each time, which is slower to write and faster to read.
    """

    FAST_APPEND = "fast_append"
    MERGE_COMMIT = "merge_commit"


def _read_row_filter(value: object) -> object:
    # PyIceberg takes True for "all rows" and raises a TypeError on objects it does not know.
    match value:
        case str() if value.strip():
            return value
        case BooleanExpression():
            return value
        case {"type": _}:
            try:
                return BooleanExpression.model_validate(value)
            except (TypeError, ValueError):
                # Not chained: PyIceberg's message quotes the values of the filter.
                raise ValueError("the object is no Iceberg expression: its type is unknown or a part missing") from None
    raise ValueError("a row filter is a text such as \"region = 'EU'\" or a PyIceberg expression")


ColumnName: TypeAlias = Annotated[str, pydantic.StringConstraints(min_length=1)]
RowFilter: TypeAlias = Annotated[
    str | pydantic.SerializeAsAny[BooleanExpression],
    pydantic.BeforeValidator(_read_row_filter),
    pydantic.WithJsonSchema(
        {
            "anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "required": ["type"]}],
            "description": "A text, or an Iceberg expression as the REST specification writes it.",
        }
    ),
]
"""Which rows: a text such as "region = 'EU'", or a PyIceberg expression."""


class WriteConfig(FrozenModel):
    """How one write goes into a table."""

    # A filter contains data values: keep them out of error messages and the repr.
    model_config = pydantic.ConfigDict(hide_input_in_errors=True)

    mode: WriteMode = pydantic.Field(
        default=WriteMode.APPEND, description="Whether rows are added, replaced or merged."
    )
    commit_strategy: CommitStrategy | None = pydantic.Field(
        default=None, description="How manifests are treated; the table manager's default if not given."
    )
    overwrite_filter: RowFilter | None = pydantic.Field(
        default=None, repr=False, description="The rows to replace, only for overwrite; all rows if not given."
    )
    join_columns: Items[ColumnName] = pydantic.Field(
        default=(), description="Columns that match rows; only for upsert."
    )
    snapshot_properties: dict[str, str] = pydantic.Field(
        default_factory=dict, description="Properties kept in the summary of the snapshot."
    )
    branch: str | None = pydantic.Field(
        default=None, min_length=1, description="Branch to write to; main if not given."
    )

    @pydantic.model_validator(mode="after")
    def _check_mode_arguments(self) -> Self:
        if self.mode is WriteMode.UPSERT and not self.join_columns:
            raise ValueError("upsert needs join_columns: name the columns that identify a row")
        if self.mode is not WriteMode.UPSERT and self.join_columns:
            raise ValueError(f"{self.mode} takes no join_columns: leave them out, or set mode to upsert")
        if self.mode is not WriteMode.OVERWRITE and self.overwrite_filter is not None:
            raise ValueError(f"{self.mode} takes no overwrite_filter: leave it out, or set mode to overwrite")
        if (column := first_duplicate(self.join_columns)) is not None:
            raise ValueError(f"join column '{column}' is named twice: name each column once")
        return self

    @pydantic.model_validator(mode="after")
    def _check_snapshot_properties(self) -> Self:
        for key in self.snapshot_properties:
            if _COMPUTED_BY_ICEBERG.fullmatch(key):
                raise ValueError(f"snapshot property '{key}' is computed by Iceberg: choose another name")
        return self

"""How rows are written to a table."""

import re
from dataclasses import dataclass
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
OnMatch: TypeAlias = Literal["update", "ignore"]
"""What an upsert does to rows of the table whose key is in the data."""
OnMissing: TypeAlias = Literal["keep", "delete"]
"""What an upsert does to rows of the table whose key is not in the data."""

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


@dataclass(frozen=True)
class MergeRules:
    """What an upsert does to the rows of a table, which both engines follow; the defaults update and insert.

    Attributes:
        keys: Columns that identify a row.
        delete_when: Which rows of the data delete the row of their key; a boolean column, or a filter.
        order_by: Columns that say which row is newer: of several rows with one key the newest counts, and only if it is
            not older than that of the table.
        on_match: Whether rows whose key is in the data are updated.
        update_columns: The columns that an update changes; all if empty.
        on_missing: Whether rows whose key is not in the data stay.
    """

    keys: tuple[str, ...] = ()
    delete_when: RowFilter | None = None
    order_by: tuple[str, ...] = ()
    on_match: OnMatch = "update"
    update_columns: tuple[str, ...] = ()
    on_missing: OnMissing = "keep"

    @property
    def only_upserts(self) -> bool:
        """Whether nothing but the keys is set."""
        return self == MergeRules(self.keys)

    @property
    def only_inserts(self) -> bool:
        """Whether the rows of the table stay as they are, whatever the data is."""
        return self.on_match == "ignore" and self.delete_when is None and self.on_missing == "keep"

    def describe_conflict(self, prefix: str = "") -> str | None:
        """What contradicts itself, in words; `prefix` is that of the settings' names."""
        if self.on_match == "ignore" and self.update_columns:
            return f"'{prefix}update_columns' has no effect if '{prefix}on_match' is ignore: leave one of them out"
        if column := next((name for name in self.update_columns if name in self.keys), None):
            return f"'{prefix}update_columns' has the key column '{column}', which identifies the row: leave it out"
        if self.update_columns and (column := next((n for n in self.order_by if n not in self.update_columns), None)):
            return (
                f"'{prefix}order_by' has column '{column}', which '{prefix}update_columns' lacks, so that the table "
                "would never have the newer value: add it there"
            )
        if column := next((name for name in self.order_by if name in self.keys), None):
            return (
                f"'{prefix}order_by' has the key column '{column}', which is equal in all rows of a key: leave it out"
            )
        return None


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
    delete_when: RowFilter | None = pydantic.Field(
        default=None,
        repr=False,
        description="Rows of the data that delete the row of their key: a boolean column, or a filter; for upsert.",
    )
    order_by: Items[ColumnName] = pydantic.Field(
        default=(), description="Columns that say which row of a key is the newest; only for upsert."
    )
    on_match: OnMatch = pydantic.Field(
        default="update", description="Whether an upsert updates rows whose key is in the data, or ignores them."
    )
    update_columns: Items[ColumnName] = pydantic.Field(
        default=(), description="The columns that an upsert updates; all that the data has if not given."
    )
    on_missing: OnMissing = pydantic.Field(
        default="keep", description="Whether an upsert keeps rows whose key is not in the data, or deletes them."
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
        if self.mode is not WriteMode.UPSERT and not self.merge_rules.only_upserts:
            raise ValueError(f"{self.mode} does not merge rows: leave the options of upsert out, or set mode to upsert")
        for columns in (self.join_columns, self.order_by, self.update_columns):
            if (column := first_duplicate(columns)) is not None:
                kind = "join column" if columns is self.join_columns else "column"
                raise ValueError(f"{kind} '{column}' is named twice: name each column once")
        if (conflict := self.merge_rules.describe_conflict()) is not None:
            raise ValueError(conflict)
        return self

    @property
    def merge_rules(self) -> MergeRules:
        """What an upsert does to the rows of the table."""
        return MergeRules(
            keys=tuple(self.join_columns),
            delete_when=self.delete_when,
            order_by=tuple(self.order_by),
            on_match=self.on_match,
            update_columns=tuple(self.update_columns),
            on_missing=self.on_missing,
        )

    @pydantic.model_validator(mode="after")
    def _check_snapshot_properties(self) -> Self:
        for key in self.snapshot_properties:
            if _COMPUTED_BY_ICEBERG.fullmatch(key):
                raise ValueError(f"snapshot property '{key}' is computed by Iceberg: choose another name")
        return self

"""How small files are merged into larger ones."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Self

from pydantic import Field, model_validator

from floe_dagster_iceberg.models.base import FrozenModel, Items, first_duplicate
from floe_dagster_iceberg.models.writing import ColumnName

MIB: Final = 1024 * 1024
MIN_TARGET_FILE_SIZE_BYTES: Final = MIB
MAX_TARGET_FILE_SIZE_BYTES: Final = 1024 * MIB
DEFAULT_TARGET_FILE_SIZE_BYTES: Final = 128 * MIB


class CompactionStrategyType(StrEnum):
    """How rows are arranged when files are rewritten."""

    BIN_PACK = "bin_pack"
    SORT = "sort"
    Z_ORDER = "z_order"


class CompactionStrategy(FrozenModel):
    """How files are rewritten."""

    strategy_type: CompactionStrategyType = Field(
        default=CompactionStrategyType.BIN_PACK, description="How rows are arranged in the new files."
    )
    target_file_size_bytes: int = Field(
        default=DEFAULT_TARGET_FILE_SIZE_BYTES,
        ge=MIN_TARGET_FILE_SIZE_BYTES,
        le=MAX_TARGET_FILE_SIZE_BYTES,
        description="Size that new files should come close to, 1 MiB to 1 GiB.",
    )
    sort_columns: Items[ColumnName] = Field(default=(), description="Columns to arrange by; for sort and z_order.")
    max_concurrent_file_group_rewrites: int = Field(
        default=5, ge=1, le=100, description="Groups of files that are rewritten at the same time."
    )

    @model_validator(mode="after")
    def _check_sort_columns(self) -> Self:
        check_sort_columns(self.strategy_type, self.sort_columns)
        return self


def check_sort_columns(strategy_type: CompactionStrategyType, sort_columns: Sequence[str]) -> None:
    """Refuse a strategy that lacks the columns it arranges by, or has columns it does not use.

    Raises:
        ValueError: With a sentence that says what to change.
    """
    if strategy_type is CompactionStrategyType.BIN_PACK:
        if sort_columns:
            raise ValueError("bin_pack takes no sort_columns: leave them out, or choose sort or z_order")
        return
    if not sort_columns:
        raise ValueError(f"{strategy_type} needs sort_columns: name the columns to arrange by")
    if (column := first_duplicate(sort_columns)) is not None:
        raise ValueError(f"sort column '{column}' is named twice: name each column once")

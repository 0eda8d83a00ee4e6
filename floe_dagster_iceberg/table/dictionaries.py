"""Which columns of a file get a dictionary: those whose values come again.

Parquet replaces values by numbers of a list, unless told otherwise. For ids, amounts and texts that hardly repeat
that list is as long as the column, and making it takes longer than writing the values: such a file is larger with
dictionaries than without, and takes half as long again to write.
"""

from typing import Final

import pyarrow as pa

# With fewer rows there is nothing to win.
FEWEST_ROWS: Final = 20_000
# Twice as many values as a dictionary can hold: Parquet gives it up at 2 MB.
MOST_VALUES: Final = 2**20
# Neighbours, because equal values often stand together, and from all over, because they do not always.
_BLOCKS: Final = 16
_BLOCK_ROWS: Final = 128


def unrepeated_columns(rows: pa.Table) -> set[str]:
    """Columns of plain types whose values, judged by a sample, come less than twice each."""
    if rows.num_rows < FEWEST_ROWS:
        return set()
    step = (rows.num_rows - _BLOCK_ROWS) // (_BLOCKS - 1)
    sample = pa.concat_tables([rows.slice(number * step, _BLOCK_ROWS) for number in range(_BLOCKS)])
    return {
        field.name
        for field in sample.schema
        if _has_plain_values(field.type) and _hardly_repeats(sample.column(field.name), rows.num_rows)
    }


def _has_plain_values(kind: pa.DataType) -> bool:
    # Booleans have no dictionary in the first place.
    return not (pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _hardly_repeats(sample: pa.ChunkedArray, rows: int) -> bool:
    """Whether at least half of the values of all rows are different.

    Of n values drawn from d different ones about n² / 2d have been drawn before.
    """
    if isinstance(sample.type, pa.BaseExtensionType):
        sample = sample.cast(sample.type.storage_type)
    values = len(sample) - sample.null_count
    repeated = values - len(sample.drop_null().unique())
    # Rows without a value count for nothing.
    return bool(values) and bool(repeated * min(rows, MOST_VALUES) <= values * len(sample))

"""Files of a table that are there and are invalid."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from floe_dagster_iceberg.errors import ScanError

# What Arrow's Parquet reader and PyIceberg's Avro reader raise when bytes are not what they should be.
_SIGNS_OF_DAMAGE = (pa.ArrowInvalid, EOFError, SystemError, UnicodeDecodeError, zlib.error)


@contextmanager
def reading_files(location: str) -> Iterator[None]:
    """Tell what corrupt files make their readers raise.

    Args:
        location: Where the table lies.

    Raises:
        ScanError: A data file or manifest read in the block is corrupt.
    """
    try:
        yield
    except _SIGNS_OF_DAMAGE as error:
        # Not chained: Arrow's messages may show a value.
        raise ScanError(
            f"A file of the table in '{location}' is corrupt and cannot be read ({type(error).__name__}). "
            "Restore it, or roll the table back to a snapshot that does not need it."
        ) from None

"""Bloom filters: in the files that a table's properties ask for them, as large as they say."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.lake import Lake

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.table.manager import IcebergTableManager

ENABLED, FPP, NDV = (f"write.parquet.bloom-filter-{setting}.column." for setting in ("enabled", "fpp", "ndv"))
MAX_BYTES = "write.parquet.bloom-filter-max-bytes"
T = "bronze.t"
ROWS = pa.table(
    {
        "id": range(1000),
        "name": [f"name {number}" for number in range(1000)],
        "a b": ["text"] * 1000,
        "flag": [True] * 1000,
        "place": [{"city": f"city {number % 7}"} for number in range(1000)],
        "tags": [[f"tag {number % 3}"] for number in range(1000)],
    }
)


def filters_of(lake: Lake) -> list[dict[str, int]]:
    """For each data file on disk, the bytes of the filter of each column that has one."""
    found = []
    for path in sorted(lake.data_files()):
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
        found.append(
            {column.path_in_schema: column.bloom_filter_length for column in columns if column.bloom_filter_offset}
        )
    return found


def write(manager: IcebergTableManager, properties: dict[str, str], rows: pa.Table = ROWS) -> None:
    manager.create_table(T, ROWS.schema, properties=properties)
    manager.append(T, rows)


def test_columns_have_filters_wherever_they_are_in_the_schema(lake: Lake, manager: IcebergTableManager) -> None:
    asked = ("id", "a b", "place.city", "tags.element", "flag", "dropped long ago")
    write(manager, {f"{ENABLED}{column}": "true" for column in asked} | {f"{ENABLED}name": "false"})

    (found,) = filters_of(lake)
    assert found.keys() == {"id", "a_x20b", "place.city", "tags.list.element"}


def test_nothing_asked_for_is_nothing_written(lake: Lake, manager: IcebergTableManager) -> None:
    write(manager, {})

    assert filters_of(lake) == [{}]


def test_files_that_are_rewritten_have_filters_too(lake: Lake, manager: IcebergTableManager) -> None:
    write(manager, {f"{ENABLED}id": "true"}, ROWS.slice(0, 500))
    manager.append(T, ROWS.slice(500))
    manager.delete(T, "id = 1")
    manager.compact_table(T)

    assert [found.keys() for found in filters_of(lake)] == [{"id"}] * 4


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        # A power of two of bytes, as the number of values and the probability need it, and a head of a few bytes.
        ({}, 2048),
        ({f"{FPP}id": "0.5"}, 512),
        ({f"{NDV}id": "10"}, 32),
        ({MAX_BYTES: "1000"}, 512),
        # More values than there are: Arrow makes the filter as small as it can be.
        ({f"{NDV}id": "100000"}, 2048),
    ],
)
def test_a_filter_is_as_large_as_the_table_says(
    lake: Lake, manager: IcebergTableManager, properties: dict[str, str], expected: int
) -> None:
    write(manager, {f"{ENABLED}id": "true"} | properties)

    ((length,),) = [list(found.values()) for found in filters_of(lake)]
    assert expected <= length < expected + 32


@pytest.mark.parametrize(
    ("key", "value", "meaning"),
    [
        (f"{FPP}id", "2", "a probability between 0 and 1"),
        (f"{FPP}id", "often", "a probability between 0 and 1"),
        (f"{NDV}id", "0", "a number of values"),
        (MAX_BYTES, "1MB", "a number of bytes"),
    ],
)
def test_a_setting_that_makes_no_filter_is_refused(
    lake: Lake, manager: IcebergTableManager, key: str, value: str, meaning: str
) -> None:
    with pytest.raises(ValidationError, match=f"'{key}' is '{value}', which is not {meaning}"):
        write(manager, {f"{ENABLED}id": "true", key: value})

    assert lake.data_files() == set()

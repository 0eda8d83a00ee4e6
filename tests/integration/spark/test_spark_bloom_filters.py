"""The Bloom filters that Arrow writes are those that Spark looks into."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from support.spark_lake import EVENTS, SparkLake

# At least as long as what is in front of the bits of a filter, and much shorter than those.
HEAD_BYTES = 32
ENABLED = "write.parquet.bloom-filter-enabled.column."


def ids(lake: SparkLake, condition: str) -> list[int]:
    found = lake.session.sql(f"SELECT id FROM floe.public.events WHERE {condition}")  # noqa: S608 - of this file
    return sorted(row[0] for row in found.collect())


def test_spark_skips_files_by_the_filters_that_arrow_wrote(tmp_path: Path) -> None:
    lake = SparkLake.open(tmp_path)
    # More different values than a dictionary is worth: Spark would rather look into that.
    names = [f"name {number}" for number in range(40_000)]
    rows = pa.table({"id": range(40_000), "name": names, "size": [number * 2 for number in range(40_000)]})
    lake.create(rows.schema, rows, properties={f"{ENABLED}name": "true", f"{ENABLED}size": "true"})
    asked = {"name = 'name 777'": [777], "size = 1554": [777], "name = 'nobody'": [], "size = 1555": []}
    assert {condition: ids(lake, condition) for condition in asked} == asked

    # With every bit of the filters gone, Spark believes that nothing is there.
    (path,) = (lake.folder / "warehouse").rglob("*.parquet")
    content, group = bytearray(path.read_bytes()), pq.ParquetFile(path).metadata.row_group(0)
    for column in (group.column(1), group.column(2)):
        bits = column.bloom_filter_length - HEAD_BYTES
        end = column.bloom_filter_offset + column.bloom_filter_length
        content[end - bits : end] = bytes(bits)
    path.write_bytes(content)
    assert {condition: ids(lake, condition) for condition in asked} == {condition: [] for condition in asked}
    assert lake.manager.scan(EVENTS).num_rows == 40_000

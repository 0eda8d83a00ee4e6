"""What only the Arrow engine takes: frames of other libraries, streams, and Arrow's own spellings of a type."""

import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import AssetsDefinition, StaticPartitionsDefinition, asset
from support.io_results import failure_of, shown
from support.warehouse import ArrowWarehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

MEGABYTE = 1024 * 1024
NUMBERS = {"id": [1, 2, 3], "name": ["a", "b", None]}
ROWS = [(1, "a"), (2, "b"), (3, None)]
ARROW = pa.table(NUMBERS)
FRAMES = {
    "pyarrow.Table": lambda: ARROW,
    "pyarrow.RecordBatch": lambda: ARROW.to_batches()[0],
    "pyarrow.RecordBatchReader": ARROW.to_reader,
    "pandas.DataFrame": lambda: pd.DataFrame(NUMBERS),
    "polars.DataFrame": lambda: pl.DataFrame(NUMBERS),
    "polars.LazyFrame": lambda: pl.LazyFrame(NUMBERS),
}


@pytest.mark.requirement("S2-US8.1", "S2-FR-037", "D3")
@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES.keys())
def test_frames_of_every_library_are_stored(arrow_warehouse: ArrowWarehouse, make: Any) -> None:
    @asset
    def numbers() -> Any:
        return make()

    arrow_warehouse.run(numbers)

    assert arrow_warehouse.rows("numbers") == ROWS


@pytest.mark.requirement("S2-US8.1", "S2-FR-037", "D3")
@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES.keys())
def test_frames_of_every_library_go_into_partitions(arrow_warehouse: ArrowWarehouse, make: Any) -> None:
    @asset(
        partitions_def=StaticPartitionsDefinition(["1", "2"]),
        metadata={"partition_expr": "id", "iceberg/rows_outside_partition": "drop"},
    )
    def numbers() -> Any:
        return make()

    for key in ("1", "2", "1"):
        arrow_warehouse.run(numbers, key)

    assert arrow_warehouse.rows("numbers") == ROWS[:2]


def items_asset(*frames: pa.Table) -> AssetsDefinition:
    left = iter(frames)

    @asset
    def items() -> Any:
        return next(left)

    return items


@pytest.mark.requirement("S3-4")
def test_other_spellings_of_a_type_are_no_change(arrow_warehouse: ArrowWarehouse) -> None:
    noon = datetime(2024, 1, 1, 12)  # noqa: DTZ001 - a column without a zone is what is tested
    plain = pa.table({"name": ["a"], "kind": ["x"], "at": pa.array([noon], pa.timestamp("us"))})
    other = pa.table(
        {
            "name": pa.array(["b"], pa.large_string()),
            "kind": pa.array(["x"]).dictionary_encode(),
            "at": pa.array([noon], pa.timestamp("ns")),
        }
    )
    items = items_asset(plain, other)
    arrow_warehouse.run(items)

    result = arrow_warehouse.run(items)

    assert "iceberg/schema_changes" not in shown(result, "items")
    assert arrow_warehouse.rows("items") == [("a", "x", noon), ("b", "x", noon)]
    columns = arrow_warehouse.table("items").schema().fields
    assert [str(column.field_type) for column in columns] == ["string", "string", "timestamp"]


@pytest.mark.requirement("S3-4")
def test_nanoseconds_that_would_be_lost_are_refused(arrow_warehouse: ArrowWarehouse) -> None:
    items = items_asset(pa.table({"at": pa.array([1], pa.timestamp("ns"))}))

    result = arrow_warehouse.run(items, raise_on_error=False)

    assert "Column 'at' of type timestamp[ns] holds values that timestamp[us] cannot hold exactly" in failure_of(
        result, "items"
    )
    assert not arrow_warehouse.exists("items")


def noise(megabytes: int) -> Iterator[pa.RecordBatch]:
    """Batches of a megabyte that no codec makes smaller, for two partitions in turn."""
    source = random.Random(7)  # noqa: S311 - incompressible is all it has to be
    for number in range(megabytes):
        rows = [source.randbytes(1024) for _ in range(1024)]
        yield pa.record_batch({"half": [number % 2] * 1024, "noise": rows})


def streamed(megabytes: int, held: list[int]) -> AssetsDefinition:
    @asset(
        partitions_def=StaticPartitionsDefinition(["0", "1"]),
        metadata=iceberg_settings(
            partition_expr="half",
            properties={
                "write.target-file-size-bytes": 8 * MEGABYTE,
                "write.parquet.row-group-size-bytes": 2 * MEGABYTE,
            },
        ),
    )
    def events() -> Any:
        def batches() -> Iterator[pa.RecordBatch]:
            for batch in noise(megabytes):
                held.append(pa.total_allocated_bytes())
                yield batch

        schema = pa.schema([("half", pa.int64()), ("noise", pa.binary())])
        return pa.RecordBatchReader.from_batches(schema, batches())

    return events


@pytest.mark.requirement("S2-US6.2", "S2-FR-034")
def test_a_stream_is_not_held_in_memory_and_fills_files_near_the_target_size(arrow_warehouse: ArrowWarehouse) -> None:
    held: list[int] = []

    arrow_warehouse.run(streamed(256, held), key_range=("0", "1"))

    sizes = sorted(arrow_warehouse.table("events").inspect.files()["file_size_in_bytes"].to_pylist())
    assert arrow_warehouse.table("events").scan().count() == 256 * 1024
    assert max(held) - held[0] < 128 * MEGABYTE
    # The last file of either partition holds what is left.
    assert all(6 * MEGABYTE < size < 10 * MEGABYTE for size in sizes[2:])


def test_rows_without_any_type_are_refused(arrow_warehouse: ArrowWarehouse) -> None:
    frames = iter([pa.table({"id": [1]}), pa.table({"id": [None]})])

    @asset
    def numbers() -> Any:
        return next(frames)

    arrow_warehouse.run(numbers)
    run = arrow_warehouse.run(numbers, raise_on_error=False)

    assert "No column of the rows has a type" in failure_of(run, "numbers")
    assert arrow_warehouse.rows("numbers") == [(1,)]

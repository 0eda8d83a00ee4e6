"""Every row of the table in docs/engines.md: what must differ between the engines, held on each of them.

A row is proven by the test of its name. Whatever has no row is the same on both engines, and
the rest of this folder holds it on both.
"""

import re
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from dagster import AssetExecutionContext, StaticPartitionsDefinition, asset
from support.io_results import failure_of, shown
from support.place import Place
from support.table_facts import live_files, to_path
from support.warehouse import Warehouse, frames_asset

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.table.commit.commit import snapshot_id_for

pytestmark = pytest.mark.requirement("D3", "D7")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def versions(warehouse: Warehouse) -> int:
    return len(warehouse.table("items").metadata.metadata_log) + 1


def test_accepted_types(warehouse: Warehouse) -> None:
    result = warehouse.run(frames_asset([1, 2]), raise_on_error=False)

    assert failure_of(result, "items").endswith(
        {
            "arrow": "Return one of: pyarrow.Table, pyarrow.RecordBatch, pyarrow.RecordBatchReader, pandas.DataFrame, "
            "polars.DataFrame, polars.LazyFrame.",
            "spark": "Return one of: pyspark.sql.DataFrame.",
        }[warehouse.engine]
    )


def test_inputs_without_an_annotation(warehouse: Warehouse) -> None:
    loaded: list[str] = []
    items = frames_asset(warehouse.frame({"id": [1]}))

    @asset
    def report(items) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - that is the point
        loaded.append(type(items).__name__)

    warehouse.run([items, report])

    assert loaded == [{"arrow": "Table", "spark": "DataFrame"}[warehouse.engine]]


@pytest.mark.lakes
def test_creating_a_table(warehouse: Warehouse) -> None:
    warehouse.run(frames_asset(warehouse.frame({"id": [1]})))

    assert versions(warehouse) == {"arrow": 1, "spark": 2}[warehouse.engine]


def test_changing_a_schema(warehouse: Warehouse) -> None:
    """A frame that breaks after the change: what stays of it."""
    items = frames_asset(warehouse.frame({"id": [1]}), warehouse.broken_frame({"id": [2], "size": [7]}))
    warehouse.run(items)

    assert not warehouse.run(items, raise_on_error=False).success
    assert warehouse.rows("items", "id") == [(1,)]
    assert (
        warehouse.table("items").schema().column_names == {"arrow": ["id"], "spark": ["id", "size"]}[warehouse.engine]
    )


def test_files_shared_by_partitions(warehouse: Warehouse) -> None:
    @asset(
        partitions_def=StaticPartitionsDefinition(["eu", "us"]),
        metadata=iceberg_settings(partition_expr="region", partition_spec=[]),
    )
    def items(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"region": list(context.partition_keys)})

    warehouse.run(items, key_range=("eu", "us"))
    warehouse.run(items, "eu")

    metadata = warehouse.table("items").metadata
    assert len(metadata.snapshot_log) == 2
    assert len(metadata.snapshots) == {"arrow": 2, "spark": 3}[warehouse.engine]
    assert list(metadata.refs) == ["main"]


@pytest.mark.lakes
def test_snapshot_ids(warehouse: Warehouse) -> None:
    warehouse.run(frames_asset(warehouse.frame({"id": [1]})))

    (snapshot,) = warehouse.table("items").metadata.snapshots
    assert snapshot.summary is not None
    follows_from_the_key = snapshot.snapshot_id == snapshot_id_for(snapshot.summary["floe.idempotency-key"], None)
    assert follows_from_the_key is {"arrow": True, "spark": False}[warehouse.engine]


@pytest.mark.lakes
def test_files_of_a_failed_write(warehouse: Warehouse, place: Place) -> None:
    items = frames_asset(warehouse.frame({"id": [1]}), warehouse.broken_frame({"id": [2]}))
    warehouse.run(items)

    assert not warehouse.run(items, raise_on_error=False).success
    on_disk = set(place.warehouse.rglob("*.parquet"))
    orphans = on_disk - set(map(to_path, live_files(warehouse.table("items"))))
    assert len(orphans) == {"arrow": 0, "spark": 1}[warehouse.engine]


def test_upserts_of_unchanged_rows(warehouse: Warehouse) -> None:
    rows = warehouse.frame({"id": [1, 2], "name": ["a", "b"]})
    items = frames_asset(rows, rows, upsert_keys="id")
    warehouse.run(items)

    metadata = shown(warehouse.run(items), "items")

    assert metadata["iceberg/added_files"] == {"arrow": 0, "spark": 1}[warehouse.engine]
    assert metadata["dagster/row_count"] == 2


def test_rows_appended_during_an_overwrite(warehouse: Warehouse) -> None:
    """With snapshot isolation; by default they are a conflict on both engines."""
    isolation = {"write.update.isolation-level": "snapshot"}
    first = frames_asset(warehouse.frame({"id": [1]}), write_mode="overwrite", properties=isolation)
    warehouse.run(first)
    overtaken = warehouse.overtaken_frame({"id": [2]}, "items", {"id": [3]})

    result = warehouse.run(frames_asset(overtaken, write_mode="overwrite"), raise_on_error=False)

    assert result.success is {"arrow": True, "spark": False}[warehouse.engine]
    assert warehouse.rows("items") == {"arrow": [(2,), (3,)], "spark": [(1,), (3,)]}[warehouse.engine]


def test_commit_strategies(warehouse: Warehouse) -> None:
    counts = []
    for strategy in ("fast_append", "fast_append", "fast_append", "merge_commit"):
        warehouse.run(frames_asset(warehouse.frame({"id": [1]}), commit_strategy=strategy))
        counts.append(len(warehouse.table("items").inspect.manifests()))

    assert counts == {"arrow": [1, 2, 3, 1], "spark": [1, 2, 3, 4]}[warehouse.engine]


def test_required_columns(warehouse: Warehouse) -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("place", inner)])
    warehouse.run(frames_asset(warehouse.frame({"id": [1], "place": [{"x": 1}]}, schema)))

    found = warehouse.table("items").schema()
    required = {"arrow": True, "spark": False}[warehouse.engine]
    assert [found.find_field(name).required for name in ("id", "place.x")] == [required, required]


def test_null_in_a_required_column(warehouse: Warehouse) -> None:
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.items", pa.schema([pa.field("id", pa.int64(), nullable=False)]))

    result = warehouse.run(frames_asset(warehouse.frame({"id": pa.array([None], pa.int64())})))

    assert warehouse.rows("items") == [(None,)]
    assert shown(result, "items").get("iceberg/commit_attempts") == {"arrow": None, "spark": 2}[warehouse.engine]


def stored(warehouse: Warehouse, column: pa.Field, value: Any) -> tuple[str, Any]:
    """The type of a column in a new table, and what a table holds that has the column already."""
    schema = pa.schema([column])
    frame = warehouse.frame({column.name: [value]}, schema)
    warehouse.run(frames_asset(frame))
    warehouse.manager.create_table("public.kept", schema)
    warehouse.run(frames_asset(frame, table="kept"))
    (kept,) = warehouse.rows("kept")[0]
    return str(warehouse.table("items").schema().find_type(column.name)), kept


def test_uuids(warehouse: Warehouse) -> None:
    kind, kept = stored(warehouse, pa.field("id", pa.uuid()), UUID(int=7))

    assert kind == {"arrow": "uuid", "spark": "string"}[warehouse.engine]
    assert kept == UUID(int=7)


def test_fixed_length_binaries(warehouse: Warehouse) -> None:
    kind, kept = stored(warehouse, pa.field("hash", pa.binary(4)), b"abcd")

    assert kind == {"arrow": "fixed[4]", "spark": "binary"}[warehouse.engine]
    assert kept == b"abcd"


def test_times_of_day(warehouse: Warehouse) -> None:
    frame = warehouse.frame({"at": [time(23, 59)]}, pa.schema([("at", pa.time64("us"))]))

    result = warehouse.run(frames_asset(frame), raise_on_error=False)

    assert result.success is {"arrow": True, "spark": False}[warehouse.engine]
    if not result.success:
        assert "Column 'at' is of Spark's type time(6), which Iceberg does not have. Cast it." in failure_of(
            result, "items"
        )


def test_every_row_of_the_page_has_its_test() -> None:
    # The tables after the first one have a test of their own, test_support_matrix.py.
    differences = PAGE.read_text().partition("\n## Tables of other tools")[0]
    rows = re.findall(r"^\| ([A-Z][^|]*?) \|", differences, re.MULTILINE)
    names = {f"test_{row.lower().replace(' ', '_')}" for row in rows}

    assert names == {name for name in globals() if name.startswith("test_")} - {
        "test_every_row_of_the_page_has_its_test"
    }

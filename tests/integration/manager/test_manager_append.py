"""Appending rows: one commit, one snapshot, the right files, and the same rows back."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import (
    IdentityTransform,
    Transform,
)
from support.lake import Lake
from support.table_facts import live_files, reachable_files, recounted_totals, summary_totals, to_path

from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.models import CommitStrategy, IcebergTableManagerConfig, OperationType, WriteConfig, WriteMode
from floe_dagster_iceberg.table.manager import IcebergTableManager


def partitioned_by(*fields: tuple[int, Transform[Any, Any], str]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(source_id=source, field_id=1000 + position, transform=transform, name=name)
            for position, (source, transform, name) in enumerate(fields)
        )
    )


@pytest.fixture
def three(orders: pa.Schema) -> pa.Table:
    day = dt.date(2024, 1, 1)
    return pa.table([[1, 2, 3], [day, day, None], [1.5, None, 3.5], ["EU", "US", None]], schema=orders)


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-022", "S0-D4", "S4-append", "S1-T045/50-53")
def test_an_append_is_one_version_and_one_snapshot(
    lake: Lake, manager: IcebergTableManager, orders: pa.Schema, three: pa.Table
) -> None:
    manager.create_table("bronze.orders", orders)

    snapshot = manager.append("bronze.orders", three)

    table = lake.table("bronze.orders")
    assert lake.metadata_versions("bronze.orders") == 2
    assert [found.snapshot_id for found in table.metadata.snapshots] == [snapshot.snapshot_id]
    assert (snapshot.operation, snapshot.added_records, snapshot.added_files) == (OperationType.APPEND, 3, 1)
    assert {to_path(path) for path in live_files(table)} == lake.data_files()


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-022")
def test_a_new_column_and_its_rows_are_one_version_and_one_snapshot(
    lake: Lake, manager: IcebergTableManager, orders: pa.Schema, three: pa.Table
) -> None:
    manager.create_table("bronze.orders", orders)

    snapshot = manager.append("bronze.orders", three.append_column("note", pa.array(["a", "b", "c"])))

    table = lake.table("bronze.orders")
    assert lake.metadata_versions("bronze.orders") == 2
    assert len(table.metadata.snapshots) == 1
    assert table.snapshot_by_id(snapshot.snapshot_id).schema_id == table.schema().schema_id


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-022", "S1-T045/50-53")
def test_summary_totals_are_what_the_manifests_hold(
    lake: Lake, manager: IcebergTableManager, orders: pa.Schema, three: pa.Table
) -> None:
    manager.create_table("bronze.orders", orders, partitioned_by((4, IdentityTransform(), "region")))
    for _ in range(3):
        manager.append("bronze.orders", three)

    table = lake.table("bronze.orders")
    for snapshot in table.metadata.snapshots:
        assert summary_totals(snapshot) == recounted_totals(table, snapshot)
    assert lake.files() == reachable_files(table)


def frames(rows: pa.Table) -> Iterator[Any]:
    yield from (rows, rows.to_batches()[0], rows.to_reader(), rows.to_pandas(), pl.from_arrow(rows))
    yield pl.LazyFrame(rows.to_pandas())


@pytest.mark.requirement("S4-append")
def test_rows_may_come_in_any_frame(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table({"id": [1, 2], "name": ["a", None]})
    manager.create_table("bronze.frames", rows.schema)

    for frame in frames(rows):
        manager.append("bronze.frames", frame)

    assert lake.rows("bronze.frames") == [(1, "a")] * 6 + [(2, None)] * 6


def test_a_pandas_index_is_not_a_column_and_missing_values_are_null(lake: Lake, manager: IcebergTableManager) -> None:
    frame = pd.DataFrame({"id": [1, 2], "name": ["a", None]}, index=[7, 8])
    manager.create_table("bronze.frames", pa.schema([("id", pa.int64()), ("name", pa.string())]))

    manager.append("bronze.frames", frame)

    assert lake.rows("bronze.frames") == [(1, "a"), (2, None)]


@pytest.mark.parametrize("data", [[{"id": 1}], {"id": [1]}, None, "rows", 5])
def test_other_rows_are_refused_with_the_kinds_that_are_taken(manager: IcebergTableManager, data: object) -> None:
    manager.create_table("bronze.frames", pa.schema([("id", pa.int64())]))

    with pytest.raises(ValidationError, match=r"cannot be written\. Use one of: pyarrow\.Table"):
        manager.append("bronze.frames", data)


def test_a_frame_that_no_type_fits_is_refused_without_showing_a_value(manager: IcebergTableManager) -> None:
    manager.create_table("bronze.frames", pa.schema([("id", pa.int64())]))

    with pytest.raises(ValidationError, match="Column 'id'") as refused:
        manager.append("bronze.frames", pd.DataFrame({"id": [1, "SECRET"]}))
    assert "SECRET" not in str(refused.value)
    with pytest.raises(ValidationError, match="more than once: id"):
        manager.append("bronze.frames", pd.DataFrame([[1, 2]], columns=["id", "id"]))


@pytest.mark.requirement("S2-FR-022")
def test_no_rows_make_a_snapshot_without_files(lake: Lake, manager: IcebergTableManager, orders: pa.Schema) -> None:
    manager.create_table("bronze.orders", orders)

    snapshot = manager.append("bronze.orders", orders.empty_table())

    assert (snapshot.operation, snapshot.added_files, snapshot.total_records) == (OperationType.APPEND, 0, 0)
    assert lake.data_files() == set()


@pytest.mark.lakes
@pytest.mark.requirement("S0-W1")
def test_snapshot_properties_are_in_the_summary_of_every_kind_of_write(
    lake: Lake, manager: IcebergTableManager, three: pa.Table
) -> None:
    lineage = {"dagster.run-id": "run-1", "dagster.asset-key": "orders", "dagster.partition-key": "2024-01-01"}
    manager.create_table("bronze.orders", three.schema)

    manager.append("bronze.orders", three, snapshot_properties=lineage)
    manager.overwrite("bronze.orders", three, snapshot_properties=lineage)
    manager.upsert("bronze.orders", three.slice(0, 1), ["id"], snapshot_properties=lineage)
    manager.delete("bronze.orders", "id = 1", snapshot_properties=lineage)

    summaries = [snapshot.summary for snapshot in lake.table("bronze.orders").metadata.snapshots]
    assert len(summaries) == 4
    assert all(lineage.items() <= summary.additional_properties.items() for summary in summaries if summary)


@pytest.mark.parametrize("key", ["operation", "added-records", "total-data-files", "partitions.x"])
def test_a_snapshot_property_that_iceberg_computes_is_refused_before_anything_happens(
    lake: Lake, manager: IcebergTableManager, three: pa.Table, key: str
) -> None:
    manager.create_table("bronze.orders", three.schema)

    for write in (
        lambda: manager.append("bronze.orders", three, snapshot_properties={key: "1"}),
        lambda: manager.delete("bronze.orders", "id = 1", snapshot_properties={key: "1"}),
    ):
        with pytest.raises(ValidationError, match="computed by Iceberg"):
            write()
    assert lake.metadata_versions("bronze.orders") == 1
    assert lake.data_files() == set()


@pytest.mark.requirement("S2-FR-005", "S2-C4", "S0-D4")
def test_a_fast_append_adds_a_manifest_and_a_merge_commit_merges_them(
    lake: Lake, manager: IcebergTableManager, three: pa.Table
) -> None:
    manager.create_table("bronze.orders", three.schema)

    def manifests() -> int:
        return len(lake.table("bronze.orders").inspect.manifests())

    for _ in range(3):
        manager.append("bronze.orders", three)
    assert manifests() == 3
    manager.append("bronze.orders", three, commit_strategy=CommitStrategy.MERGE_COMMIT)
    assert manifests() == 1
    manager.write_data("bronze.orders", three)
    assert manifests() == 2

    table = lake.table("bronze.orders")
    assert len(lake.rows("bronze.orders")) == 15
    assert summary_totals(table.current_snapshot()) == recounted_totals(table)
    assert lake.files() == reachable_files(table)


@pytest.mark.requirement("S2-C4")
def test_the_managers_default_strategy_decides_when_a_write_does_not(lake: Lake, three: pa.Table) -> None:
    config = IcebergTableManagerConfig(default_commit_strategy=CommitStrategy.MERGE_COMMIT)
    manager = IcebergTableManager(lake.catalog, config=config)
    manager.create_table("bronze.orders", three.schema)

    for _ in range(3):
        manager.append("bronze.orders", three)

    assert len(lake.table("bronze.orders").inspect.manifests()) == 1


@pytest.mark.requirement("S2-FR-005", "S1-T054/61b/c")
def test_write_data_takes_a_config_or_keywords(lake: Lake, manager: IcebergTableManager, three: pa.Table) -> None:
    manager.create_table("bronze.orders", three.schema)

    manager.write_data("bronze.orders", data=three, config=WriteConfig(mode=WriteMode.APPEND))
    manager.write_data("bronze.orders", three, mode="overwrite", overwrite_filter="id = 1")
    snapshot = manager.write_data(table="bronze.orders", data=three, mode=WriteMode.UPSERT, join_columns=["id"])

    assert lake.table("bronze.orders").current_snapshot().snapshot_id == snapshot.snapshot_id
    with pytest.raises(ValidationError, match="not both: mode"):
        manager.write_data("bronze.orders", three, WriteConfig(), mode="append")
    with pytest.raises(ValidationError, match=r"cannot be done as asked: colour: Extra inputs are not permitted\.$"):
        manager.write_data("bronze.orders", three, colour="blue")


@pytest.mark.requirement("S1-T027-30")
def test_a_table_may_be_given_as_name_identifier_or_handle(
    lake: Lake, manager: IcebergTableManager, three: pa.Table
) -> None:
    table = manager.create_table("bronze.orders", three.schema)

    for given in ("bronze.orders", manager.load_table("bronze.orders"), table):
        manager.append(given, three)

    assert len(lake.rows("bronze.orders")) == 9
    with pytest.raises(NoSuchTableError, match=r"bronze\.nothing"):
        manager.append("bronze.nothing", three)


@pytest.mark.lakes
def test_foreign_properties_survive_every_kind_of_write(
    lake: Lake, manager: IcebergTableManager, three: pa.Table
) -> None:
    manager.create_table("bronze.orders", three.schema)
    with lake.table("bronze.orders").transaction() as transaction:
        transaction.set_properties({"tool.of.others": "kept"})
    before = lake.table("bronze.orders").properties

    manager.append("bronze.orders", three)
    manager.overwrite("bronze.orders", three)
    manager.upsert("bronze.orders", three.slice(0, 1), ["id"])
    manager.delete("bronze.orders", "id = 1")
    manager.compact_table("bronze.orders")

    assert lake.table("bronze.orders").properties == before


@pytest.mark.lakes
@pytest.mark.parametrize("version", ["1", "2"])
def test_tables_of_either_format_version_are_written(lake: Lake, manager: IcebergTableManager, version: str) -> None:
    rows = pa.table({"id": [1, 2, 3], "region": ["EU", "US", None]})
    spec = partitioned_by((2, IdentityTransform(), "region"))
    manager.create_table("bronze.versions", rows.schema, spec, {"format-version": version})

    manager.append("bronze.versions", rows)
    manager.append("bronze.versions", rows, commit_strategy=CommitStrategy.MERGE_COMMIT)
    manager.overwrite("bronze.versions", rows.slice(0, 1), overwrite_filter="region = 'EU'")
    manager.compact_table("bronze.versions")
    manager.delete("bronze.versions", "id = 2")

    assert lake.table("bronze.versions").metadata.format_version == int(version)
    assert lake.rows("bronze.versions") == [(1, "EU"), (3, None), (3, None)]


@pytest.mark.parametrize("size", ["", "0", "-1", "many", "1.5"])
def test_a_size_that_is_none_is_refused(lake: Lake, manager: IcebergTableManager, three: pa.Table, size: str) -> None:
    properties = {"write.target-file-size-bytes": size}
    with pytest.raises(ValidationError, match=r"write\.target-file-size-bytes"):
        manager.create_table("bronze.orders", three.schema, properties=properties)
    lake.catalog.create_table("bronze.orders", three.schema, properties=properties)

    with pytest.raises(ValidationError, match=r"write\.target-file-size-bytes"):
        manager.append("bronze.orders", three)
    assert lake.data_files() == set()

"""What `table/_pyiceberg/` relies on without PyIceberg's promise.

When something here fails, PyIceberg has changed under us: read its new source, mend that folder, and only
then this file.
"""

import ast
import importlib.metadata
import inspect
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import visitors
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import DataScan, ManifestGroupPlanner, Table, Transaction, update
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import snapshot as snapshots
from pyiceberg.table.update import update_table_metadata, validate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType
from support.lake import Lake
from support.table_facts import live_files

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table._pyiceberg import SnapshotProducer, TableTransaction, nulls, summary_property
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.table.manager import IcebergTableManager

PACKAGE = Path(inspect.getfile(nulls)).parent.parent.parent
DOORS = ("table/_pyiceberg/", "plugins/_rest_session.py", "plugins/_sql_catalog.py")


def test_pyiceberg_is_the_version_that_this_was_written_against() -> None:
    assert importlib.metadata.version("pyiceberg").startswith("0.12.")
    requirements = importlib.metadata.requires("floe-dagster-iceberg") or []
    assert any(line.startswith("pyiceberg[") and "<0.13" in line and ">=0.12" in line for line in requirements)


def private_imports(path: Path) -> set[str]:
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg")
        for alias in node.names
        if alias.name.startswith("_") or "._" in (node.module or "")
    }


@pytest.mark.requirement("S2-FR-008")
def test_only_the_doors_open_private_parts() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names for path in PACKAGE.rglob("*.py") if (names := private_imports(path))
    }

    assert all(path.startswith(DOORS) for path in found), found


SIGNATURES: dict[Any, list[str]] = {
    snapshots._SnapshotProducer.__init__: [
        "operation",
        "transaction",
        "io",
        "commit_uuid",
        "snapshot_properties",
        "branch",
    ],
    snapshots._SnapshotProducer._commit: [],
    snapshots._SnapshotProducer._summary: ["snapshot_properties"],
    snapshots._SnapshotProducer._manifests: [],
    snapshots._SnapshotProducer._process_manifests: ["manifests"],
    snapshots._SnapshotProducer._existing_manifests: [],
    snapshots._SnapshotProducer._deleted_entries: [],
    snapshots._SnapshotProducer.new_manifest_writer: ["spec"],
    snapshots._ManifestMergeManager.__init__: [
        "target_size_bytes",
        "min_count_to_merge",
        "merge_enabled",
        "snapshot_producer",
    ],
    snapshots.CommitWindow.resolve: ["metadata", "base_id", "branch"],
    validate._validation_history: [
        "table",
        "from_snapshot",
        "to_snapshot",
        "matching_operations",
        "manifest_content_filter",
    ],
    update._apply_table_update: ["update", "base_metadata", "context"],
    Transaction._stage: ["updates", "requirements"],
    Table._do_commit: ["updates", "requirements"],
    pyiceberg_arrow._to_requested_schema: [
        "requested_schema",
        "file_schema",
        "batch",
        "downcast_ns_timestamp_to_us",
        "include_field_ids",
        "projected_missing_fields",
        "allow_timestamp_tz_mismatch",
        "format_model",
    ],
    pyiceberg_arrow._pyarrow_to_schema_without_ids: ["schema", "downcast_ns_timestamp_to_us", "format_version"],
    pyiceberg_arrow._read_all_delete_files: ["io", "tasks"],
    pyiceberg_arrow._get_file_format: ["file_format", "kwargs"],
    pyiceberg_arrow.ArrowScan.to_record_batches: ["tasks"],
    pyiceberg_arrow.ArrowScan._record_batches_from_scan_tasks_and_deletes: ["tasks", "deletes_per_file"],
    pyiceberg_arrow.ArrowProjectionVisitor._cast_if_needed: ["field", "values"],
    pyiceberg_arrow.ArrowProjectionVisitor._construct_field: ["field", "arrow_type"],
    nulls._PROJECT_LIST: ["list_type", "list_array", "value_array"],
    nulls._PROJECT_MAP: ["map_type", "map_array", "key_result", "value_result"],
    ManifestGroupPlanner._build_residual_evaluator: ["spec_id"],
    ManifestGroupPlanner._build_partition_evaluator: ["spec_id"],
    ManifestGroupPlanner._build_manifest_evaluator: ["spec_id"],
    ManifestGroupPlanner._build_metrics_evaluator: [],
    ManifestGroupPlanner._check_sequence_number: ["min_sequence_number", "manifest"],
    ManifestGroupPlanner.plan_manifest_entries: ["manifests"],
    DataScan._plan_files_local: [],
    visitors._StrictMetricsEvaluationVisitor.__init__: ["struct", "file"],
    visitors._StrictMetricsEvaluationVisitor._can_contain_nulls: ["field_id"],
    visitors._StrictMetricsEvaluationVisitor._can_contain_nans: ["field_id"],
    visitors._StrictMetricsEvaluationVisitor._get_field: ["field_id"],
}


@pytest.mark.parametrize(("function", "arguments"), SIGNATURES.items(), ids=[f.__qualname__ for f in SIGNATURES])
def test_private_functions_take_the_arguments_we_give_them(function: Any, arguments: list[str]) -> None:
    assert [name for name in inspect.signature(function).parameters if name != "self"] == arguments


def test_private_attributes_are_there(lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    transaction = table.transaction()
    producer = transaction.update_snapshot().fast_append()

    for thing, names in {
        transaction: ("_table", "_updates", "_requirements", "_snapshot_producers"),
        producer: ("_snapshot_id", "_operation", "_io", "_added_data_files", "_deleted_data_files", "_target_branch"),
    }.items():
        assert all(hasattr(thing, name) for name in names)
    assert {"_written_manifests", "_written_manifest_lists"} <= vars(producer).keys()
    assert isinstance(vars(DataScan)["_manifest_planner"], cached_property)


def test_a_scan_keeps_what_it_was_made_with() -> None:
    kept = {f"_{name}" for name in ("table_metadata", "io", "projected_schema", "limit", "dictionary_columns")}
    source = inspect.getsource(pyiceberg_arrow.ArrowScan.__init__)

    assert all(f"self.{name} = {name[1:]}" in source for name in kept)
    assert "self._bound_row_filter = bind(table_metadata.schema(), row_filter" in source


def test_a_parquet_writer_shows_its_stream_and_takes_settings_until_it_gets_rows() -> None:
    source = inspect.getsource(pyiceberg_arrow.ParquetFormatWriter)

    assert "**self._parquet_writer_kwargs" in inspect.getsource(pyiceberg_arrow.ParquetFormatWriter.write)

    assert "self._fos: OutputStream | None = None" in source
    assert "self._writer: pq.ParquetWriter | None = None" in source


def test_what_we_mend_is_still_broken() -> None:
    assert "mask" not in inspect.getsource(nulls._PROJECT_LIST), "remove _project_list"
    assert "mask" not in inspect.getsource(nulls._PROJECT_MAP), "remove _project_map"
    assert "is None" not in inspect.getsource(visitors.ResidualVisitor.visit_less_than), "remove _NullSafeResiduals"


@pytest.fixture
def pair(lake: Lake) -> tuple[Table, Table]:
    """The same rows in two tables, written by PyIceberg and by us."""
    rows = pa.table(
        {
            "id": [3, 1, None, 2],
            "region": ["EU", "US", None, "EU"],
            "amount": [1.5, None, 2.5, -1.0],
            "inner": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b" * 40}, {"x": 5, "y": None}]),
            "tags": [["a"], None, [], ["b", "c"]],
        }
    )
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))
    manager = IcebergTableManager(lake.catalog, config=IcebergTableManagerConfig(default_table_properties={}))
    for name in ("bronze.theirs", "bronze.ours"):
        manager.create_table(name, rows.schema, spec)
    lake.table("bronze.theirs").append(rows)
    manager.append("bronze.ours", rows)
    return lake.table("bronze.theirs"), lake.table("bronze.ours")


def test_statistics_of_data_files_are_those_that_pyiceberg_writes(pair: tuple[Table, Table]) -> None:
    def statistics(table: Table) -> dict[object, tuple[object, ...]]:
        return {
            file.partition[0]: (
                file.record_count,
                file.value_counts,
                file.null_value_counts,
                file.nan_value_counts,
                file.lower_bounds,
                file.upper_bounds,
                file.file_format,
                file.spec_id,
                file.sort_order_id,
            )
            for file in live_files(table).values()
        }

    theirs, ours = map(statistics, pair)
    assert ours == theirs


def test_summaries_and_entries_are_those_that_pyiceberg_writes(pair: tuple[Table, Table]) -> None:
    def facts(table: Table) -> tuple[object, ...]:
        snapshot = table.current_snapshot()
        (manifest,) = snapshot.manifests(table.io)
        entries = manifest.fetch_manifest_entry(table.io)
        sizes = {"added-files-size", "total-files-size"}
        return (
            {key: value for key, value in snapshot.summary.additional_properties.items() if key not in sizes},
            snapshot.summary.operation,
            snapshot.sequence_number,
            (
                manifest.added_files_count,
                manifest.added_rows_count,
                manifest.sequence_number,
                manifest.partition_spec_id,
            ),
            manifest.partitions,
            {(entry.status, entry.sequence_number, entry.file_sequence_number) for entry in entries},
            {entry.snapshot_id == snapshot.snapshot_id for entry in entries},
        )

    theirs, ours = map(facts, pair)
    assert ours == theirs


def test_files_that_stay_keep_their_snapshot_and_sequence_number(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    manager.append("bronze.t", pa.table({"id": [1]}))
    manager.append("bronze.t", pa.table({"id": [2]}), commit_strategy="merge_commit")
    before = entries_by_path(lake.table("bronze.t"))

    manager.delete("bronze.t", "id = 1")

    table = lake.table("bronze.t")
    after = entries_by_path(table)
    (kept,) = (path for path, entry in after.items() if entry.status != ManifestEntryStatus.DELETED)
    assert after[kept].snapshot_id == before[kept].snapshot_id
    assert after[kept].sequence_number == before[kept].sequence_number == 2
    (gone,) = after.keys() - {kept}
    assert after[gone].snapshot_id == table.current_snapshot().snapshot_id


def entries_by_path(table: Table) -> dict[str, ManifestEntry]:
    return {
        entry.data_file.file_path: entry
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }


def test_remembered_metadata_is_what_pyiceberg_works_out(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    manager.append("bronze.t", pa.table({"id": [1]}))
    table = lake.table("bronze.t")
    base = table.metadata.model_copy(deep=True)
    transaction = TableTransaction(table)

    for step in (
        lambda: transaction.update_schema().add_column("a", LongType()).commit(),
        lambda: transaction.set_properties({"owner": "us"}),
        lambda: transaction.update_spec().add_identity("a").commit(),
        lambda: append_nothing(transaction),
        lambda: transaction.update_schema().rename_column("a", "b").commit(),
    ):
        step()
        assert without_times(transaction.table_metadata) == without_times(
            update_table_metadata(base, transaction._updates)
        )
    assert table.metadata == base
    assert transaction.table_metadata is transaction.table_metadata


def append_nothing(transaction: TableTransaction) -> None:
    SnapshotProducer(
        transaction, FileChanges(), operation=Operation.APPEND, snapshot_id=7, snapshot_properties={}, branch="main"
    ).commit()


def without_times(metadata: Any) -> dict[str, Any]:
    return metadata.model_dump(exclude={"last_updated_ms", "snapshot_log", "metadata_log"})


def test_catalogs_take_updates_and_requirements_as_tuples() -> None:
    assert list(inspect.signature(Catalog.commit_table).parameters) == ["self", "table", "requirements", "updates"]


def test_a_summary_says_the_same_however_it_is_asked() -> None:
    summary = Summary(Operation.APPEND, **{"floe.idempotency-key": "k", "added-records": "1"})
    snapshot = Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="list.avro", summary=summary)
    for key in ("floe.idempotency-key", "added-records", "missing"):
        assert summary_property(snapshot, key) == summary.get(key)
    assert summary_property(snapshot.model_copy(update={"summary": None}), "added-records") is None

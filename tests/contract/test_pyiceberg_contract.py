"""What we rely on in PyIceberg without its promise, each private symbol by its name.

When something here fails, PyIceberg has changed under us: read its new source, fix what `DOORS` names, and only
then this file. `docs/decisions/0007-next-pyiceberg.md` says what is expected to change.
"""

import importlib.metadata
import inspect
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from private_symbols import private_names, used_symbols
from pyiceberg import manifest
from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog, response
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import visitors
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, ManifestGroupPlanner, Table, Transaction, update
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import snapshot as snapshots, update_table_metadata, validate
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import BinaryType, LongType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from support.lake import Lake
from support.table_facts import live_files

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, summary_property
from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

# The only places that may name a private symbol of PyIceberg.
DOORS = ("_pyiceberg/",)
MOST = 70


def test_pyiceberg_is_the_version_that_this_was_written_against() -> None:
    assert importlib.metadata.version("pyiceberg").startswith("0.12.")
    requirements = importlib.metadata.requires("floe-dagster-iceberg") or []
    assert any(line.startswith("pyiceberg[") and "<0.13" in line and ">=0.12" in line for line in requirements)


# By module or class: what we use of it without its promise, functions with the arguments that they take.
PRIVATE: dict[Any, dict[str, list[str] | None]] = {
    visitors: {
        "_ExpressionEvaluationVisitor": ["struct"],
        "_InclusiveMetricsEvaluator": ["schema", "expr", "case_sensitive", "include_empty_files"],
        "_StrictMetricsEvaluationVisitor": ["struct", "file"],
        "_StrictMetricsEvaluator": ["schema", "expr", "case_sensitive", "include_empty_files"],
    },
    visitors._StrictMetricsEvaluationVisitor: {
        "_can_contain_nans": ["field_id"],
        "_can_contain_nulls": ["field_id"],
        "_get_field": ["field_id"],
    },
    pyiceberg_arrow: {
        "_get_column_projection_values": [
            "file",
            "projected_schema",
            "table_schema",
            "partition_spec",
            "file_project_field_ids",
        ],
        "_pyarrow_to_schema_without_ids": ["schema", "downcast_ns_timestamp_to_us", "format_version"],
        "_read_all_delete_files": ["io", "tasks"],
    },
    pyiceberg_arrow.ArrowProjectionVisitor: {
        "_cast_if_needed": ["field", "values"],
        "_construct_field": ["field", "arrow_type"],
    },
    pyiceberg_arrow.ParquetFormatWriter: {
        "_file_schema": None,
        "_fos": None,
        "_parquet_writer_kwargs": None,
        "_writer": None,
    },
    pyiceberg_arrow.PyArrowFileIO: {"_initialize_s3_fs": ["netloc"]},
    manifest: {"_inherit_from_manifest": ["entry", "manifest"]},
    manifest.ManifestWriter: {"_meta": None, "_output_file": None, "_partitions": None, "_schema": None, "_spec": None},
    DataScan: {"_manifest_planner": None, "_plan_files_local": []},
    ManifestGroupPlanner: {
        "_build_manifest_evaluator": ["spec_id"],
        "_build_metrics_evaluator": [],
        "_build_partition_evaluator": ["spec_id"],
        "_build_residual_evaluator": ["spec_id"],
    },
    Table: {"_do_commit": ["updates", "requirements"]},
    Transaction: {
        "_requirements": None,
        "_snapshot_producers": None,
        "_stage": ["updates", "requirements"],
        "_table": None,
        "_updates": None,
    },
    update: {
        "_TableMetadataUpdateContext": [],
        "_apply_table_update": ["update", "base_metadata", "context"],
        "_update_table_metadata_log": ["base_metadata", "metadata_location", "last_updated_ms"],
    },
    update.UpdateTableMetadata: {"_commit": [], "_transaction": None},
    snapshots: {
        "_ManifestMergeManager": ["target_size_bytes", "min_count_to_merge", "merge_enabled", "snapshot_producer"],
        "_SnapshotProducer": ["operation", "transaction", "io", "commit_uuid", "snapshot_properties", "branch"],
    },
    snapshots._SnapshotProducer: {
        "_compression": None,
        "_deleted_entries": [],
        "_existing_manifests": [],
        "_io": None,
        "_manifests": [],
        "_operation": None,
        "_snapshot_id": None,
        "_summary": ["snapshot_properties"],
        "_written_manifest_lists": None,
        "_written_manifests": None,
    },
    validate: {
        "_validation_history": [
            "table",
            "from_snapshot",
            "to_snapshot",
            "matching_operations",
            "manifest_content_filter",
        ],
    },
    Catalog: {"_load_file_io": ["properties", "location"]},
    MetastoreCatalog: {
        "_parse_metadata_version": ["metadata_location"],
        "_update_and_stage_table": ["current_table", "table_identifier", "requirements", "updates"],
        "_write_metadata": ["metadata", "io", "metadata_path"],
    },
    SqlCatalog: {"_convert_orm_to_iceberg": ["orm_table"], "_iceberg_type_filter": []},
    RestCatalog: {
        "_auth_manager": None,
        "_create_session": [],
        "_resolve_storage_credentials": ["storage_credentials", "location"],
        "_response_to_staged_table": ["identifier_tuple", "table_response"],
        "_response_to_table": ["identifier_tuple", "table_response"],
        "_session": None,
        "_split_identifier_for_path": ["identifier", "kind"],
        "_supported_endpoints": None,
    },
    response: {"_handle_non_200_response": ["exc", "error_handler"]},
}
NAMED = [(owner, name, arguments) for owner, names in PRIVATE.items() for name, arguments in names.items()]


@pytest.mark.parametrize(
    ("owner", "name", "arguments"), NAMED, ids=[f"{owner.__name__}.{name}" for owner, name, _ in NAMED]
)
def test_private_symbols_are_there_and_take_the_arguments_we_give_them(
    owner: Any, name: str, arguments: list[str] | None
) -> None:
    assert name in (private_names(owner) if inspect.isclass(owner) else vars(owner))
    if arguments is not None:
        given = inspect.signature(getattr(owner, name)).parameters
        assert [argument for argument in given if argument != "self"] == arguments


@pytest.mark.requirement("S2-FR-008")
def test_no_other_private_symbol_is_used_and_none_but_behind_the_door() -> None:
    named = {f"{owner.__name__}.{name}" for owner, name, _ in NAMED}
    used = used_symbols()
    # Whose attribute it is only types know.
    unknown_owner = {symbol for symbol in used if symbol.startswith("?.")}
    by_name = {f"?.{name}" for _, name, _ in NAMED}

    assert used.keys() - unknown_owner <= named
    assert unknown_owner <= by_name
    assert {symbol.rpartition(".")[2] for symbol in used} == {name for _, name, _ in NAMED}, "no longer used: remove"
    assert all(path.startswith(DOORS) for paths in used.values() for path in paths), used
    assert len(NAMED) <= MOST


# Run where nothing of ours is imported yet; prints what of PyIceberg is no longer what it was.
REPLACED = """
import importlib, inspect, pkgutil, sys, tempfile
import pyarrow as pa, pyiceberg

def import_all(package):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass  # of a library that is not installed

def functions():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "pyiceberg":
            continue
        for key, value in vars(module).items():
            found[name, key] = value
            if inspect.isclass(value) and value.__module__.startswith("pyiceberg."):
                found |= {(value.__module__, value.__qualname__, name): each for name, each in vars(value).items()}
    return {key: value for key, value in found.items() if callable(value) or hasattr(value, "__get__")}

import_all(pyiceberg)
before = functions()
import floe_dagster_iceberg
import_all(floe_dagster_iceberg)
from floe_dagster_iceberg._pyiceberg.sql_catalog import FloeSqlCatalog
from floe_dagster_iceberg.table.manager import IcebergTableManager

with tempfile.TemporaryDirectory() as folder:
    catalog = FloeSqlCatalog("floe", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("bronze")
    manager = IcebergTableManager(catalog)
    rows = pa.table({"id": [1], "tags": [[{"a": 1}]]})
    manager.create_table("bronze.t", rows.schema)
    manager.append("bronze.t", rows)
    assert manager.scan("bronze.t").num_rows == 1
after = functions()
assert len(before) > 5000, len(before)
print([key for key, value in before.items() if after.get(key) is not value])
"""


def test_nothing_of_pyiceberg_is_replaced_for_the_whole_process() -> None:
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


SIGNATURES: dict[Any, list[str]] = {
    snapshots._SnapshotProducer.new_manifest_writer: ["spec"],
    snapshots._SnapshotProducer.fetch_manifest_entry: ["manifest", "discard_deleted"],
    snapshots.CommitWindow.resolve: ["metadata", "base_id", "branch"],
    pyiceberg_arrow.ArrowProjectionVisitor.list: ["list_type", "list_array", "value_array"],
    pyiceberg_arrow.ArrowProjectionVisitor.map: ["map_type", "map_array", "key_result", "value_result"],
    ManifestGroupPlanner.plan_manifest_entries: ["manifests"],
    Catalog.commit_table: ["table", "requirements", "updates"],
}


@pytest.mark.parametrize(("function", "arguments"), SIGNATURES.items(), ids=[f.__qualname__ for f in SIGNATURES])
def test_functions_that_we_override_or_imitate_take_the_same_arguments(function: Any, arguments: list[str]) -> None:
    assert [name for name in inspect.signature(function).parameters if name != "self"] == arguments


def test_a_parquet_writer_shows_its_stream_and_takes_settings_until_it_gets_rows() -> None:
    source = inspect.getsource(pyiceberg_arrow.ParquetFormatWriter)

    assert "**self._parquet_writer_kwargs" in inspect.getsource(pyiceberg_arrow.ParquetFormatWriter.write)

    assert "self._fos: OutputStream | None = None" in source
    assert "self._writer: pq.ParquetWriter | None = None" in source


def test_the_pyiceberg_bugs_we_work_around_are_still_there() -> None:
    projection = pyiceberg_arrow.ArrowProjectionVisitor
    assert "mask" not in inspect.getsource(projection.list), "remove _NullSafeProjection.list"
    assert "mask" not in inspect.getsource(projection.map), "remove _NullSafeProjection.map"
    assert "is None" not in inspect.getsource(visitors.ResidualVisitor.visit_less_than), "remove _NullSafeResiduals"
    double = new_decoder(STRUCT_DOUBLE.pack(0.1)).read_double()
    assert double != 0.1, "remove _ExactDoubleReader"
    dropped = PartitionSpec(PartitionField(source_id=9, field_id=1000, transform=IdentityTransform(), name="gone"))
    (field,) = dropped.partition_type(Schema()).fields
    with pytest.raises(IndexError):
        AvroSchemaConversion().avro_to_iceberg(AvroSchemaConversion().iceberg_to_avro(Schema(field)))
    with pytest.raises(ValueError, match="LargeBinary"):
        TruncateTransform(2).pyarrow_transform(BinaryType())(pa.array([b"abc"], pa.large_binary()))


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


def test_a_summary_says_the_same_however_it_is_asked() -> None:
    summary = Summary(Operation.APPEND, **{"floe.idempotency-key": "k", "added-records": "1"})
    snapshot = Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="list.avro", summary=summary)
    for key in ("floe.idempotency-key", "added-records", "missing"):
        assert summary_property(snapshot, key) == summary.get(key)
    assert summary_property(snapshot.model_copy(update={"summary": None}), "added-records") is None

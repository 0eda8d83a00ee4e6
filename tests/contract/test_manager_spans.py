"""Every public method of the table manager leaves a span, whether it succeeds or fails; spans are compared whole."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.lake import Lake
from support.span_tree import SOME, SpanRecorder, SpanTree

from floe_dagster_iceberg.errors import CatalogConnectionError
from floe_dagster_iceberg.models import SchemaChange, SchemaChangeType, SchemaEvolution
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.manager.snapshots import ManagedSnapshots

TABLE = "bronze.orders"
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
ADD_NOTE = SchemaEvolution(
    changes=[SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="note", new_type="string")]
)
OF_TABLE = {"table.identifier": TABLE, "namespace": "bronze"}
# What the rows of a write did: three came, and none or the three of before went.
ADDED = {
    "snapshot.id": SOME,
    "snapshot.operation": "append",
    "records.added": 3,
    "records.removed": 0,
    "files.added": 1,
    "files.removed": 0,
    "bytes.added": SOME,
    "commit.attempts": 1,
    "commit.strategy": "fast_append",
}
REPLACED = ADDED | {"snapshot.operation": "overwrite", "records.removed": 3, "files.removed": 1}
SNAPSHOT = {"snapshot.id": SOME, "snapshot.operation": "append"}
Call = Callable[[IcebergTableManager], object]


@dataclass(frozen=True)
class Expected:
    """A call and its span's attributes: first those of its arguments, then those of its result.

    Attributes:
        call: The call.
        subject: What it is about, also when it fails.
        result: What is known when it succeeds.
        commits: Whether it makes one commit, which is a span of its own.
    """

    call: Call
    subject: Mapping[str, Any] = field(default_factory=lambda: OF_TABLE)
    result: Mapping[str, Any] = field(default_factory=dict)
    commits: bool = False


def _in_mode(mode: str) -> dict[str, Any]:
    return OF_TABLE | {"write.mode": mode}


def _first_snapshot(manager: IcebergTableManager) -> int:
    return manager.catalog.load_table(TABLE).metadata.snapshots[0].snapshot_id


@pytest.fixture(autouse=True)
def foreign_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Parquet file that no table has, in the working directory."""
    pq.write_table(ROWS, tmp_path / "foreign.parquet")
    monkeypatch.chdir(tmp_path)


OTHER = {"table.identifier": "bronze.other", "namespace": "bronze"}
METHODS: dict[str, Expected] = {
    "add_files": Expected(
        lambda m: m.add_files(TABLE, ["foreign.parquet"]),
        result={name: value for name, value in ADDED.items() if name not in {"commit.attempts", "commit.strategy"}},
        commits=True,
    ),
    "append": Expected(lambda m: m.append(TABLE, ROWS), _in_mode("append"), ADDED, commits=True),
    "compact_table": Expected(
        lambda m: m.compact_table(TABLE),
        result={
            "maintenance.operation": "compaction",
            "maintenance.status": "skipped",
            "files.removed": 0,
            "bytes.removed": 0,
            "files.added": 0,
            "bytes.added": 0,
            "snapshots.expired": 0,
            "snapshot.id": SOME,
        },
    ),
    "create_branch": Expected(lambda m: m.create_branch(TABLE, "b"), result=SNAPSHOT, commits=True),
    "create_namespace": Expected(lambda m: m.create_namespace("silver"), {"namespace": "silver"}),
    "create_table": Expected(lambda m: m.create_table("bronze.other", ROWS.schema), OTHER),
    "create_table_if_not_exists": Expected(lambda m: m.create_table_if_not_exists(TABLE, ROWS.schema)),
    "create_tag": Expected(lambda m: m.create_tag(TABLE, "t"), result=SNAPSHOT, commits=True),
    "delete": Expected(
        lambda m: m.delete(TABLE, "id > 0"),
        result={
            "snapshot.id": SOME,
            "snapshot.operation": "delete",
            "records.added": 0,
            "records.removed": 3,
            "files.added": 0,
            "files.removed": 1,
            "bytes.added": 0,
        },
        commits=True,
    ),
    "drop_namespace": Expected(lambda m: m.drop_namespace("empty"), {"namespace": "empty"}),
    "drop_table": Expected(lambda m: m.drop_table(TABLE)),
    "evolve_partition_spec": Expected(lambda m: m.evolve_partition_spec(TABLE, add=["name"]), commits=True),
    "evolve_schema": Expected(lambda m: m.evolve_schema(TABLE, ADD_NOTE), commits=True),
    "expire_snapshots": Expected(
        lambda m: m.expire_snapshots(TABLE), result={"snapshots.expired": 0, "files.removed": 0}, commits=True
    ),
    "fast_forward": Expected(lambda m: m.fast_forward(TABLE, "main", "staging"), result=SNAPSHOT, commits=True),
    "find_cursor": Expected(lambda m: m.find_cursor(TABLE, "bronze.other")),
    "get_current_snapshot": Expected(lambda m: m.get_current_snapshot(TABLE), result=SNAPSHOT),
    "list_namespaces": Expected(lambda m: m.list_namespaces(), {"namespace": ""}),
    "list_snapshots": Expected(lambda m: m.list_snapshots(TABLE)),
    "list_tables": Expected(lambda m: m.list_tables("bronze"), {"namespace": "bronze"}),
    "load_table": Expected(lambda m: m.load_table(TABLE)),
    "manage_snapshots": Expected(lambda m: m.manage_snapshots(TABLE)),
    "observe": Expected(lambda m: m.observe(TABLE)),
    "publish_branch": Expected(lambda m: m.publish_branch(TABLE, "staging"), result=SNAPSHOT, commits=True),
    "merge": Expected(
        lambda m: m.merge(TABLE, ROWS.set_column(1, "name", [["x", "y", "z"]]), ["id"], on_missing="delete"),
        _in_mode("upsert"),
        REPLACED,
        commits=True,
    ),
    "namespace_exists": Expected(lambda m: m.namespace_exists("bronze"), {"namespace": "bronze"}),
    "overwrite": Expected(lambda m: m.overwrite(TABLE, ROWS), _in_mode("overwrite"), REPLACED, commits=True),
    "plan_add_files": Expected(lambda m: m.plan_add_files(TABLE, ["foreign.parquet"])),
    "register_table": Expected(
        lambda m: m.register_table("bronze.other", m.catalog.load_table(TABLE).metadata_location), OTHER
    ),
    "remove_ref": Expected(lambda m: m.remove_ref(TABLE, "v1"), commits=True),
    "publish_branches": Expected(lambda m: m.publish_branches([TABLE], "staging"), {"tables": 1}, commits=True),
    "rollback_to_snapshot": Expected(
        lambda m: m.rollback_to_snapshot(TABLE, _first_snapshot(m)), result=SNAPSHOT, commits=True
    ),
    "rollback_to_timestamp": Expected(
        lambda m: m.rollback_to_timestamp(TABLE, datetime.now(UTC)), result=SNAPSHOT, commits=True
    ),
    "scan": Expected(
        lambda m: m.scan(TABLE, columns=["id"]),
        OF_TABLE | {"columns": ("id",)},
        {"records.read": 3, "bytes.read": SOME},
    ),
    "scan_batches": Expected(lambda m: m.scan_batches(TABLE).read_all()),
    "scan_changes": Expected(lambda m: m.scan_changes(TABLE).to_arrow()),
    "table_exists": Expected(lambda m: m.table_exists(TABLE)),
    "upgrade_format_version": Expected(lambda m: m.upgrade_format_version(TABLE, 2)),
    "upsert": Expected(
        lambda m: m.upsert(TABLE, ROWS.set_column(1, "name", [["x", "y", "z"]]), ["id"]),
        _in_mode("upsert"),
        REPLACED,
        commits=True,
    ),
    "write_data": Expected(lambda m: m.write_data(TABLE, ROWS), _in_mode("append"), ADDED, commits=True),
}


def public_methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def operation_of(method: str) -> str:
    return method.removesuffix("_if_not_exists")


@pytest.fixture
def traced(lake: Lake, recorder: SpanRecorder) -> IcebergTableManager:
    """A manager whose spans are recorded, beside a table with a few snapshots and refs."""
    quiet = IcebergTableManager(lake.catalog)
    quiet.create_table(TABLE, ROWS.schema)
    quiet.append(TABLE, ROWS)
    quiet.create_tag(TABLE, "v1")
    quiet.append(TABLE, ROWS, branch="staging")
    quiet.create_namespace("empty")
    return IcebergTableManager(lake.catalog, tracer=recorder.tracer)


def test_a_new_public_method_needs_a_span_here() -> None:
    # What `with_metadata_repair` is given has its span; it only calls it again after a repair, which has one, too.
    # `with_handover` does nothing by itself.
    assert public_methods(IcebergTableManager) == METHODS.keys() | {"with_metadata_repair", "with_handover"}
    # Each of these is the manager's method of the same name, with the table filled in.
    assert public_methods(ManagedSnapshots) <= METHODS.keys()


@pytest.mark.requirement("S2-US7.1", "S2-FR-041", "S2-FR-042", "S2-SC-007", "S1-T069-76", "S3-5")
@pytest.mark.parametrize("method", METHODS)
def test_each_operation_that_succeeds_leaves_its_span(
    traced: IcebergTableManager, recorder: SpanRecorder, method: str
) -> None:
    expected = METHODS[method]

    expected.call(traced)

    known = {"catalog.name": "floe"}
    commit = SpanTree("iceberg.commit", {"operation": "commit", "commit.attempts": 1, **OF_TABLE, **known})
    attributes = {
        "operation": operation_of(method),
        "engine": "pyiceberg",
        **known,
        **expected.subject,
        **expected.result,
    }
    assert recorder.trees() == [
        SpanTree(f"iceberg.{operation_of(method)}", attributes, children=[commit] if expected.commits else [])
    ]


# The usual calls of these look something up in the catalog first.
WITHOUT_ASKING_BEFORE: dict[str, Call] = {
    "register_table": lambda m: m.register_table("bronze.other", "file:///nowhere/metadata.json"),
    "rollback_to_snapshot": lambda m: m.rollback_to_snapshot(TABLE, 1),
}


class Unreachable:
    """A catalog plugin that cannot connect."""

    name = "unreachable"

    def connect(self, config: Mapping[str, str]) -> Any:
        raise ConnectionError(f"no way there with {len(config)} properties")


@pytest.mark.requirement("S2-US7.3", "S2-FR-041", "S2-SC-007")
@pytest.mark.parametrize("method", METHODS)
def test_each_operation_that_fails_leaves_its_span(recorder: SpanRecorder, method: str) -> None:
    manager = IcebergTableManager(Unreachable(), tracer=recorder.tracer)
    expected = METHODS[method]

    with pytest.raises(CatalogConnectionError):
        WITHOUT_ASKING_BEFORE.get(method, expected.call)(manager)

    failed = {"error": "CatalogConnectionError"}
    known = {"catalog.name": "unreachable", "engine": "pyiceberg"}
    connecting = SpanTree("iceberg.connect_catalog", {"operation": "connect_catalog", **known}, **failed)
    attributes = {"operation": operation_of(method), **known, **expected.subject}
    assert recorder.trees() == [
        SpanTree(f"iceberg.{operation_of(method)}", attributes, **failed, children=[connecting])
    ]

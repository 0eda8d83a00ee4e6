"""No operation of the table manager reveals a value of its rows or filters, on sound tables and on broken ones."""

import inspect
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.canaries import Canary, CapturedOutput, capture_output, provider_into
from support.lake import Lake
from support.process_numbers import process_numbers

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.models import SchemaChange, SchemaChangeType, SchemaEvolution
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.requirement("S2-FR-044")
ADD_NOTE = SchemaEvolution(
    changes=[SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="note", new_type="string")]
)


def rows(canary: Canary) -> pa.Table:
    return pa.table({"id": [canary.number, 2], "name": [canary.word, "b"]})


def where(canary: Canary) -> str:
    return f"name = '{canary.word}' and id = {canary.number}"


def first_snapshot(manager: IcebergTableManager, table: str) -> int:
    return int(manager.load_table(table).metadata.snapshots[0].snapshot_id)


def schema() -> pa.Schema:
    return rows(Canary()).schema


def parquet_file(canary: Canary) -> Path:
    path = Path(mkdtemp(), "rows.parquet")
    pq.write_table(rows(canary), path)
    return path


Call = Callable[[IcebergTableManager, str, Canary], object]
CALLS: dict[str, Call] = {
    "add_files": lambda manager, t, canary: manager.add_files(t, [parquet_file(canary)]),
    "append": lambda manager, t, canary: manager.append(t, rows(canary)),
    "compact_table": lambda manager, t, _: manager.compact_table(t),
    "create_branch": lambda manager, t, _: manager.create_branch(t, "b"),
    "create_namespace": lambda manager, _, __: manager.create_namespace("silver"),
    "create_table": lambda manager, _, __: manager.create_table("bronze.other", schema()),
    "create_table_if_not_exists": lambda manager, t, _: manager.create_table_if_not_exists(t, schema()),
    "create_tag": lambda manager, t, _: manager.create_tag(t, "t"),
    "delete": lambda manager, t, canary: manager.delete(t, where(canary)),
    "drop_namespace": lambda manager, _, __: manager.drop_namespace("bronze"),
    "drop_table": lambda manager, t, _: manager.drop_table(t),
    "evolve_partition_spec": lambda manager, t, _: manager.evolve_partition_spec(t, add=["name"]),
    "evolve_schema": lambda manager, t, _: manager.evolve_schema(t, ADD_NOTE),
    "expire_snapshots": lambda manager, t, _: manager.expire_snapshots(t),
    "publish_branches": lambda manager, t, _: manager.publish_branches([t], "staging"),
    "fast_forward": lambda manager, t, _: manager.fast_forward(t, "main", "staging"),
    "find_cursor": lambda manager, t, _: manager.find_cursor(t, t),
    "get_current_snapshot": lambda manager, t, _: manager.get_current_snapshot(t),
    "list_namespaces": lambda manager, _, __: manager.list_namespaces(),
    "list_snapshots": lambda manager, t, _: manager.list_snapshots(t),
    "list_tables": lambda manager, _, __: manager.list_tables("bronze"),
    "load_table": lambda manager, t, _: manager.load_table(t),
    "manage_snapshots": lambda manager, t, _: manager.manage_snapshots(t),
    "publish_branch": lambda manager, t, _: manager.publish_branch(t, "staging"),
    "merge": lambda manager, t, canary: manager.merge(
        t, rows(canary), ["id"], delete_when=where(canary), order_by=["name"]
    ),
    "namespace_exists": lambda manager, _, __: manager.namespace_exists("bronze"),
    "observe": lambda manager, t, _: manager.observe(t),
    "overwrite": lambda manager, t, canary: manager.overwrite(t, rows(canary), overwrite_filter=where(canary)),
    "plan_add_files": lambda manager, t, canary: manager.plan_add_files(t, [parquet_file(canary)]),
    "register_table": lambda manager, t, _: manager.register_table(
        "bronze.again", manager.load_table(t).metadata_location
    ),
    "remove_ref": lambda manager, t, _: manager.remove_ref(t, "v1"),
    "rollback_to_snapshot": lambda manager, t, _: manager.rollback_to_snapshot(t, first_snapshot(manager, t)),
    "rollback_to_timestamp": lambda manager, t, _: manager.rollback_to_timestamp(t, datetime.now(UTC)),
    "scan": lambda manager, t, canary: manager.scan(t, row_filter=where(canary)),
    "scan_batches": lambda manager, t, canary: manager.scan_batches(t, row_filter=where(canary)).read_all(),
    "scan_changes": lambda manager, t, canary: manager.scan_changes(t, row_filter=where(canary)).to_arrow(),
    "table_exists": lambda manager, t, _: manager.table_exists(t),
    "upgrade_format_version": lambda manager, t, _: manager.upgrade_format_version(t, 3),
    "upsert": lambda manager, t, canary: manager.upsert(t, rows(canary), ["name"]),
    "with_handover": lambda *_: None,
    "with_metadata_repair": lambda *_: None,
    "write_data": lambda manager, t, canary: manager.write_data(
        t, rows(canary), mode="overwrite", overwrite_filter=where(canary)
    ),
}


def leave_sound(lake: Lake) -> None:
    del lake


def damage_rows(lake: Lake) -> None:
    for path in lake.data_files():
        path.write_bytes(b"PAR1" + path.read_bytes()[4:-40] + b"\0" * 40)


def lose_everything(lake: Lake) -> None:
    lake.warehouse.rename(lake.warehouse.with_name("gone"))
    lake.warehouse.write_text("no folder")


@pytest.fixture
def outputs(tmp_path: Path) -> Iterator[CapturedOutput]:
    (tmp_path / "nothing").mkdir()
    with capture_output(tmp_path / "nothing") as outputs:
        yield outputs


def fill(manager: IcebergTableManager, table: str, canary: Canary) -> None:
    manager.create_table(table, schema())
    for _ in range(2):
        manager.append(table, rows(canary))
    manager.create_tag(table, "v1")
    manager.create_branch(table, "staging")


@pytest.mark.parametrize("state", [leave_sound, damage_rows, lose_everything])
def test_no_operation_reveals_a_value(
    lake: Lake, outputs: CapturedOutput, state: Callable[[Lake], None], capfd: pytest.CaptureFixture[str]
) -> None:
    tracer, canary = provider_into(outputs.spans).get_tracer("test"), Canary()
    manager = IcebergTableManager(lake.catalog, tracer=tracer, logger=logging.getLogger("floe_dagster_iceberg"))
    for name in CALLS:
        fill(manager, f"bronze.{name}", canary)
    state(lake)
    for name, call in CALLS.items():
        try:
            result = call(manager, f"bronze.{name}", canary)
        except FloeStorageError as error:
            outputs.add_error(name, error)
        else:
            outputs.others[name] = "" if isinstance(result, pa.Table) else repr(result)

    outputs.others["output"] = "".join(capfd.readouterr())
    counted = process_numbers().reader.get_metrics_data()
    outputs.others["metrics"] = "" if counted is None else counted.to_json()
    assert outputs.places_with(canary) == []


def test_a_new_operation_needs_a_call_here() -> None:
    methods = inspect.getmembers(IcebergTableManager, inspect.isfunction)
    assert CALLS.keys() == {name for name, _ in methods if not name.startswith("_")}

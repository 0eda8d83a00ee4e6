"""A call of every public method of the table manager, and what each does to a table that it must not."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.parquet as pq
from support.hostile_tables import NAMESPACE, HostileLake

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.models import CommitStrategy, IcebergTableManagerConfig, SchemaChange, SchemaChangeType
from floe_dagster_iceberg.table.manager import IcebergTableManager

ROWS = pa.table({"id": [1, 9], "name": ["x", "y"]})
QUICK = IcebergTableManagerConfig(max_commit_retries=1, retry_base_delay_seconds=0.1)
Call = Callable[[IcebergTableManager, str], object]


def _add_column(manager: IcebergTableManager, table: str) -> object:
    change = SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="note", new_type="string")
    return manager.evolve_schema(table, [change])


def _upgrade(version: int, manager: IcebergTableManager, table: str) -> object:
    return manager.upgrade_format_version(table, version)


def _parquet_file() -> Path:
    """A file outside the warehouse, which a table that adds it may delete."""
    path = Path(mkdtemp(), "rows.parquet")
    pq.write_table(ROWS, path)
    return path


CALLS: dict[str, list[Call]] = {
    "add_files": [
        lambda m, t: m.add_files(t, [_parquet_file()]),
        lambda m, t: m.add_files(t, [_parquet_file()], create=True, keep_files=True, branch="audit"),
    ],
    "append": [lambda m, t: m.append(t, ROWS), lambda m, t: m.append(t, ROWS, branch="audit")],
    "compact_table": [lambda m, t: m.compact_table(t)],
    "create_branch": [lambda m, t: m.create_branch(t, "b")],
    "create_namespace": [lambda m, t: m.create_namespace(t)],
    "create_table": [lambda m, t: m.create_table(t, ROWS.schema)],
    "create_table_if_not_exists": [lambda m, t: m.create_table_if_not_exists(t, ROWS.schema)],
    "create_tag": [lambda m, t: m.create_tag(t, "t"), lambda m, t: m.create_tag(t, "t", 7)],
    "delete": [
        lambda m, t: m.delete(t, "id = 1"),
        lambda m, t: m.delete(t, "true"),
        lambda m, t: m.delete(t, "id = 77"),
    ],
    "drop_namespace": [lambda m, _: m.drop_namespace(NAMESPACE)],
    "drop_table": [lambda m, t: m.drop_table(t), lambda m, t: m.drop_table(t, purge=True)],
    "evolve_partition_spec": [lambda m, t: m.evolve_partition_spec(t, add=["bucket(4, id)"])],
    "evolve_schema": [_add_column],
    "expire_snapshots": [lambda m, t: m.expire_snapshots(t, older_than_days=0, retain_last=1)],
    "publish_branches": [lambda m, t: m.publish_branches([t], "audit")],
    "fast_forward": [lambda m, t: m.fast_forward(t, "main", "audit")],
    "find_cursor": [lambda m, t: m.find_cursor(t, t), lambda m, t: m.find_cursor(t, f"{NAMESPACE}.nothing")],
    "get_current_snapshot": [lambda m, t: m.get_current_snapshot(t)],
    "list_namespaces": [lambda m, _: m.list_namespaces()],
    "list_snapshots": [lambda m, t: m.list_snapshots(t)],
    "list_tables": [lambda m, _: m.list_tables(NAMESPACE)],
    "load_table": [lambda m, t: m.load_table(t)],
    "manage_snapshots": [lambda m, t: m.manage_snapshots(t)],
    "publish_branch": [lambda m, t: m.publish_branch(t, "audit")],
    "merge": [
        lambda m, t: m.merge(t, ROWS, ["id"], delete_when="name = 'x'", on_missing="delete"),
        lambda m, t: m.merge(t, ROWS, ["name"], order_by=["id"], on_match="ignore"),
    ],
    "namespace_exists": [lambda m, t: m.namespace_exists(t)],
    "observe": [lambda m, t: m.observe(t)],
    "overwrite": [lambda m, t: m.overwrite(t, ROWS), lambda m, t: m.overwrite(t, ROWS, overwrite_filter="name = 'a'")],
    "plan_add_files": [
        lambda m, t: m.plan_add_files(t, [_parquet_file()]),
        lambda m, t: m.plan_add_files(t, [_parquet_file()], partition_by=["name"]),
    ],
    "register_table": [
        lambda m, t: m.register_table(f"{NAMESPACE}.again", m.load_table(t).metadata_location),
        lambda m, t: m.register_table(t, "file:///nowhere/v1.metadata.json"),
    ],
    "remove_ref": [lambda m, t: m.remove_ref(t, "main"), lambda m, t: m.remove_ref(t, "nothing")],
    "rollback_to_snapshot": [lambda m, t: m.rollback_to_snapshot(t, 7)],
    "rollback_to_timestamp": [
        lambda m, t: m.rollback_to_timestamp(t, datetime.now(UTC)),
        lambda m, t: m.rollback_to_timestamp(t, 0),
    ],
    "scan": [
        lambda m, t: m.scan(t),
        lambda m, t: m.scan(t, ["id"], "name = 'a' and id > 0", limit=1),
        lambda m, t: m.scan(t, row_filter="id in (1, 2) or name is null"),
        lambda m, t: m.scan(t, ref="nothing"),
        lambda m, t: m.scan(t, as_of=datetime.now(UTC)),
    ],
    "scan_batches": [
        lambda m, t: m.scan_batches(t).read_all(),
        lambda m, t: m.scan_batches(t, row_filter="id < 2").read_all(),
    ],
    "scan_changes": [
        lambda m, t: m.scan_changes(t).to_arrow(),
        lambda m, t: m.scan_changes(t, mode="appends", row_filter="id < 2").to_arrow(),
        lambda m, t: m.scan_changes(t, mode="partitions").partitions,
        lambda m, t: m.scan_changes(t, since=7),
    ],
    "table_exists": [lambda m, t: m.table_exists(t)],
    "upgrade_format_version": [partial(_upgrade, version) for version in (1, 2, 3, 9)],
    "upsert": [lambda m, t: m.upsert(t, ROWS, ["id"]), lambda m, t: m.upsert(t, ROWS, ["name"])],
    "write_data": [lambda m, t: m.write_data(t, ROWS, commit_strategy=CommitStrategy.MERGE_COMMIT)],
}


def problems_of(lake: HostileLake, table: str) -> list[str]:
    """What each method does to a table that it must not."""
    before, found, left = lake.state_of(table), [], [(name, call) for name, calls in CALLS.items() for call in calls]
    while left:
        with closing(lake.open()) as catalog:
            manager, changed = IcebergTableManager(catalog, config=QUICK), []
            while left and not changed:
                method, call = left.pop()
                error = _error_of(call, manager, f"{NAMESPACE}.{table}")
                changed = lake.state_of(table).differences(before)
                if error is not None and not isinstance(error, FloeStorageError):
                    found.append(f"{method} raised {type(error).__name__}: {error}")
                elif error is not None and changed:
                    found.append(f"{method} raised {type(error).__name__} and changed {changed}")
        lake.restore(table)
    return found


def _error_of(call: Call, manager: IcebergTableManager, table: str) -> Exception | None:
    try:
        call(manager, table)
    except Exception as error:  # noqa: BLE001 - any other than ours is what must not happen
        return error
    return None

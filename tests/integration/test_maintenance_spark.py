"""The same operations by Spark's procedures, with the same results, and what only they can do."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from maintenance_tables import (
    DAY,
    EAGER,
    ORDERS,
    checksum,
    content,
    files_per_partition,
    later,
    make_older,
    make_orders,
    paths_of,
    reachable_paths,
    rows_of,
    to_path,
)
from pyspark.sql import SparkSession
from racing_catalog import racing_manager

from floe_dagster_iceberg.errors import CommitConflictError, IcebergError, NoSuchTableError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    CompactionStrategyType,
    ExpiryPolicy,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    PlanReason,
    TableIdentifier,
)
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark.maintenance import SparkProcedures
from floe_dagster_iceberg.table.manager import IcebergTableManager
from tests.services.spark_session import spark_resource

COMPACTION, EXPIRY = MaintenanceOperation.COMPACTION, MaintenanceOperation.SNAPSHOT_EXPIRY
BY_SPARK = EAGER.model_copy(update={"engine": MaintenanceEngine.SPARK})


@dataclass
class SparkLake:
    """A catalog that both engines open."""

    manager: IcebergTableManager
    session: SparkSession

    def maintenance(self, after: timedelta = timedelta(0)) -> TableMaintenance:
        return TableMaintenance(self.manager, spark=lambda: self.session, clock=lambda: later(after))

    def execute(
        self, operation: MaintenanceOperation, policy: MaintenancePolicy = BY_SPARK, after: timedelta = timedelta(0)
    ) -> MaintenanceResult:
        return self.maintenance(after).execute(operation, ORDERS, policy)

    def sql(self, statement: str) -> None:
        self.session.sql(statement.replace("ORDERS", f"floe.{ORDERS}"))

    def set_properties(self, **properties: str) -> None:
        pairs = ", ".join(
            f"'{key.replace('__', '.').replace('_', '-')}'='{value}'" for key, value in properties.items()
        )
        self.sql(f"ALTER TABLE ORDERS SET TBLPROPERTIES ({pairs})")


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    iceberg = IcebergResource(
        catalog_uri=f"sqlite:///{tmp_path}/catalog.db?timeout=60", warehouse=f"file://{tmp_path}/warehouse"
    )
    iceberg.table_manager.create_namespace("bronze")
    return SparkLake(iceberg.table_manager, spark_resource(iceberg).spark_session)


@pytest.mark.requirement("S2-FR-030", "S2-FR-031", "X26")
@pytest.mark.parametrize(("batches", "days"), [(4, 3), pytest.param(20, 10, marks=pytest.mark.slow)])
def test_tiny_files_become_one_for_each_partition_and_the_next_run_finds_nothing(
    lake: SparkLake, batches: int, days: int
) -> None:
    table = make_orders(lake.manager, batches=batches, days=days)
    rows, kept = content(lake.manager), table.metadata.snapshots[batches // 2].snapshot_id
    rows_then = content(lake.manager, snapshot_id=kept)

    result = lake.execute(COMPACTION)

    assert (result.status, result.engine, result.error) == (MaintenanceStatus.DONE, MaintenanceEngine.SPARK, None)
    assert (result.files_removed, result.files_added) == (batches * days, days)
    assert (result.bytes_removed, result.bytes_added) == (result.before.total_bytes, result.after.total_bytes)
    assert set(files_per_partition(lake.manager.load_table(ORDERS)).values()) == {1}
    assert (content(lake.manager), content(lake.manager, snapshot_id=kept)) == (rows, rows_then)
    assert lake.manager.get_current_snapshot(ORDERS).summary["floe.maintenance.operation"] == "compaction"
    assert lake.execute(COMPACTION).plan.reason is PlanReason.BELOW_THRESHOLD


def test_the_statement_holds_no_value(lake: SparkLake) -> None:
    make_orders(lake.manager, batches=2, days=2)
    filtered = CompactionPolicy(min_input_files=2, partition_filter="day = '2024-01-02'")

    result = lake.execute(COMPACTION, BY_SPARK.model_copy(update={"compaction": filtered}))

    assert (
        result.statement
        == "CALL `floe`.system.rewrite_data_files(table => :table, options => :options, where => :where)"
    )
    assert (result.files_removed, result.files_added) == (2, 1)


@pytest.mark.requirement("S1-T090-96")
@pytest.mark.parametrize("strategy", [CompactionStrategyType.SORT, CompactionStrategyType.Z_ORDER])
def test_rows_are_arranged(lake: SparkLake, strategy: CompactionStrategyType) -> None:
    make_orders(lake.manager, batches=4, days=2)
    rows = content(lake.manager)
    compaction = CompactionPolicy(min_input_files=2, strategy=strategy, sort_columns=["id"])
    engine = MaintenanceEngine.SPARK if strategy is CompactionStrategyType.SORT else MaintenanceEngine.AUTO

    result = lake.execute(COMPACTION, EAGER.model_copy(update={"engine": engine, "compaction": compaction}))

    assert (result.engine, result.files_added) == (MaintenanceEngine.SPARK, 2)
    for task in lake.manager.load_table(ORDERS).scan().plan_files():
        ids = pq.read_table(to_path(task.file.file_path), columns=["id"])["id"].to_pylist()
        assert ids == sorted(ids)
    assert content(lake.manager) == rows


@pytest.mark.requirement("S2-US4.4", "S2-FR-024")
@pytest.mark.parametrize("batch", [1000, pytest.param(3, marks=pytest.mark.slow)])
def test_expiry_keeps_what_pyiceberg_keeps_and_deletes_the_files(lake: SparkLake, batch: int) -> None:
    manager = lake.manager
    make_orders(manager)
    for number in range(8):
        manager.overwrite(ORDERS, rows_of(number, days=1))
    history = [snapshot.snapshot_id for snapshot in reversed(manager.list_snapshots(ORDERS))]
    manager.create_tag(ORDERS, "keep", history[1])
    manager.create_branch(ORDERS, "audit", history[3])
    manager.append(ORDERS, rows_of(50, days=1), branch="audit")
    audit = manager.load_table(ORDERS).metadata.refs["audit"].snapshot_id
    expiry = ExpiryPolicy(min_snapshots_to_keep=2, max_snapshots_per_commit=batch)
    policy = BY_SPARK.model_copy(update={"expiry": expiry})
    plan = lake.maintenance(8 * DAY).plan(EXPIRY, ORDERS, policy)

    result = lake.execute(EXPIRY, policy, after=8 * DAY)

    table = manager.load_table(ORDERS)
    assert (result.status, result.error) == (MaintenanceStatus.DONE, None)
    assert {snapshot.snapshot_id for snapshot in table.metadata.snapshots} == {
        *history[-2:],
        history[1],
        history[3],
        audit,
    }
    assert result.snapshots_expired == plan.snapshots == 4
    assert (result.files_removed, result.bytes_removed) == (plan.input_files, plan.input_bytes)
    assert paths_of(table) == reachable_paths(table)
    assert content(manager, ref="keep") == checksum(rows_of(1, days=1))
    assert manager.scan(ORDERS, ref="audit").num_rows == 6


def test_manifests_are_put_together(lake: SparkLake) -> None:
    make_orders(lake.manager, batches=6, days=2)
    rows = content(lake.manager)

    result = lake.execute(MaintenanceOperation.MANIFESTS)

    assert (result.files_removed, result.files_added, result.after.manifests) == (6, 1, 1)
    assert result.bytes_removed == result.plan.input_bytes
    assert result.bytes_added > 0
    assert lake.manager.get_current_snapshot(ORDERS).summary["floe.maintenance.operation"] == "manifests"
    assert content(lake.manager) == rows


def test_position_deletes_are_blocked_without_spark_and_rewritten_with_it(lake: SparkLake) -> None:
    make_orders(lake.manager, batches=2, days=1)
    lake.set_properties(write__delete__mode="merge-on-read", write__delete__granularity="partition")
    for row in (0, 1001):
        lake.sql(f"DELETE FROM ORDERS WHERE id = {row}")  # noqa: S608 - a number
    rows, operation = content(lake.manager), MaintenanceOperation.POSITION_DELETES

    blocked = TableMaintenance(lake.manager).execute(operation, ORDERS, EAGER)
    result = lake.execute(operation, EAGER)

    assert "Position delete files are to be rewritten, which PyIceberg cannot do" in blocked.plan.blocked_by
    assert (result.status, result.files_removed, result.files_added) == (MaintenanceStatus.DONE, 2, 1)
    assert (result.before.delete_files, result.after.delete_files) == (2, 1)
    assert content(lake.manager) == rows
    assert lake.execute(operation, EAGER).plan.reason is PlanReason.BELOW_THRESHOLD


def test_deletes_of_files_that_compaction_replaced_are_dropped(lake: SparkLake) -> None:
    make_orders(lake.manager, batches=2, days=1)
    lake.set_properties(write__delete__mode="merge-on-read")
    for row in (0, 1001):
        lake.sql(f"DELETE FROM ORDERS WHERE id = {row}")  # noqa: S608 - a number
    operation = MaintenanceOperation.POSITION_DELETES

    needed = lake.maintenance().plan(operation, ORDERS, EAGER)
    lake.execute(COMPACTION, EAGER)
    result = lake.execute(operation, EAGER)

    # One delete file for each of the two data files is as few as there can be.
    assert needed.reason is PlanReason.BELOW_THRESHOLD
    assert (result.status, result.files_removed, result.files_added) == (MaintenanceStatus.DONE, 2, 0)
    assert (result.after.delete_files, lake.manager.scan(ORDERS).num_rows) == (0, 4)


def test_rows_that_spark_deleted_stay_deleted_when_pyiceberg_compacts(lake: SparkLake) -> None:
    make_orders(lake.manager, batches=3, days=1)
    lake.set_properties(write__delete__mode="merge-on-read")
    lake.sql("DELETE FROM ORDERS WHERE id IN (0, 1001)")
    rows = content(lake.manager)

    result = lake.execute(COMPACTION, EAGER)

    assert (result.engine, result.files_removed, result.files_added) == (MaintenanceEngine.PYICEBERG, 3, 1)
    assert (content(lake.manager), lake.manager.scan(ORDERS).num_rows) == (rows, 7)


def test_rows_that_are_deleted_while_pyiceberg_compacts_stay_deleted(lake: SparkLake, tmp_path: Path) -> None:
    make_orders(lake.manager, batches=3, days=1)
    lake.set_properties(write__delete__mode="merge-on-read")

    def delete_then_append() -> None:
        # Two commits: PyIceberg's own check looks only at deletes of the last one.
        lake.sql("DELETE FROM ORDERS WHERE id IN (0, 1001)")
        lake.manager.append(ORDERS, rows_of(9, days=1))

    result = TableMaintenance(racing_manager(tmp_path, delete_then_append)).execute(COMPACTION, ORDERS, EAGER)

    expected = pa.concat_tables([rows_of(batch, days=1) for batch in (0, 1, 2, 9)]).to_pylist()
    assert result.status is MaintenanceStatus.DONE
    assert sorted(lake.manager.scan(ORDERS)["id"].to_pylist()) == sorted(
        row["id"] for row in expected if row["id"] not in (0, 1001)
    )


def test_equality_deletes_need_spark(lake: SparkLake) -> None:
    make_orders(lake.manager, batches=3, days=1)
    _delete_by_equality(lake, 1001)

    blocked = TableMaintenance(lake.manager).execute(COMPACTION, ORDERS, EAGER)
    result = lake.execute(COMPACTION, EAGER)

    assert blocked.plan.reason is PlanReason.BLOCKED
    assert "The table has 1 equality delete files" in blocked.plan.blocked_by
    assert (result.status, result.engine, result.files_added) == (MaintenanceStatus.DONE, MaintenanceEngine.SPARK, 1)
    left = lake.manager.scan(ORDERS)["id"].to_pylist()
    assert sorted(left) == sorted({*range(3), *range(1000, 1003), *range(2000, 2003)} - {1001})


@pytest.mark.parametrize("operation", [COMPACTION, EXPIRY, MaintenanceOperation.MANIFESTS])
def test_tables_of_format_version_3_need_spark(lake: SparkLake, operation: MaintenanceOperation) -> None:
    lake.sql("CREATE TABLE ORDERS (id BIGINT, p STRING) USING iceberg TBLPROPERTIES ('format-version'='3')")
    for number in range(3):
        lake.sql(f"INSERT INTO ORDERS VALUES ({number}, 'a'), ({number + 10}, 'b')")  # noqa: S608 - numbers

    blocked = TableMaintenance(lake.manager, clock=lambda: later(8 * DAY)).execute(operation, ORDERS, EAGER)
    result = lake.execute(operation, EAGER, after=8 * DAY)

    assert blocked.plan.reason is PlanReason.BLOCKED
    assert "The table has format version 3" in blocked.plan.blocked_by
    assert (result.status, result.engine, result.error) == (MaintenanceStatus.DONE, MaintenanceEngine.SPARK, None)
    assert lake.session.table(f"floe.{ORDERS}").count() == 6


def test_no_file_of_a_table_of_format_version_3_is_taken_for_an_orphan(lake: SparkLake) -> None:
    lake.sql(
        "CREATE TABLE ORDERS (id BIGINT, p STRING) USING iceberg "
        "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )
    lake.sql("INSERT INTO ORDERS VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    lake.sql("DELETE FROM ORDERS WHERE id = 2")

    result = lake.execute(MaintenanceOperation.ORPHAN_FILES, EAGER, after=30 * DAY)

    assert result.plan.reason is PlanReason.BELOW_THRESHOLD
    assert lake.session.table(f"floe.{ORDERS}").count() == 2


def test_orphans_that_spark_finds_go_to_the_same_quarantine(lake: SparkLake) -> None:
    table = make_orders(lake.manager, batches=3)
    orphan = to_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"nobody's")
    make_older(orphan, 10 * DAY)

    result = lake.execute(MaintenanceOperation.ORPHAN_FILES)

    assert (result.status, result.engine) == (MaintenanceStatus.DONE, MaintenanceEngine.SPARK)
    assert (result.plan.files, orphan.exists()) == ((f"file://{orphan}",), False)
    assert lake.maintenance().restore_orphans(ORDERS) == 1
    assert orphan.read_bytes() == b"nobody's"


def test_what_fails_in_spark_is_told_by_what_follows_from_it(lake: SparkLake) -> None:
    make_orders(lake.manager, batches=1)
    tagged = lake.manager.create_tag(ORDERS, "keep").snapshot_id
    procedures = SparkProcedures(lake.session, "floe")
    orders = TableIdentifier.from_string(ORDERS)

    with pytest.raises(CommitConflictError, match="an expiring snapshot got a branch or tag"):
        procedures.expire_snapshots(orders, [tagged])
    with pytest.raises(NoSuchTableError):
        procedures.rewrite_manifests(TableIdentifier.from_string("bronze.nowhere"))
    lake.set_properties(gc__enabled="false")
    with pytest.raises(IcebergError, match="procedure expire_snapshots failed"):
        procedures.expire_snapshots(orders, [])


def _delete_by_equality(lake: SparkLake, row_id: int) -> None:
    """What Flink writes: a file that names rows by their values, committed by Iceberg itself."""
    table = lake.manager.load_table(ORDERS)
    path = to_path(table.location()) / "data" / "equality-deletes.parquet"
    ids = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"id": [row_id]}, schema=ids), path)
    jvm: Any = lake.session._jvm
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(lake.session._jsparkSession)
    java_table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lake.session._jsparkSession, f"floe.{ORDERS}")
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java_table.spec())
    field_ids = lake.session.sparkContext._gateway.new_array(jvm.int, 1)
    field_ids[0] = 1
    delete = (
        builder.ofEqualityDeletes(field_ids)
        .withPath(f"file://{path}")
        .withPartitionPath("day=2024-01-01")
        .withFileSizeInBytes(path.stat().st_size)
        .withRecordCount(1)
        .build()
    )
    java_table.newRowDelta().addDeletes(delete).commit()

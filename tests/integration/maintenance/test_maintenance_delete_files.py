"""Delete files: rewritten by Spark, respected by PyIceberg."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.maintenance_tables import EAGER, ORDERS, content, make_orders, rows_of, to_path
from support.maintenance_upkeep import Upkeep
from support.racing_catalog import racing_manager

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenanceStatus, PlanReason

COMPACTION = MaintenanceOperation.COMPACTION


def test_position_deletes_are_blocked_without_spark_and_rewritten_with_it(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=2, days=1)
    spark_upkeep.set_properties(write__delete__mode="merge-on-read", write__delete__granularity="partition")
    for row in (0, 1001):
        spark_upkeep.sql(f"DELETE FROM ORDERS WHERE id = {row}")  # noqa: S608 - a number
    rows, operation = content(spark_upkeep.manager), MaintenanceOperation.POSITION_DELETES

    blocked = TableMaintenance(spark_upkeep.manager).execute(operation, ORDERS, EAGER)
    result = spark_upkeep.execute_auto(operation)

    assert "Position delete files are to be rewritten, which PyIceberg cannot do" in blocked.plan.blocked_by
    assert (result.status, result.files_removed, result.files_added) == (MaintenanceStatus.DONE, 2, 1)
    assert (result.before.delete_files, result.after.delete_files) == (2, 1)
    assert content(spark_upkeep.manager) == rows
    assert spark_upkeep.execute_auto(operation).plan.reason is PlanReason.BELOW_THRESHOLD


def test_deletes_of_files_that_compaction_replaced_are_dropped(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=2, days=1)
    spark_upkeep.set_properties(write__delete__mode="merge-on-read")
    for row in (0, 1001):
        spark_upkeep.sql(f"DELETE FROM ORDERS WHERE id = {row}")  # noqa: S608 - a number
    operation = MaintenanceOperation.POSITION_DELETES

    needed = spark_upkeep.plan(operation)
    spark_upkeep.execute_auto(COMPACTION)
    result = spark_upkeep.execute_auto(operation)

    # One delete file for each of the two data files is as few as there can be.
    assert needed.reason is PlanReason.BELOW_THRESHOLD
    assert (result.status, result.files_removed, result.files_added) == (MaintenanceStatus.DONE, 2, 0)
    assert (result.after.delete_files, spark_upkeep.manager.scan(ORDERS).num_rows) == (0, 4)


def test_rows_that_spark_deleted_stay_deleted_when_pyiceberg_compacts(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=3, days=1)
    spark_upkeep.set_properties(write__delete__mode="merge-on-read")
    spark_upkeep.sql("DELETE FROM ORDERS WHERE id IN (0, 1001)")
    rows = content(spark_upkeep.manager)

    result = spark_upkeep.execute_auto(COMPACTION)

    assert (result.engine, result.files_removed, result.files_added) == (MaintenanceEngine.PYICEBERG, 3, 1)
    assert (content(spark_upkeep.manager), spark_upkeep.manager.scan(ORDERS).num_rows) == (rows, 7)


def test_rows_that_are_deleted_while_pyiceberg_compacts_stay_deleted(spark_upkeep: Upkeep, tmp_path: Path) -> None:
    make_orders(spark_upkeep.manager, batches=3, days=1)
    spark_upkeep.set_properties(write__delete__mode="merge-on-read")

    def delete_then_append() -> None:
        # Two commits: PyIceberg's own check looks only at deletes of the last one.
        spark_upkeep.sql("DELETE FROM ORDERS WHERE id IN (0, 1001)")
        spark_upkeep.manager.append(ORDERS, rows_of(9, days=1))

    result = TableMaintenance(racing_manager(tmp_path, delete_then_append)).execute(COMPACTION, ORDERS, EAGER)

    expected = pa.concat_tables([rows_of(batch, days=1) for batch in (0, 1, 2, 9)]).to_pylist()
    assert result.status is MaintenanceStatus.DONE
    assert sorted(spark_upkeep.manager.scan(ORDERS)["id"].to_pylist()) == sorted(
        row["id"] for row in expected if row["id"] not in (0, 1001)
    )


def test_equality_deletes_need_spark(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=3, days=1)
    _delete_by_equality(spark_upkeep, 1001)

    blocked = TableMaintenance(spark_upkeep.manager).execute(COMPACTION, ORDERS, EAGER)
    result = spark_upkeep.execute_auto(COMPACTION)

    assert blocked.plan.reason is PlanReason.BLOCKED
    assert "The table has 1 equality delete files" in blocked.plan.blocked_by
    assert (result.status, result.engine, result.files_added) == (MaintenanceStatus.DONE, MaintenanceEngine.SPARK, 1)
    left = spark_upkeep.manager.scan(ORDERS)["id"].to_pylist()
    assert sorted(left) == sorted({*range(3), *range(1000, 1003), *range(2000, 2003)} - {1001})


def _delete_by_equality(spark_upkeep: Upkeep, row_id: int) -> None:
    """What Flink writes: a file that names rows by their values, committed by Iceberg itself."""
    table = spark_upkeep.manager.load_table(ORDERS)
    path = to_path(table.location()) / "data" / "equality-deletes.parquet"
    ids = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"id": [row_id]}, schema=ids), path)
    jvm: Any = spark_upkeep.session._jvm
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark_upkeep.session._jsparkSession)
    java_table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        spark_upkeep.session._jsparkSession, f"floe.{ORDERS}"
    )
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java_table.spec())
    field_ids = spark_upkeep.session.sparkContext._gateway.new_array(jvm.int, 1)
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

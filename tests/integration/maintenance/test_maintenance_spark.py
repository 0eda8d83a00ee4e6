"""What only Spark's procedures can do, and what they do when others are faster."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.maintenance_tables import (
    DAY,
    EAGER,
    ORDERS,
    checksum,
    content,
    later,
    make_orders,
    replace_often,
    rows_of,
    to_path,
)
from support.maintenance_upkeep import Upkeep, section
from support.racing_catalog import racing_manager

from floe_dagster_iceberg.errors import CommitConflictError, CompactionError, IcebergError, NoSuchTableError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    CompactionStrategyType,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenanceStatus,
    OrphanPolicy,
    PlanReason,
    TableIdentifier,
)
from floe_dagster_iceberg.spark.procedures import SparkProcedures

COMPACTION, EXPIRY = MaintenanceOperation.COMPACTION, MaintenanceOperation.SNAPSHOT_EXPIRY


def test_the_statement_holds_no_value(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=2, days=2)
    filtered = CompactionPolicy(min_input_files=2, partition_filter="day = '2024-01-02'")

    result = spark_upkeep.execute(COMPACTION, section("compaction", filtered))

    assert (
        result.statement
        == "CALL `floe`.system.rewrite_data_files(table => :table, options => :options, where => :where)"
    )
    assert (result.files_removed, result.files_added) == (2, 1)


@pytest.mark.requirement("S1-T090-96")
def test_z_order_keeps_rows_together_that_are_near_in_every_column(spark_upkeep: Upkeep) -> None:
    columns = [("x", pa.int64()), ("y", pa.int64())]
    spark_upkeep.manager.create_table(ORDERS, pa.schema(columns))
    grid = [{"x": x, "y": y} for y in range(16) for x in range(16)]
    for part in range(4):
        spark_upkeep.manager.append(ORDERS, pa.Table.from_pylist(grid[part::4]))
    z_order = CompactionPolicy(min_input_files=2, strategy=CompactionStrategyType.Z_ORDER, sort_columns=["x", "y"])

    result = spark_upkeep.execute_auto(COMPACTION, section("compaction", z_order))

    assert (result.engine, result.files_added) == (MaintenanceEngine.SPARK, 1)
    [task] = spark_upkeep.manager.load_table(ORDERS).scan().plan_files()
    written = pq.read_table(to_path(task.file.file_path)).to_pylist()
    quarters = [{(row["x"] // 8, row["y"] // 8) for row in written[start : start + 64]} for start in range(0, 256, 64)]
    assert [len(quarter) for quarter in quarters] == [1, 1, 1, 1]
    assert sorted(map(repr, written)) == sorted(map(repr, grid))


@pytest.mark.parametrize("operation", [COMPACTION, EXPIRY, MaintenanceOperation.MANIFESTS])
def test_tables_of_format_version_3_need_spark(spark_upkeep: Upkeep, operation: MaintenanceOperation) -> None:
    spark_upkeep.sql("CREATE TABLE ORDERS (id BIGINT, p STRING) USING iceberg TBLPROPERTIES ('format-version'='3')")
    for number in range(3):
        spark_upkeep.sql(f"INSERT INTO ORDERS VALUES ({number}, 'a'), ({number + 10}, 'b')")  # noqa: S608 - numbers

    blocked = TableMaintenance(spark_upkeep.manager, clock=lambda: later(8 * DAY)).execute(operation, ORDERS, EAGER)
    result = spark_upkeep.execute_auto(operation, after=8 * DAY)

    assert blocked.plan.reason is PlanReason.BLOCKED
    assert "The table has format version 3" in blocked.plan.blocked_by
    assert (result.status, result.engine, result.error) == (MaintenanceStatus.DONE, MaintenanceEngine.SPARK, None)
    assert spark_upkeep.session.table(f"floe.{ORDERS}").count() == 6


def test_no_file_of_a_table_of_format_version_3_is_taken_for_an_orphan(spark_upkeep: Upkeep) -> None:
    spark_upkeep.sql(
        "CREATE TABLE ORDERS (id BIGINT, p STRING) USING iceberg "
        "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )
    spark_upkeep.sql("INSERT INTO ORDERS VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    spark_upkeep.sql("DELETE FROM ORDERS WHERE id = 2")

    result = spark_upkeep.execute_auto(MaintenanceOperation.ORPHAN_FILES, after=30 * DAY)

    assert result.plan.reason is PlanReason.BELOW_THRESHOLD
    assert spark_upkeep.session.table(f"floe.{ORDERS}").count() == 2


def test_orphans_younger_than_spark_looks_for_are_blocked_with_the_remedy(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=1)
    hasty = OrphanPolicy(older_than=timedelta(hours=1), overrides=["orphan_age"])

    plan = spark_upkeep.plan(MaintenanceOperation.ORPHAN_FILES, section("orphans", hasty))

    assert plan.blocked_by == "Spark finds no orphans younger than 1 day. Raise older_than, or use engine 'auto'."


@pytest.mark.requirement("S2-US4.4")
def test_a_tag_that_is_made_after_the_plan_saves_its_snapshot(spark_upkeep: Upkeep) -> None:
    manager, session = spark_upkeep.manager, spark_upkeep.session
    first, *_ = replace_often(manager, 4)

    def session_after_a_tag() -> Any:
        manager.create_tag(ORDERS, "late", first)
        return session

    messages: list[str] = []
    maintenance = TableMaintenance(
        manager, spark=session_after_a_tag, clock=lambda: later(8 * DAY), progress=messages.append
    )
    result = maintenance.execute(EXPIRY, ORDERS, EAGER.model_copy(update={"engine": MaintenanceEngine.SPARK}))

    assert (result.status, result.plan.snapshots, result.snapshots_expired) == (MaintenanceStatus.DONE, 3, 2)
    assert content(manager, ref="late") == checksum(rows_of(0, days=1))
    assert messages[0].startswith("Spark starts snapshot_expiry of bronze.orders: Expire 3 of 4 snapshots")
    assert messages[-1].startswith("2 snapshots expired")
    # The plan named more files than were deleted, so their bytes are unknown.
    assert (result.files_removed < result.plan.input_files, result.bytes_removed) == (True, 0)


@pytest.mark.requirement("S2-FR-030")
def test_a_writer_that_keeps_replacing_the_files_wins_and_neither_side_fails(
    spark_upkeep: Upkeep, tmp_path: Path
) -> None:
    make_orders(spark_upkeep.manager, batches=3, days=1)
    rival, stop, written = racing_manager(tmp_path), threading.Event(), [0]

    def replace() -> None:
        while not stop.is_set():
            written[0] += 1
            rival.overwrite(ORDERS, rows_of(written[0], days=1))
            rival.append(ORDERS, rows_of(500 + written[0], days=1))

    with ThreadPoolExecutor(max_workers=1) as thread:
        replacing = thread.submit(replace)
        try:
            results = [spark_upkeep.execute(COMPACTION) for _ in range(3)]
        finally:
            stop.set()
        replacing.result()

    assert [result.error for result in results] == [None] * 3
    last = [rows_of(written[0], days=1), rows_of(500 + written[0], days=1)]
    assert content(spark_upkeep.manager) == checksum(pa.concat_tables(last))


def test_what_fails_in_spark_is_reported_by_what_follows_from_it(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=1)
    tagged = spark_upkeep.manager.create_tag(ORDERS, "keep").snapshot_id
    procedures = SparkProcedures(spark_upkeep.session, "floe")
    orders = TableIdentifier.from_string(ORDERS)

    with pytest.raises(CommitConflictError, match="an expiring snapshot got a branch or tag"):
        procedures.expire_snapshots(orders, [tagged])
    with pytest.raises(NoSuchTableError):
        procedures.rewrite_manifests(TableIdentifier.from_string("bronze.nowhere"))
    spark_upkeep.set_properties(gc__enabled="false")
    with pytest.raises(IcebergError, match="procedure expire_snapshots failed"):
        procedures.expire_snapshots(orders, [])


@pytest.mark.parametrize("partial_progress", [False, True])
def test_files_that_spark_cannot_rewrite_fail_the_compaction(spark_upkeep: Upkeep, partial_progress: bool) -> None:  # noqa: FBT001
    make_orders(spark_upkeep.manager, batches=2, days=2)
    corrupt = next(iter(spark_upkeep.manager.load_table(ORDERS).scan(row_filter="day = '2024-01-02'").plan_files()))
    to_path(corrupt.file.file_path).unlink()
    eager = CompactionPolicy(min_input_files=2, partial_progress=partial_progress)
    procedures = SparkProcedures(spark_upkeep.session, "floe")

    result = spark_upkeep.execute(COMPACTION, section("compaction", eager))

    assert result.status is MaintenanceStatus.FAILED
    assert "rewrite" in str(result.error)
    if not partial_progress:
        schema = spark_upkeep.manager.load_table(ORDERS).schema()
        with pytest.raises(CompactionError, match="procedure rewrite_data_files failed"):
            procedures.rewrite_data_files(TableIdentifier.from_string(ORDERS), eager, schema=schema)

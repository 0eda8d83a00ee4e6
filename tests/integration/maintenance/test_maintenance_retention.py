"""Rows past their retention go, and no others; on either engine."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType, IcebergType, StringType, TimestampType, TimestamptzType
from support.maintenance_lake import metadata_of, run_asset
from support.maintenance_tables import ORDERS, everything_in
from support.maintenance_upkeep import Upkeep
from support.racing_catalog import racing_manager
from support.reading_io import READING_IO, reading
from support.retention_tables import NOW, RETENTION, days, execute, left, make_events, plan, retention

from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
from floe_dagster_iceberg.maintenance.health_checks import find_breaches
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    Guardrail,
    MaintenanceEngine,
    MaintenancePolicy,
    MaintenanceStatus,
    PlanReason,
    RetentionPolicy,
)
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day"))
BY_DATE = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "at"))
BY_NOTHING = UNPARTITIONED_PARTITION_SPEC
# 30 days before NOW, rounded to a day.
FIRST_KEPT = date(2024, 12, 1)
YEAR = days(366)
MINUTE = timedelta(minutes=1)


def noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


def wall(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 - of a column without time zone


def append(manager: IcebergTableManager, *values: Any) -> None:
    manager.append(ORDERS, pa.table({"id": pa.array([-1] * len(values), pa.int64()), "at": pa.array(values)}))


def test_335_of_366_days_are_dropped_without_opening_a_data_file(tmp_path: Path) -> None:
    resource = IcebergResource(
        catalog_uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/w", catalog_properties=READING_IO
    )
    manager = resource.table_manager
    manager.create_namespace("bronze")
    make_events(manager, TimestamptzType(), [[noon(day) for day in YEAR]], spec=BY_DAY)

    with reading() as opened:
        result = TableMaintenance(manager, clock=lambda: NOW).execute(RETENTION, ORDERS, retention())

    assert (result.status, result.rows_deleted) == (MaintenanceStatus.DONE, 335)
    assert (result.files_removed, result.files_added) == (335, 0)
    assert opened
    assert [path for path in opened if path.endswith(".parquet")] == []
    assert left(manager) == [noon(day) for day in YEAR[335:]]


@pytest.mark.parametrize(
    ("kind", "value", "spec"),
    [
        (DateType(), lambda day: day, BY_DATE),
        (TimestampType(), wall, BY_DAY),
        (TimestamptzType(), noon, BY_DAY),
        (TimestamptzType(), noon, BY_NOTHING),
    ],
    ids=["date", "timestamp", "timestamptz", "not partitioned"],
)
def test_days_that_are_old_enough_go_in_one_commit_and_null_stays(
    upkeep: Upkeep, kind: IcebergType, value: Callable[[date], Any], spec: PartitionSpec
) -> None:
    values = [value(day) for day in days(6, FIRST_KEPT - timedelta(days=3))]
    manager = upkeep.manager
    # The second commit brings late rows: its file holds rows of both sides, unless the table is partitioned.
    table = make_events(manager, kind, [[*values, None], [values[0], values[-1]]], spec=spec)

    result = execute(upkeep, retention(column="at"))

    assert (result.status, result.engine, result.rows_deleted) == (MaintenanceStatus.DONE, upkeep.engine, 4)
    assert left(manager) == [*values[3:], values[-1], None]
    committed = manager.get_current_snapshot(ORDERS)
    assert committed.parent_snapshot_id == table.metadata.current_snapshot_id
    assert committed.summary["floe.maintenance.operation"] == "retention"
    assert execute(upkeep, retention(column="at")).plan.reason is PlanReason.BELOW_THRESHOLD


@pytest.mark.parametrize(("kind", "zone"), [(TimestamptzType(), UTC), (TimestampType(), None)], ids=str)
def test_days_begin_in_the_time_zone_of_the_policy(upkeep: Upkeep, kind: IcebergType, zone: Any) -> None:
    # Midnight in Berlin is 23:00 UTC; a timestamp without a zone is local time.
    midnight = datetime(2024, 11, 30, 23, tzinfo=UTC) if zone else wall(FIRST_KEPT)
    make_events(upkeep.manager, kind, [[midnight - MINUTE, midnight, midnight + MINUTE]], spec=BY_DAY)

    result = execute(upkeep, retention(timezone="Europe/Berlin"))

    assert result.rows_deleted == 1
    assert left(upkeep.manager) == [midnight, midnight + MINUTE]


def test_a_plan_names_files_and_rows_and_a_dry_run_changes_nothing(upkeep: Upkeep, tmp_path: Path) -> None:
    values = days(3, FIRST_KEPT - timedelta(days=2))
    table = make_events(upkeep.manager, DateType(), [values[:2], [values[1], values[2]]])
    paths = {task.file.file_path: task.file.file_size_in_bytes for task in table.scan().plan_files()}
    before = everything_in(tmp_path / "warehouse")
    policy = retention(column="at")

    planned = plan(upkeep, policy)
    dry = execute(upkeep, policy.model_copy(update={"dry_run": True}))

    assert (planned.reason, planned.rows, planned.input_bytes) == (PlanReason.RECOMMENDED, 3, sum(paths.values()))
    assert set(planned.files) == paths.keys()
    assert planned.summary == (
        "Delete 3 of 4 rows, older than 30 days ('at' before 2024-12-01 UTC): drop 1 file and rewrite 1 file."
    )
    assert (dry.status, dry.plan) == (MaintenanceStatus.PLANNED, planned)
    assert everything_in(tmp_path / "warehouse") == before
    assert execute(upkeep, policy).rows_deleted == planned.rows


def test_other_branches_and_tags_keep_the_rows_and_the_plan_names_them(upkeep: Upkeep) -> None:
    values = days(2, FIRST_KEPT - timedelta(days=1))
    make_events(upkeep.manager, DateType(), [values], spec=BY_DATE)
    upkeep.manager.create_branch(ORDERS, "env-dev")
    upkeep.manager.create_tag(ORDERS, "audit")

    result = execute(upkeep, retention())

    assert result.plan.summary.endswith(" They stay on 'audit', 'env-dev'.")
    assert left(upkeep.manager) == values[1:]
    assert left(upkeep.manager, branch="env-dev") == left(upkeep.manager, tag="audit") == values


@pytest.mark.parametrize("tag", ["legal-hold", "Legal-Hold-2024"])
def test_a_table_with_a_legal_hold_loses_no_row_whatever_is_overridden(upkeep: Upkeep, tag: str) -> None:
    values = days(2, FIRST_KEPT - timedelta(days=1))
    make_events(upkeep.manager, DateType(), [values], spec=BY_DATE)
    upkeep.manager.create_tag(ORDERS, tag)

    result = execute(upkeep, retention(overrides=[Guardrail.RETENTION_SHARE, Guardrail.GOVERNANCE_RETENTION]))

    assert (result.status, result.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BLOCKED)
    assert f"refused by 'legal_hold': it has tag '{tag}'; remove the tag when the hold is over" in str(
        result.plan.blocked_by
    )
    assert left(upkeep.manager) == values


def test_more_than_a_share_of_the_rows_is_refused_unless_overridden(upkeep: Upkeep) -> None:
    values = days(4, FIRST_KEPT - timedelta(days=1))
    make_events(upkeep.manager, DateType(), [values], spec=BY_DATE)

    refused = execute(upkeep, retention(max_share=0.2))
    left_then = left(upkeep.manager)
    done = execute(upkeep, retention(max_share=0.2, overrides=[Guardrail.RETENTION_SHARE]))

    assert refused.plan.reason is PlanReason.BLOCKED
    assert "1 of 4 rows, 25%, would be deleted, more than 20%; check max_age and column" in str(refused.plan.blocked_by)
    assert left_then == values
    assert (done.rows_deleted, list(done.overrides)) == (1, [Guardrail.RETENTION_SHARE])


@pytest.mark.parametrize(
    ("kind", "spec", "settings", "message"),
    [
        (DateType(), BY_NOTHING, {}, "partitioned by no date or timestamp column"),
        (DateType(), BY_DATE, {"column": "when"}, "no column 'when' to count the age of rows from"),
        (
            StringType(),
            BY_NOTHING,
            {"column": "at"},
            "Column 'at' of table 'bronze.orders' is string, which has no age",
        ),
    ],
    ids=["none", "missing", "text"],
)
def test_a_table_whose_rows_have_no_known_age_fails_with_the_remedy(
    manager: IcebergTableManager, kind: IcebergType, spec: PartitionSpec, settings: dict[str, Any], message: str
) -> None:
    make_events(manager, kind, [[]], spec=spec)

    result = TableMaintenance(manager).execute(RETENTION, ORDERS, retention(**settings))

    assert result.status is MaintenanceStatus.FAILED
    assert message in str(result.error)
    assert "Set retention.column to a date or timestamp column: " in str(result.error)


def test_rows_of_a_concurrent_writer_stay_or_go_by_their_age(tmp_path: Path) -> None:
    other = racing_manager(tmp_path)
    other.create_namespace("bronze")
    values = days(4, FIRST_KEPT - timedelta(days=1))
    make_events(other, DateType(), [values], spec=BY_DATE)
    manager = racing_manager(tmp_path, lambda: append(other, values[0], values[3]))

    result = TableMaintenance(manager, clock=lambda: NOW).execute(RETENTION, ORDERS, retention())

    assert (result.status, result.rows_deleted) == (MaintenanceStatus.DONE, 2)
    assert left(other) == [*values[1:], values[3]]


@pytest.mark.parametrize("surprise", ["legal hold", "share"])
def test_guardrails_hold_for_what_others_commit_after_the_plan(tmp_path: Path, surprise: str) -> None:
    other = racing_manager(tmp_path)
    other.create_namespace("bronze")
    values = days(4, FIRST_KEPT - timedelta(days=1))
    make_events(other, DateType(), [values], spec=BY_DATE)

    def meanwhile() -> None:
        if surprise == "legal hold":
            other.create_tag(ORDERS, "legal-hold")
        append(other, values[0 if surprise == "share" else 3])

    manager = racing_manager(tmp_path, meanwhile)
    result = TableMaintenance(manager, clock=lambda: NOW).execute(RETENTION, ORDERS, retention(max_share=0.3))

    assert result.status is MaintenanceStatus.FAILED
    assert f"refused by '{'legal_hold' if surprise == 'legal hold' else 'retention_share'}'" in str(result.error)
    assert set(left(other)) == set(values)


def test_the_health_check_warns_of_rows_that_are_overdue(manager: IcebergTableManager) -> None:
    make_events(manager, TimestampType(), [[wall(FIRST_KEPT - timedelta(days=10)), wall(FIRST_KEPT)]], spec=BY_DAY)
    maintenance = TableMaintenance(manager, clock=lambda: NOW)
    policy = retention()

    health = maintenance.health(ORDERS, policy)
    maintenance.execute(RETENTION, ORDERS, policy)

    [breach] = find_breaches(health, policy.thresholds)
    assert health.rows_overdue_days == 10
    assert (breach.remedy, breach.grave) == (RETENTION, False)
    assert breach.sentence == "rows are past their retention by 10 days, more than 3: run retention"
    assert maintenance.health(ORDERS, policy).rows_overdue_days == 0
    assert maintenance.health(ORDERS, MaintenancePolicy()).rows_overdue_days is None


def test_the_asset_reports_the_rows_and_a_table_without_a_retention_keeps_its_rows(tmp_path: Path) -> None:
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/w")
    manager = iceberg.table_manager
    manager.create_namespace("bronze")
    today = datetime.now(UTC).date()
    table = make_events(manager, DateType(), [[today - timedelta(days=400), today]], spec=BY_DATE)
    bundle = build_maintenance_definitions(MaintenancePolicy(retention=RetentionPolicy(max_share=0.5)))
    definitions = dg.Definitions.merge(dg.Definitions(resources={"iceberg": iceberg}), bundle)

    kept = metadata_of(run_asset(definitions, "retention"), "retention")
    rows_then = left(manager)
    table.transaction().set_properties({"floe.maintenance.retention.max-age": "365d"}).commit_transaction()
    run = run_asset(definitions, "retention")
    deleted = metadata_of(run, "retention")

    assert "| nothing to do | Rows stay: retention has no max_age. |" in kept["iceberg/results"]
    assert rows_then == [today - timedelta(days=400), today]
    assert left(manager) == [today]
    assert (deleted["iceberg/rows_deleted"], deleted["iceberg/files_removed"]) == (1, 1)
    assert "| done | 1 row deleted: 1 file (" in deleted["iceberg/results"]
    committed = manager.load_table(ORDERS).current_snapshot()
    assert committed is not None
    assert committed.summary is not None
    assert committed.summary["dagster.run-id"] == run.run_id


def test_an_interval_holds_between_two_retentions(manager: IcebergTableManager) -> None:
    today = datetime.now(UTC).date()
    make_events(manager, DateType(), [[today - timedelta(days=40), today]], spec=BY_DATE)
    policy = retention(min_interval=timedelta(days=7))
    maintenance = TableMaintenance(manager)

    maintenance.execute(RETENTION, ORDERS, policy)

    assert maintenance.plan(RETENTION, ORDERS, policy).reason is PlanReason.MIN_INTERVAL


def test_format_version_3_is_left_to_spark(spark_upkeep: Upkeep) -> None:
    spark_upkeep.sql("CREATE TABLE ORDERS (id bigint, at date) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    spark_upkeep.sql("INSERT INTO ORDERS VALUES (1, DATE '2024-11-30'), (2, DATE '2024-12-01'), (3, NULL)")
    policy = retention(column="at")

    alone = TableMaintenance(spark_upkeep.manager, clock=lambda: NOW).plan(RETENTION, ORDERS, policy)
    result = TableMaintenance(spark_upkeep.manager, spark=spark_upkeep.provider, clock=lambda: NOW).execute(
        RETENTION, ORDERS, policy
    )

    assert "there is no Spark session" in str(alone.blocked_by)
    assert (result.engine, result.status, result.rows_deleted) == (MaintenanceEngine.SPARK, MaintenanceStatus.DONE, 1)
    assert left(spark_upkeep.manager) == [FIRST_KEPT, None]

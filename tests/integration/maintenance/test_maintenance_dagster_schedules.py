"""When maintenance runs: never by itself, by schedule, or because a health check failed."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetSelection,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    SensorResult,
    asset,
    build_schedule_context,
    build_sensor_context,
    materialize,
)
from support.maintenance_lake import GROUP, NeglectedLake, metadata_of, run_asset

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.factory import IcebergBundle, create_iceberg_resources
from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
from floe_dagster_iceberg.maintenance.health_checks import build_health_checks
from floe_dagster_iceberg.maintenance.schedules import SENSOR, LatestCheck, choose
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    HealthThresholds,
    MaintenanceBudget,
    MaintenancePolicy,
    Threshold,
)

NAMES = ["table_health", "retention", "compaction", "snapshot_expiry", "manifests", "orphan_files"]
EAGER = MaintenancePolicy(
    compaction=CompactionPolicy(min_input_files=2),
    thresholds=HealthThresholds(small_files=Threshold(warn=3, error=6), min_table_bytes=0),
)


@asset(key=["bronze", "orders"], io_manager_key="iceberg_io_manager")
def orders() -> pa.Table:
    return pa.table({"id": [1]})


@pytest.fixture
def neglected(tmp_path: Path) -> NeglectedLake:
    (tmp_path / "lake").mkdir()
    return NeglectedLake(tmp_path / "lake")


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def instance_on_disk(tmp_path: Path) -> Iterator[DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        yield instance


def schedules_of(bundle: IcebergBundle) -> dict[str, Any]:
    return {name: bundle.definitions().resolve_schedule_def(f"{GROUP}_{name}_schedule") for name in NAMES}


@pytest.mark.requirement("D5", "D6", "S2-FR-032", "S2-C3", "S0-D6")
def test_every_operation_has_a_job_and_a_schedule_that_is_stopped(neglected: NeglectedLake) -> None:
    bundle = create_iceberg_resources(neglected.artifacts())

    assert {job.name for job in bundle.jobs} == {f"{GROUP}_{name}_job" for name in NAMES}
    assert {schedule.default_status for schedule in schedules_of(bundle).values()} == {DefaultScheduleStatus.STOPPED}


@pytest.mark.requirement("D5", "D6", "S2-FR-032")
def test_the_artifacts_start_schedules_and_give_cron_and_time_zone(neglected: NeglectedLake) -> None:
    maintenance = {"timezone": "Europe/Berlin", "compaction": {"enabled": True, "cron": "30 2 * * *"}}
    schedules = schedules_of(create_iceberg_resources(neglected.artifacts(maintenance=maintenance)))

    compaction = schedules.pop("compaction")
    assert compaction.default_status is DefaultScheduleStatus.RUNNING
    assert (compaction.cron_schedule, compaction.execution_timezone) == ("30 2 * * *", "Europe/Berlin")
    assert {schedule.default_status for schedule in schedules.values()} == {DefaultScheduleStatus.STOPPED}
    assert {schedule.execution_timezone for schedule in schedules.values()} == {"Europe/Berlin"}


def test_a_bad_cron_is_refused_with_the_operation() -> None:
    with pytest.raises(ValidationError, match="schedule of compaction has cron 'nightly'"):
        build_maintenance_definitions(crons={"compaction": "nightly"})
    with pytest.raises(ValidationError, match="no maintenance asset 'compact'"):
        build_maintenance_definitions(crons={"compact": "0 1 * * *"})


@pytest.mark.requirement("D6")
def test_a_tick_of_the_schedule_requests_a_run_that_compacts(
    neglected: NeglectedLake, instance_on_disk: DagsterInstance
) -> None:
    neglected.fill("bronze.orders", files=6)
    definitions = create_iceberg_resources(neglected.artifacts(), policy=EAGER).definitions()
    schedule = definitions.resolve_schedule_def(f"{GROUP}_compaction_schedule")
    tick = build_schedule_context(
        instance_on_disk, datetime(2026, 1, 4, 2, tzinfo=UTC), repository_def=definitions.get_repository_def()
    )

    [request] = schedule.evaluate_tick(tick).run_requests

    run = definitions.resolve_job_def(schedule.job_name).execute_in_process(
        run_config=request.run_config, tags=request.tags, instance=instance_on_disk
    )
    assert run.success
    assert neglected.files("bronze.orders") == 1
    assert instance_on_disk.get_run_by_id(run.run_id).tags["floe/maintenance"] == "compaction"


def test_a_tick_is_skipped_while_the_run_before_is_not_finished(instance_on_disk: DagsterInstance) -> None:
    definitions = create_iceberg_resources().definitions()
    running = instance_on_disk.create_run_for_job(
        definitions.resolve_job_def(f"{GROUP}_compaction_job"), status=DagsterRunStatus.STARTED
    )
    tick = build_schedule_context(instance_on_disk, datetime(2026, 1, 4, tzinfo=UTC))

    result = definitions.resolve_schedule_def(f"{GROUP}_compaction_schedule").evaluate_tick(tick)

    assert not result.run_requests
    assert running.run_id in result.skip_message


def checked_definitions(lake: NeglectedLake, policy: MaintenancePolicy = EAGER, **settings: Any) -> Definitions:
    return create_iceberg_resources(lake.artifacts(**settings), assets=[orders], policy=policy).definitions()


def materialize_orders(definitions: Definitions, instance: DagsterInstance) -> AssetCheckEvaluation:
    """Append one file, and return what the health check says then."""
    job = definitions.resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(asset_selection=[orders.key], instance=instance)
    [evaluation] = run.get_asset_check_evaluations()
    return evaluation


def look(definitions: Definitions, instance: DagsterInstance, cursor: str | None = None) -> SensorResult:
    sensor = definitions.resolve_sensor_def(SENSOR)
    context = build_sensor_context(
        instance, cursor=cursor, repository_def=definitions.get_repository_def(), sensor_name=SENSOR
    )
    result = sensor(context)
    assert isinstance(result, SensorResult)
    return result


@pytest.mark.requirement("D5", "S0-I1")
def test_a_health_check_passes_warns_and_fails_as_files_pile_up(
    neglected: NeglectedLake, instance: DagsterInstance
) -> None:
    definitions = checked_definitions(neglected)
    neglected.fill("bronze.orders", files=2)

    assert materialize_orders(definitions, instance).passed
    warned = materialize_orders(definitions, instance)
    assert not warned.passed
    assert warned.severity is AssetCheckSeverity.WARN
    assert warned.description == "4 small files, more than 3: run compaction"
    neglected.append("bronze.orders", files=2)
    failed = materialize_orders(definitions, instance)
    assert failed.severity is AssetCheckSeverity.ERROR
    assert failed.metadata["iceberg/small_files"].value == 7
    assert failed.metadata["iceberg/remedies"].value == ["compaction"]


def test_a_table_of_a_few_kib_is_healthy_whatever_its_files(
    neglected: NeglectedLake, instance: DagsterInstance
) -> None:
    neglected.fill("bronze.orders", files=30)

    assert materialize_orders(checked_definitions(neglected, MaintenancePolicy()), instance).passed


def test_a_check_of_a_table_that_is_not_there_passes(neglected: NeglectedLake) -> None:
    bundle = create_iceberg_resources(neglected.artifacts(), assets=[orders])

    run = materialize(
        [orders, *build_health_checks([orders], EAGER)],
        selection=AssetSelection.checks_for_assets(orders),
        resources={**bundle},
    )

    [evaluation] = run.get_asset_check_evaluations()
    assert evaluation.passed
    assert evaluation.description == "Table 'bronze.orders' does not exist yet."


def test_a_check_that_cannot_look_warns_and_does_not_fail_the_run(
    neglected: NeglectedLake, instance: DagsterInstance
) -> None:
    neglected.fill("bronze.orders", files=2, properties={"floe.maintenance.no-such-setting": "1"})

    evaluation = materialize_orders(checked_definitions(neglected), instance)

    assert not evaluation.passed
    assert evaluation.severity is AssetCheckSeverity.WARN
    assert "is not a maintenance setting" in (evaluation.description or "")


@pytest.mark.requirement("D6")
def test_the_sensor_compacts_what_a_failed_check_names_once_per_episode(
    neglected: NeglectedLake, instance: DagsterInstance
) -> None:
    definitions = checked_definitions(neglected)
    neglected.fill("bronze.other", files=5)
    assert look(definitions, instance).skip_reason is not None

    neglected.fill("bronze.orders", files=3)
    materialize_orders(definitions, instance)
    first = look(definitions, instance)
    [request] = first.run_requests or []
    config = request.run_config["ops"][f"{GROUP}__compaction"]["config"]
    run = run_asset(definitions, "compaction", config, instance=instance)
    assert metadata_of(run, "compaction")["iceberg/tables_done"] == 1
    assert [neglected.files("bronze.orders"), neglected.files("bronze.other")] == [1, 5]

    again = look(definitions, instance, first.cursor)
    assert not again.run_requests, "the same episode must not start a second run"
    assert materialize_orders(definitions, instance).passed
    healthy = look(definitions, instance, again.cursor)
    assert not healthy.run_requests
    neglected.append("bronze.orders", files=2)
    assert not materialize_orders(definitions, instance).passed
    assert look(definitions, instance, healthy.cursor).run_requests, "a new episode is a new reason"


def test_the_sensor_waits_while_a_compaction_is_at_work(neglected: NeglectedLake, instance: DagsterInstance) -> None:
    definitions = checked_definitions(neglected)
    neglected.fill("bronze.orders", files=3)
    materialize_orders(definitions, instance)
    job = definitions.resolve_job_def(f"{GROUP}_compaction_job")
    running = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)

    result = look(definitions, instance)

    assert not result.run_requests
    assert running.run_id in str(result.skip_reason)


def test_without_artifacts_checks_and_sensor_come_with_the_maintenance_definitions() -> None:
    definitions = build_maintenance_definitions(EAGER, health_checks=build_health_checks([orders], EAGER))

    assert definitions.sensors is not None
    assert [sensor.name for sensor in definitions.sensors] == [SENSOR]
    assert len(list(definitions.asset_checks or [])) == 1
    assert not list(build_maintenance_definitions(EAGER).sensors or [])


@pytest.mark.parametrize(
    ("limit", "tables"),
    [(None, ["b", "c", "a"]), (60, ["b", "a"]), (5, ["b"])],
    ids=["no limit", "what fits", "at least one"],
)
def test_the_sensor_ranks_by_gain_under_a_byte_budget(limit: int | None, tables: list[str]) -> None:
    waiting = [
        LatestCheck("a", "1", needs_compaction=True, table="a", gain=1, rewrite_bytes=20),
        LatestCheck("b", "2", needs_compaction=True, table="b", gain=9, rewrite_bytes=40),
        LatestCheck("c", "3", needs_compaction=True, table="c", gain=5, rewrite_bytes=30),
    ]

    chosen = choose(waiting, MaintenanceBudget(max_rewrite_bytes=limit))

    assert [each.table for each in chosen] == tables


def test_the_sensor_is_stopped_unless_the_artifacts_start_it(neglected: NeglectedLake) -> None:
    started = checked_definitions(neglected, maintenance={"compaction_sensor": {"enabled": True}})

    assert checked_definitions(neglected).resolve_sensor_def(SENSOR).default_status is DefaultSensorStatus.STOPPED
    assert started.resolve_sensor_def(SENSOR).default_status is DefaultSensorStatus.RUNNING


@pytest.mark.requirement("D6")
def test_a_limited_pool_lets_only_one_maintenance_step_work_at_a_time(
    neglected: NeglectedLake, instance_on_disk: DagsterInstance
) -> None:
    neglected.fill("bronze.orders", files=3)
    definitions = create_iceberg_resources(neglected.artifacts(), policy=EAGER).definitions()
    storage = instance_on_disk.event_log_storage
    storage.set_concurrency_slots(GROUP, 1)
    other = instance_on_disk.create_run_for_job(definitions.resolve_job_def(f"{GROUP}_manifests_job"))
    assert storage.claim_concurrency_slot(GROUP, other.run_id, "elsewhere").is_claimed

    worker = threading.Thread(target=run_asset, args=(definitions, "compaction"), kwargs={"instance": instance_on_disk})
    worker.start()
    time.sleep(2)
    assert neglected.files("bronze.orders") == 3
    storage.free_concurrency_slots_for_run(other.run_id)
    worker.join(timeout=60)

    assert neglected.files("bronze.orders") == 1

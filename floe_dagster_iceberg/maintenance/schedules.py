"""A job and a schedule for each maintenance asset, and the sensor that compacts unhealthy tables.

Schedules and sensor are stopped unless the artifacts enable them.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.assets import GROUP, job_name, maintenance_key
from floe_dagster_iceberg.maintenance.settings import (
    MAINTENANCE_ASSETS,
    MaintenanceConfig,
    ScheduleSettings,
    SensorSettings,
)
from floe_dagster_iceberg.models import MaintenanceBudget, MaintenanceOperation, MaintenancePolicy

OPERATION_TAG: Final = "floe/maintenance"
SENSOR: Final = f"{GROUP}_compact_unhealthy_tables"
_UNFINISHED: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def build_jobs(
    policy: MaintenancePolicy, tags: Mapping[MaintenanceOperation, Mapping[str, Any]] | None = None
) -> dict[MaintenanceOperation, Any]:
    """Build a job for each maintenance asset, with tags for its runs; the policy's values fill its launchpad."""
    config = MaintenanceConfig.launchpad_values(policy)
    return {
        which: dg.define_asset_job(
            job_name(which),
            selection=[maintenance_key(which)],
            description=f"Materializes {maintenance_key(which).to_user_string()}.",
            config={"ops": {maintenance_key(which).to_python_identifier(): {"config": config}}},
            tags={OPERATION_TAG: which.value, **(tags or {}).get(which, {})},
        )
        for which in MAINTENANCE_ASSETS
    }


def build_schedules(
    jobs: Mapping[MaintenanceOperation, Any], settings: Mapping[MaintenanceOperation, ScheduleSettings]
) -> Sequence[dg.ScheduleDefinition]:
    """Build a schedule for each job.

    Raises:
        ValidationError: A cron schedule is not valid.
    """
    return [_build_schedule(which, job, settings[which]) for which, job in jobs.items()]


def unfinished_run_id(instance: dg.DagsterInstance, which: MaintenanceOperation) -> str | None:
    """A queued or running run of the asset's job, if any."""
    filters = dg.RunsFilter(job_name=job_name(which), statuses=list(_UNFINISHED))
    return next((record.dagster_run.run_id for record in instance.get_run_records(filters, limit=1)), None)


def _build_schedule(which: MaintenanceOperation, job: Any, settings: ScheduleSettings) -> dg.ScheduleDefinition:
    def request_run(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if (run_id := unfinished_run_id(context.instance, which)) is not None:
            return dg.SkipReason(f"Run {run_id} of {job_name(which)} is still in progress.")
        return dg.RunRequest(run_key=context.scheduled_execution_time.isoformat())

    try:
        return dg.ScheduleDefinition(
            name=f"{GROUP}_{which}_schedule",
            job=job,
            cron_schedule=settings.cron,
            execution_timezone=settings.timezone,
            default_status=dg.DefaultScheduleStatus.RUNNING if settings.enabled else dg.DefaultScheduleStatus.STOPPED,
            execution_fn=request_run,
            description=f"Materializes {maintenance_key(which).to_user_string()}, unless a run is in progress.",
        )
    except dg.DagsterInvalidDefinitionError as error:
        raise ValidationError(
            f"The schedule of {which} has cron '{settings.cron}', which is not valid. "
            "Write five fields, as in '0 3 * * *' for every day at three."
        ) from error


@dataclass(frozen=True)
class LatestCheck:
    """The latest result of a health check, with the files that compaction saves per MiB (`gain`)."""

    check: str
    evaluation: str
    needs_compaction: bool
    table: str = ""
    gain: float = 0.0
    rewrite_bytes: int = 0


def build_compaction_sensor(
    checks: Sequence[dg.AssetCheckKey], job: Any, *, budget: MaintenanceBudget, settings: SensorSettings
) -> dg.SensorDefinition:
    """Build a sensor that requests compaction of exactly the tables that failed checks name.

    From a failed check to the next passed one, compaction is requested once, when no other
    compaction is queued or running. Tables are ranked by the files that each rewritten byte
    saves; what exceeds the budget waits for the next evaluation.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        latest = list(_read_latest_checks(context.instance, checks))
        well = {each.check for each in latest if not each.needs_compaction}
        served = set(json.loads(context.cursor or "[]")) & {check.to_user_string() for check in checks} - well
        waiting = [each for each in latest if each.check not in served | well]
        if not waiting:
            return _waits("No failed health check needs a compaction that was not requested already.", served)
        if (run_id := unfinished_run_id(context.instance, MaintenanceOperation.COMPACTION)) is not None:
            return _waits(f"Run {run_id} is already compacting tables.", served)
        chosen = choose(waiting, budget)
        return dg.SensorResult(
            run_requests=[_request(chosen)], cursor=_cursor(served | {each.check for each in chosen})
        )

    return dg.SensorDefinition(
        name=SENSOR,
        evaluation_fn=evaluate,
        job=job,
        minimum_interval_seconds=settings.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.enabled else dg.DefaultSensorStatus.STOPPED,
        description="Requests a compaction of tables whose health check failed, the largest savings first.",
    )


def choose(waiting: Sequence[LatestCheck], budget: MaintenanceBudget) -> list[LatestCheck]:
    """The tables of the next run: those that gain most, within the budget, but at least one."""
    chosen: list[LatestCheck] = []
    left = budget.max_rewrite_bytes
    for each in sorted(waiting, key=lambda each: (-each.gain, each.check)):
        # A table beyond the whole budget would wait forever; its run does as much as fits.
        if left is None or not chosen or each.rewrite_bytes <= left:
            chosen.append(each)
            left = None if left is None else left - each.rewrite_bytes
    return chosen


def _read_latest_checks(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> Iterator[LatestCheck]:
    for check in checks:
        record = instance.get_latest_asset_check_evaluation_record(check)
        evaluation = None if record is None else record.evaluation
        if record is None or not isinstance(evaluation, dg.AssetCheckEvaluation):
            # It never ran, or is running.
            continue
        metadata: dict[str, Any] = {key: value.value for key, value in evaluation.metadata.items()}
        if not evaluation.passed and "iceberg/remedies" not in metadata:
            # The table could not be read.
            continue
        name = check.to_user_string()
        if evaluation.passed or MaintenanceOperation.COMPACTION.value not in metadata["iceberg/remedies"]:
            yield LatestCheck(name, str(record.id), needs_compaction=False)
            continue
        yield LatestCheck(
            name,
            str(record.id),
            needs_compaction=True,
            table=metadata["dagster/table_name"],
            gain=metadata["iceberg/compaction_gain"],
            rewrite_bytes=metadata["iceberg/compaction_bytes"],
        )


def _request(chosen: Sequence[LatestCheck]) -> dg.RunRequest:
    op = maintenance_key(MaintenanceOperation.COMPACTION).to_python_identifier()
    # The same evaluations never start two runs, even when the cursor is lost.
    evaluations = "\n".join(f"{each.check} {each.evaluation}" for each in chosen)
    return dg.RunRequest(
        run_key=hashlib.sha256(evaluations.encode()).hexdigest(),
        run_config={"ops": {op: {"config": {"tables": [each.table for each in chosen]}}}},
        tags={"floe/cause": "iceberg_table_health"},
    )


def _waits(reason: str, served: set[str]) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=_cursor(served))


def _cursor(served: set[str]) -> str:
    return json.dumps(sorted(served))

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
from floe_dagster_iceberg.maintenance.assets import GROUP, maintenance_key
from floe_dagster_iceberg.maintenance.settings import MAINTENANCE_ASSETS, ScheduleSettings, SensorSettings
from floe_dagster_iceberg.models import MaintenanceBudget, MaintenanceOperation

OPERATION_TAG: Final = "floe/maintenance"
_UNFINISHED: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def job_name(which: MaintenanceOperation) -> str:
    """Name of the job that materializes a maintenance asset."""
    return f"{GROUP}_{which}_job"


def build_jobs(tags: Mapping[MaintenanceOperation, Mapping[str, Any]] | None = None) -> dict[MaintenanceOperation, Any]:
    """A job for each maintenance asset.

    Args:
        tags: Tags of each job's runs, such as the size of their pods.
    """
    return {
        which: dg.define_asset_job(
            job_name(which),
            selection=[maintenance_key(which)],
            description=f"Materializes {maintenance_key(which).to_user_string()}.",
            tags={OPERATION_TAG: which.value, **(tags or {}).get(which, {})},
        )
        for which in MAINTENANCE_ASSETS
    }


def build_schedules(
    jobs: Mapping[MaintenanceOperation, Any], settings: Mapping[MaintenanceOperation, ScheduleSettings]
) -> Sequence[dg.ScheduleDefinition]:
    """A schedule for each job.

    Raises:
        ValidationError: A cron schedule is not valid.
    """
    return [_build_schedule(which, job, settings[which]) for which, job in jobs.items()]


def unfinished_run_id(instance: dg.DagsterInstance, which: MaintenanceOperation) -> str | None:
    """A queued or running run of the asset's job, if there is one."""
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


SENSOR: Final = f"{GROUP}_compact_unhealthy_tables"


@dataclass(frozen=True)
class LatestCheck:
    """The latest result of a health check.

    Attributes:
        check: The check.
        evaluation: Id of the evaluation.
        needs_compaction: Whether it failed and recommends compaction.
        table: The table.
        gain: Files that compaction saves for each MiB it rewrites.
        rewrite_bytes: Bytes that compaction rewrites.
    """

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

    An episode begins with a failed check and ends with a passed one. Compaction is requested
    once in it, when no other compaction is queued or running. Tables are ranked by the files
    that each rewritten byte saves; what goes beyond the budget waits for the next evaluation.

    Args:
        checks: Health checks to watch.
        job: The compaction job.
        budget: How much one run may rewrite.
        settings: How often it runs, and whether it runs by default.
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
        # A table beyond the whole budget would wait for ever; its run does as much as fits.
        if left is None or not chosen or each.rewrite_bytes <= left:
            chosen.append(each)
            left = None if left is None else left - each.rewrite_bytes
    return chosen


def _read_latest_checks(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> Iterator[LatestCheck]:
    for check in checks:
        record = instance.get_latest_asset_check_evaluation_record(check)
        evaluation = None if record is None else record.evaluation
        if record is None or not isinstance(evaluation, dg.AssetCheckEvaluation):
            # Never run, or being run right now: nothing new is known.
            continue
        said = {key: value.value for key, value in evaluation.metadata.items()}
        if not evaluation.passed and "iceberg/remedies" not in said:
            # The table could not be looked at.
            continue
        name = check.to_user_string()
        remedies: Any = said.get("iceberg/remedies", [])
        if evaluation.passed or MaintenanceOperation.COMPACTION.value not in remedies:
            yield LatestCheck(name, str(record.id), needs_compaction=False)
            continue
        gain: Any = said["iceberg/compaction_gain"]
        rewrite_bytes: Any = said["iceberg/compaction_bytes"]
        yield LatestCheck(
            name,
            str(record.id),
            needs_compaction=True,
            table=str(said["dagster/table_name"]),
            gain=float(gain),
            rewrite_bytes=int(rewrite_bytes),
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

"""A job and a schedule for each maintenance asset. Schedules are stopped unless the artifacts enable them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dagster import (
    DagsterInstance,
    DagsterInvalidDefinitionError,
    DagsterRunStatus,
    DefaultScheduleStatus,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
)

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.assets import GROUP, maintenance_key
from floe_dagster_iceberg.maintenance.settings import MaintenanceAsset, ScheduleSettings

OPERATION_TAG: Final = "floe/maintenance"
_UNFINISHED: Final = (
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
)


def job_name(which: MaintenanceAsset) -> str:
    """Name of the job that materializes a maintenance asset."""
    return f"{GROUP}_{which}_job"


def build_jobs(tags: Mapping[MaintenanceAsset, Mapping[str, Any]] | None = None) -> dict[MaintenanceAsset, Any]:
    """A job for each maintenance asset.

    Args:
        tags: Tags of each job's runs, such as the size of their pods.
    """
    return {
        which: define_asset_job(
            job_name(which),
            selection=[maintenance_key(which)],
            description=f"Materializes {maintenance_key(which).to_user_string()}.",
            tags={OPERATION_TAG: which.value, **(tags or {}).get(which, {})},
        )
        for which in MaintenanceAsset
    }


def build_schedules(
    jobs: Mapping[MaintenanceAsset, Any], settings: Mapping[MaintenanceAsset, ScheduleSettings]
) -> Sequence[ScheduleDefinition]:
    """A schedule for each job.

    Raises:
        ValidationError: A cron schedule is not valid.
    """
    return [_build_schedule(which, job, settings[which]) for which, job in jobs.items()]


def unfinished_run_id(instance: DagsterInstance, which: MaintenanceAsset) -> str | None:
    """A run of the asset's job that is waiting or at work, if there is one."""
    filters = RunsFilter(job_name=job_name(which), statuses=list(_UNFINISHED))
    return next((record.dagster_run.run_id for record in instance.get_run_records(filters, limit=1)), None)


def _build_schedule(which: MaintenanceAsset, job: Any, settings: ScheduleSettings) -> ScheduleDefinition:
    def request_run(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        if (run_id := unfinished_run_id(context.instance, which)) is not None:
            return SkipReason(f"Run {run_id} of {job_name(which)} is not finished yet.")
        return RunRequest(run_key=context.scheduled_execution_time.isoformat())

    try:
        return ScheduleDefinition(
            name=f"{GROUP}_{which}_schedule",
            job=job,
            cron_schedule=settings.cron,
            execution_timezone=settings.timezone,
            default_status=DefaultScheduleStatus.RUNNING if settings.enabled else DefaultScheduleStatus.STOPPED,
            execution_fn=request_run,
            description=f"Materializes {maintenance_key(which).to_user_string()}, unless its last run is not finished.",
        )
    except DagsterInvalidDefinitionError as error:
        raise ValidationError(
            f"The schedule of {which} has cron '{settings.cron}', which is not valid. "
            "Write five fields, as in '0 3 * * *' for every day at three."
        ) from error

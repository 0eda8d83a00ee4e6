"""The maintenance definitions: assets, jobs, schedules and the sensor."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.assets import MaintenanceWiring, build_maintenance_assets
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.schedules import build_compaction_sensor, build_jobs, build_schedules
from floe_dagster_iceberg.maintenance.settings import MAINTENANCE_ASSETS, MaintenanceSettings
from floe_dagster_iceberg.models import MaintenanceOperation, MaintenancePolicy

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MaintenanceParts:
    """The maintenance definitions, one by one."""

    assets: Sequence[dg.AssetsDefinition] = ()
    jobs: Sequence[Any] = ()
    schedules: Sequence[dg.ScheduleDefinition] = ()
    sensors: Sequence[dg.SensorDefinition] = ()


def build_maintenance_definitions(
    policy: MaintenancePolicy | None = None,
    *,
    iceberg_resource_key: str = "iceberg",
    spark_resource_key: str | None = None,
    crons: Mapping[str, str] | None = None,
    timezone: str = "UTC",
    health_checks: Sequence[dg.AssetChecksDefinition] = (),
) -> dg.Definitions:
    """Build maintenance assets, jobs and schedules for all tables of a catalog.

    Merge them with your own definitions, which have the resources:

        Definitions.merge(my_definitions, build_maintenance_definitions(MaintenancePolicy(tables=["bronze.*"])))

    Loading them connects to nothing. Schedules are stopped until you start them.

    Args:
        policy: How tables are maintained; table properties decide what it leaves open.
        iceberg_resource_key: Key of the `IcebergResource`.
        spark_resource_key: Key of the `IcebergSparkResource`; without one, only PyIceberg is used.
        crons: Cron schedules by the last part of an asset's key, as in `{"compaction": "0 3 * * *"}`.
        timezone: Time zone of the schedules.
        health_checks: Checks of `build_health_checks`, added to the definitions; if one fails, a
            sensor requests a compaction of its table.

    Raises:
        ValidationError: A cron schedule or the time zone is not valid, or an asset is unknown.
    """
    if unknown := (crons or {}).keys() - set(MAINTENANCE_ASSETS):
        raise ValidationError(
            f"There is no maintenance asset '{min(unknown)}' to schedule. Known are {', '.join(MAINTENANCE_ASSETS)}."
        )
    settings = MaintenanceSettings.from_artifacts(
        {"timezone": timezone, **{name: {"cron": cron} for name, cron in (crons or {}).items()}}
    )
    wiring = MaintenanceWiring(PolicySources(code=policy), iceberg_resource_key, spark_resource_key)
    parts = build_parts(wiring, settings, health_checks=[key for check in health_checks for key in check.check_keys])
    return dg.Definitions(
        assets=parts.assets,
        asset_checks=health_checks,
        jobs=parts.jobs,
        schedules=parts.schedules,
        sensors=parts.sensors,
    )


def build_parts(
    wiring: MaintenanceWiring,
    settings: MaintenanceSettings,
    *,
    job_tags: Mapping[MaintenanceOperation, Mapping[str, Any]] | None = None,
    health_checks: Sequence[dg.AssetCheckKey] = (),
) -> MaintenanceParts:
    """Build the definitions one by one; without health checks to watch there is no sensor.

    Raises:
        ValidationError: The policy is not valid, or a cron schedule is not.
    """
    # An error that concerns all tables is raised on loading, not in each run.
    effective = wiring.sources.resolve()
    if effective.warning is not None:
        _logger.warning(effective.warning)
    jobs = build_jobs(effective.policy, job_tags)
    compaction_job, budget = jobs[MaintenanceOperation.COMPACTION], effective.policy.budget
    sensor = build_compaction_sensor(health_checks, compaction_job, budget=budget, settings=settings.sensor)
    return MaintenanceParts(
        assets=build_maintenance_assets(wiring),
        jobs=list(jobs.values()),
        schedules=build_schedules(jobs, settings.schedules),
        sensors=[sensor] if health_checks else [],
    )

"""The component of table maintenance: assets, jobs, schedules, health checks and the compaction sensor."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import dagster as dg
import pydantic
from pydantic import Field

from floe_dagster_iceberg.asset_metadata import tables_of
from floe_dagster_iceberg.components.fields import CheckedField, StrictComponent
from floe_dagster_iceberg.maintenance.assets import MaintenanceWiring
from floe_dagster_iceberg.maintenance.definitions import build_parts
from floe_dagster_iceberg.maintenance.health_checks import build_checks
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.settings import (
    MAINTENANCE_ASSETS,
    MaintenanceSettings,
    ScheduleSettings,
    SensorSettings,
)
from floe_dagster_iceberg.models import MaintenanceBudget, MaintenancePolicy
from floe_dagster_iceberg.models.base import unknown_name
from floe_dagster_iceberg.models.quantities import TimeZone


def _check_policies(policies: Sequence[MaintenancePolicy]) -> Sequence[MaintenancePolicy]:
    for policy in policies:
        for name in ("budget", "dry_run"):
            if name in policy.model_fields_set:
                raise ValueError(f"'{name}' is of a run, not of some of its tables. Move it out of 'policies'.")
    return policies


def _check_schedules(schedules: Mapping[str, ScheduleSettings]) -> Mapping[str, ScheduleSettings]:
    for name, schedule in schedules.items():
        if name not in MAINTENANCE_ASSETS:
            raise ValueError(f"{name}: {unknown_name(name, MAINTENANCE_ASSETS)}")
        if schedule.resources is not None:
            raise ValueError(f"{name}: 'resources' names a preset of compiled artifacts. Leave it out.")
        if schedule.cron is not None:
            _check_cron(name, schedule.cron)
    return schedules


def _check_cron(name: str, cron: str) -> None:
    try:
        dg.ScheduleDefinition(name=name, job_name=name, cron_schedule=cron)
    except (dg.DagsterInvalidDefinitionError, dg.DagsterInvariantViolationError):
        raise ValueError(
            f"{name}: '{cron}' is not a cron schedule. Write five fields, as in '0 3 * * *' for every day at three."
        ) from None


Policies = Annotated[list[MaintenancePolicy], pydantic.AfterValidator(_check_policies)]
Schedules = Annotated[dict[str, ScheduleSettings], pydantic.AfterValidator(_check_schedules)]


# Dagster looks into the models of annotations, and takes only fields without validators: hence Any.
class IcebergMaintenanceComponent(StrictComponent):
    """Maintenance of the tables of a catalog: health, compaction, snapshot expiry, manifests, orphan files.

    It defines an asset, a job and a schedule for each of them, health checks of tables, and the sensor that compacts
    tables whose check failed.
    """

    policies: Annotated[Sequence[Any], CheckedField(Policies)] = Field(
        default=(),
        description="Policies of the tables that their globs select; where several do, the later one takes precedence. "
        "Without any, all tables are maintained by the defaults. Table properties decide what they leave open.",
    )
    budget: Annotated[Any, CheckedField(MaintenanceBudget)] = Field(
        default=MaintenanceBudget(), description="How much one run may do; what does not fit waits for the next."
    )
    dry_run: Annotated[bool, CheckedField(bool)] = Field(
        default=False, description="Whether runs plan only and change nothing."
    )
    schedules: Annotated[Mapping[str, Any], CheckedField(Schedules)] = Field(
        default_factory=dict,
        description="Cron, time zone and 'enabled' by operation: table_health, compaction, snapshot_expiry, "
        "manifests, orphan_files.",
    )
    enabled: Annotated[bool, CheckedField(bool)] = Field(
        default=False, description="Whether schedules run that do not say so themselves; stopped by default."
    )
    timezone: Annotated[str, CheckedField(TimeZone)] = Field(
        default="UTC", description="Time zone of schedules that name none."
    )
    health_checks: Sequence[dg.ResolvedAssetKey] = Field(
        default=(), description="Keys of the assets whose tables get a health check, such as silver/orders."
    )
    sensor: Annotated[Any, CheckedField(SensorSettings)] = Field(
        default=SensorSettings(), description="The sensor that compacts tables whose health check failed."
    )
    default_namespace: Annotated[str, CheckedField(str)] = Field(
        default="public", description="Namespace of assets whose key has one part, as in the lakehouse."
    )
    iceberg_resource_key: Annotated[str, CheckedField(str)] = Field(
        default="iceberg", description="Key of the catalog's resource."
    )
    spark_resource_key: Annotated[str | None, CheckedField(str | None)] = Field(
        default="pyspark", description="Key of the Spark resource; with null, only PyIceberg is used."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        del context
        settings = MaintenanceSettings.from_artifacts(self._schedule_settings())
        sources = PolicySources(code=self._general_policy(), by_table=self.policies)
        wiring = MaintenanceWiring(sources, self.iceberg_resource_key, self.spark_resource_key)
        checks = build_checks(tables_of(self._checked_assets(), default_namespace=self.default_namespace), wiring)
        parts = build_parts(wiring, settings, health_checks=[key for check in checks for key in check.check_keys])
        return dg.Definitions(
            assets=parts.assets,
            asset_checks=checks,
            jobs=parts.jobs,
            schedules=parts.schedules,
            sensors=parts.sensors,
        )

    def _checked_assets(self) -> list[dg.AssetSpec]:
        return [dg.AssetSpec(key) for key in self.health_checks]

    def _general_policy(self) -> MaintenancePolicy:
        given: dict[str, Any] = {
            name: getattr(self, name) for name in ("budget", "dry_run") if name in self.model_fields_set
        }
        if globs := dict.fromkeys(glob for policy in self.policies for glob in policy.tables):
            given["tables"] = tuple(globs)
        return MaintenancePolicy(**given)

    def _schedule_settings(self) -> dict[str, Any]:
        schedules = {name: each.model_dump(exclude_unset=True) for name, each in self.schedules.items()}
        sensor = self.sensor.model_dump()
        return {"enabled": self.enabled, "timezone": self.timezone, "compaction_sensor": sensor, **schedules}

"""What the artifacts say about maintenance: the policy, when it runs by itself, and in pods of what size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from floe_dagster_iceberg.artifacts.shapes import raise_validation_error
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import MaintenancePolicy
from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.models.faults import unknown_name
from floe_dagster_iceberg.models.maintenance import OperationPolicy

_PATH: Final = "plugins.orchestrator.config.maintenance"


class MaintenanceAsset(StrEnum):
    """The maintenance assets by the last part of their key."""

    TABLE_HEALTH = "table_health"
    COMPACTION = "compaction"
    SNAPSHOT_EXPIRY = "snapshot_expiry"
    MANIFESTS = "manifests"
    ORPHAN_FILES = "orphan_files"

    @property
    def policy_section(self) -> str:
        """The section of `MaintenancePolicy` that decides about it."""
        return _SECTIONS.get(self, self.value)


_SECTIONS: Final = {MaintenanceAsset.SNAPSHOT_EXPIRY: "expiry", MaintenanceAsset.ORPHAN_FILES: "orphans"}
# One after the other in the night, the costly and the irreversible ones on Sundays only.
DEFAULT_CRONS: Final = {
    MaintenanceAsset.TABLE_HEALTH: "0 1 * * *",
    MaintenanceAsset.COMPACTION: "0 2 * * *",
    MaintenanceAsset.SNAPSHOT_EXPIRY: "0 3 * * *",
    MaintenanceAsset.MANIFESTS: "0 4 * * 0",
    MaintenanceAsset.ORPHAN_FILES: "0 5 * * 0",
}


def _known_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"time zone '{name}' is unknown: use a name such as 'UTC' or 'Europe/Berlin'") from error
    return name


TimeZone = Annotated[str, AfterValidator(_known_timezone)]


class ScheduleSettings(FrozenModel):
    """When an operation runs by itself, and where."""

    cron: str | None = Field(default=None, min_length=1, description="Cron schedule; the package's if not given.")
    timezone: TimeZone | None = Field(default=None, description="Time zone of the cron schedule.")
    enabled: bool | None = Field(default=None, description="Whether the schedule runs; stopped unless said.")
    resources: str | None = Field(default=None, min_length=1, description="Resource preset of its pods.")


class SensorSettings(FrozenModel):
    """The sensor that compacts tables whose health check failed."""

    enabled: bool = Field(default=False, description="Whether it runs; stopped unless said.")
    interval_seconds: int = Field(default=300, ge=30, description="Shortest time between two looks.")


class _General(FrozenModel):
    enabled: bool = Field(default=False, description="Whether all schedules run that do not say otherwise.")
    timezone: TimeZone = Field(default="UTC", description="Time zone of all schedules that name none.")
    resources: str | None = Field(default=None, min_length=1, description="Resource preset of all pods.")
    compaction_sensor: SensorSettings = Field(default=SensorSettings(), description="The sensor.")


_KNOWN: Final = tuple(dict.fromkeys((*_General.model_fields, *MaintenanceAsset, *MaintenancePolicy.model_fields)))


@dataclass(frozen=True)
class MaintenanceSettings:
    """The `maintenance` settings of the artifacts, taken apart.

    Attributes:
        policy: Values of `MaintenancePolicy`, nested like it, not validated yet.
        schedules: When each asset is materialized by itself.
        sensor: The sensor.
    """

    policy: Mapping[str, Any] = field(default_factory=dict)
    schedules: Mapping[MaintenanceAsset, ScheduleSettings] = field(
        default_factory=lambda: {asset: _complete(asset, ScheduleSettings(), _General()) for asset in MaintenanceAsset}
    )
    sensor: SensorSettings = field(default_factory=SensorSettings)

    @classmethod
    def from_artifacts(cls, settings: Mapping[str, Any]) -> Self:
        """Read the `maintenance` settings of `CompiledArtifacts`.

        An operation's section is named like its asset or like its section of the policy.
        `enabled: true` there, or for all, starts its schedule; `enabled: false` switches it off.

        Raises:
            ValidationError: A setting is not valid; its path is named.
        """
        rest = dict(settings)
        _refuse_unknown(rest, _KNOWN, path=_PATH)
        with raise_validation_error(_General, _PATH):
            general = _General.model_validate({name: rest.pop(name) for name in _General.model_fields if name in rest})
        schedules = {}
        for asset in MaintenanceAsset:
            name, section = _pop_section(rest, asset)
            _refuse_unknown(section, [*ScheduleSettings.model_fields, *_policy_names(asset)], path=f"{_PATH}.{name}")
            own = {"enabled": section.get("enabled")}
            own |= {key: section.pop(key) for key in ("cron", "timezone", "resources") if key in section}
            with raise_validation_error(ScheduleSettings, f"{_PATH}.{name}"):
                schedules[asset] = _complete(asset, ScheduleSettings.model_validate(own), general)
            if asset is not MaintenanceAsset.TABLE_HEALTH and section:
                rest[asset.policy_section] = section
        return cls(policy=rest, schedules=schedules, sensor=general.compaction_sensor)


def _complete(asset: MaintenanceAsset, own: ScheduleSettings, general: _General) -> ScheduleSettings:
    return ScheduleSettings(
        cron=own.cron or DEFAULT_CRONS[asset],
        timezone=own.timezone or general.timezone,
        enabled=general.enabled if own.enabled is None else own.enabled,
        resources=own.resources or general.resources,
    )


def _pop_section(settings: dict[str, Any], asset: MaintenanceAsset) -> tuple[str, dict[str, Any]]:
    """The section of an asset, and the name it goes by."""
    names = [name for name in dict.fromkeys((asset.value, asset.policy_section)) if name in settings]
    if len(names) > 1:
        raise ValidationError(f"{_PATH} has both '{names[0]}' and '{names[1]}', which are the same. Keep one.")
    section = settings.pop(names[0]) if names else {}
    if not isinstance(section, Mapping):
        raise ValidationError(f"{_PATH}.{names[0]} must be a mapping, not {type(section).__name__}.")
    return next(iter(names), asset.value), dict(section)


def _policy_names(asset: MaintenanceAsset) -> list[str]:
    """Names of what the policy says about an asset; it says nothing about looking at tables."""
    section = MaintenancePolicy.model_fields.get(asset.policy_section)
    kind = None if section is None else section.annotation
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, OperationPolicy) else []


def _refuse_unknown(settings: Mapping[str, Any], known: Sequence[str], *, path: str) -> None:
    if refused := [f"{path}.{name}: {unknown_name(str(name), known)}" for name in settings if name not in known]:
        raise ValidationError(f"Compiled artifacts are not valid. {'; '.join(refused)}.")

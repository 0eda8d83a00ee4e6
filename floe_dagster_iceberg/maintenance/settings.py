"""Maintenance settings of the artifacts (policy, schedules, sensor, pod sizes), and the config of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self

from dagster import Config
from pydantic import Field

from floe_dagster_iceberg.artifacts.shapes import raise_validation_error
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.policy import PolicySource, PolicySources
from floe_dagster_iceberg.models import HealthTier, MaintenanceEngine, MaintenanceOperation, MaintenancePolicy
from floe_dagster_iceberg.models.base import FrozenModel, unknown_name
from floe_dagster_iceberg.models.maintenance import OperationPolicy
from floe_dagster_iceberg.models.quantities import TimeZone
from floe_dagster_iceberg.resources import StrictFields

_PATH: Final = "plugins.orchestrator.config.maintenance"
# Position deletes have no asset of their own: compaction rewrites them.
MAINTENANCE_ASSETS: Final[tuple[MaintenanceOperation, ...]] = tuple(
    operation for operation in MaintenanceOperation if operation is not MaintenanceOperation.POSITION_DELETES
)
# One after the other at night, the costly and the irreversible ones only on Sundays.
DEFAULT_CRONS: Final = {
    MaintenanceOperation.TABLE_HEALTH: "0 1 * * *",
    # Before compaction, which need not rewrite what goes.
    MaintenanceOperation.RETENTION: "30 1 * * *",
    MaintenanceOperation.COMPACTION: "0 2 * * *",
    MaintenanceOperation.SNAPSHOT_EXPIRY: "0 3 * * *",
    MaintenanceOperation.MANIFESTS: "0 4 * * 0",
    MaintenanceOperation.ORPHAN_FILES: "0 5 * * 0",
}


class ScheduleSettings(FrozenModel):
    """Schedule and pod size of an operation."""

    cron: str | None = Field(default=None, min_length=1, description="Cron schedule; the package's if not given.")
    timezone: TimeZone | None = Field(default=None, description="Time zone of the cron schedule.")
    enabled: bool | None = Field(default=None, description="Whether the schedule runs; stopped by default.")
    resources: str | None = Field(default=None, min_length=1, description="Resource preset of its pods.")


class SensorSettings(FrozenModel):
    """The sensor that compacts tables whose health check failed."""

    enabled: bool = Field(default=False, description="Whether it runs; stopped by default.")
    interval_seconds: int = Field(default=300, ge=30, description="Shortest time between two evaluations.")


class _General(FrozenModel):
    enabled: bool = Field(default=False, description="Whether schedules run that have no setting of their own.")
    timezone: TimeZone = Field(default="UTC", description="Time zone of schedules that have no setting of their own.")
    resources: str | None = Field(default=None, min_length=1, description="Resource preset of all pods.")
    compaction_sensor: SensorSettings = Field(default=SensorSettings(), description="The sensor.")


_KNOWN: Final = tuple(dict.fromkeys((*_General.model_fields, *MAINTENANCE_ASSETS, *MaintenancePolicy.model_fields)))


@dataclass(frozen=True)
class MaintenanceSettings:
    """The `maintenance` settings of the artifacts; the policy's values are nested and not validated yet."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    schedules: Mapping[MaintenanceOperation, ScheduleSettings] = field(
        default_factory=lambda: {
            asset: _complete(asset, ScheduleSettings(), _General()) for asset in MAINTENANCE_ASSETS
        }
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
        schedules: dict[MaintenanceOperation, ScheduleSettings] = {}
        for asset in MAINTENANCE_ASSETS:
            name, section = _pop_section(rest, asset)
            _refuse_unknown(section, [*ScheduleSettings.model_fields, *_policy_names(asset)], path=f"{_PATH}.{name}")
            own = {"enabled": section.get("enabled")}
            own |= {key: section.pop(key) for key in ("cron", "timezone", "resources") if key in section}
            with raise_validation_error(ScheduleSettings, f"{_PATH}.{name}"):
                schedules[asset] = _complete(asset, ScheduleSettings.model_validate(own), general)
            if asset is not MaintenanceOperation.TABLE_HEALTH and section:
                rest[asset.policy_section] = section
        return cls(policy=rest, schedules=schedules, sensor=general.compaction_sensor)


def _complete(asset: MaintenanceOperation, own: ScheduleSettings, general: _General) -> ScheduleSettings:
    return ScheduleSettings(
        cron=own.cron or DEFAULT_CRONS[asset],
        timezone=own.timezone or general.timezone,
        enabled=general.enabled if own.enabled is None else own.enabled,
        resources=own.resources or general.resources,
    )


def _pop_section(settings: dict[str, Any], asset: MaintenanceOperation) -> tuple[str, dict[str, Any]]:
    """The section of an asset, and its name."""
    names = [name for name in dict.fromkeys((asset.value, asset.policy_section)) if name in settings]
    if len(names) > 1:
        raise ValidationError(f"{_PATH} has both '{names[0]}' and '{names[1]}', which are the same. Keep one.")
    section = settings.pop(names[0]) if names else {}
    if not isinstance(section, Mapping):
        raise ValidationError(f"{_PATH}.{names[0]} must be a mapping, not {type(section).__name__}.")
    return next(iter(names), asset.value), dict(section)


def _policy_names(asset: MaintenanceOperation) -> list[str]:
    """Names of an asset's policy settings; measuring tables has none."""
    section = MaintenancePolicy.model_fields.get(asset.policy_section)
    kind = None if section is None else section.annotation
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, OperationPolicy) else []


def _refuse_unknown(settings: Mapping[str, Any], known: Sequence[str], *, path: str) -> None:
    if refused := [f"{path}.{name}: {unknown_name(str(name), known)}" for name in settings if name not in known]:
        raise ValidationError(f"Compiled artifacts are not valid. {'; '.join(refused)}.")


class EngineChoice(Enum):
    """`MaintenanceEngine` for the launchpad, which takes the names of an enum and not its values."""

    auto = "auto"
    pyiceberg = "pyiceberg"
    spark = "spark"


class TierChoice(Enum):
    """`HealthTier` for the launchpad, which takes the names of an enum and not its values."""

    summary = "summary"
    manifests = "manifests"
    files = "files"


class MaintenanceConfig(StrictFields, Config):
    """Run config of the maintenance assets; what is not set is decided by the policy."""

    tables: list[str] = Field(
        default_factory=list,
        description="Globs over 'namespace.table', as in 'bronze.*' or 'gold.orders'; the policy's if empty.",
    )
    dry_run: bool | None = Field(default=None, description="Plan only and change nothing.")
    engine: EngineChoice | None = Field(
        default=None, description="Engine to use: auto uses PyIceberg where that is safe, and Spark elsewhere."
    )
    fail_on_error: bool = Field(
        default=False,
        description="Whether one failed table fails the run. Otherwise only a run in which every table failed does.",
    )

    def apply_to(self, sources: PolicySources, *, by_click: bool = False) -> PolicySources:
        """The policy's sources with this run's values.

        A run that was started `by_click`, as by "Materialize all", is a dry run unless someone decided otherwise.
        """
        general = sources.resolve()
        is_undecided = self.dry_run is None and general.sources["dry_run"] is PolicySource.DEFAULT
        engine = None if self.engine is None else MaintenanceEngine(self.engine.value)
        # What the launchpad is filled with decides nothing: a table's own engine is to be used all the same.
        return sources.with_run(
            tables=None if tuple(self.tables) in ((), tuple(general.policy.tables)) else tuple(self.tables),
            dry_run=True if by_click and is_undecided else self.dry_run,
            engine=None if engine is general.policy.engine else engine,
        )

    @staticmethod
    def launchpad_values(policy: MaintenancePolicy) -> dict[str, Any]:
        """What the launchpad of a job is filled with."""
        return {"tables": list(policy.tables), "dry_run": policy.dry_run, "engine": policy.engine.value}


class HealthConfig(MaintenanceConfig):
    """Run configuration of the health asset, which never changes a table."""

    tier: TierChoice = Field(
        default=TierChoice.files,
        description="What to read: table metadata only, manifest lists too, or all manifests too.",
    )

    @property
    def health_tier(self) -> HealthTier:
        return HealthTier(self.tier.value)


class OrphanConfig(MaintenanceConfig):
    """Run configuration of the orphan asset, which can also undo what it did."""

    restore: bool = Field(
        default=False, description="Move quarantined files back to where they were, instead of looking for orphans."
    )

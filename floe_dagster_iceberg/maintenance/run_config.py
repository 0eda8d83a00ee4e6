"""What a person can set for one run, in the launchpad or in code."""

from enum import Enum

from dagster import Config
from pydantic import Field

from floe_dagster_iceberg.maintenance.policy_sources import PolicySources
from floe_dagster_iceberg.models import HealthTier, MaintenanceEngine


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


class MaintenanceConfig(Config):
    """Run configuration of the maintenance assets; what is not set is as the policy says."""

    tables: list[str] = Field(
        default_factory=list,
        description="Globs over 'namespace.table', as in 'bronze.*' or 'gold.orders'; those of the policy if empty.",
    )
    dry_run: bool | None = Field(default=None, description="Plan only, and change nothing.")
    engine: EngineChoice | None = Field(
        default=None, description="Who does the work: auto takes PyIceberg where that is safe, Spark where it is not."
    )
    fail_on_error: bool = Field(
        default=False,
        description="Whether one failed table fails the run. Otherwise only a run in which every table failed does.",
    )

    def apply_to(self, sources: PolicySources) -> PolicySources:
        """The sources of the policy with this run's values on top."""
        return sources.with_run(
            tables=tuple(self.tables) or None,
            dry_run=self.dry_run,
            engine=None if self.engine is None else MaintenanceEngine(self.engine.value),
        )


class HealthConfig(MaintenanceConfig):
    """Run configuration of the health asset, which never changes a table."""

    tier: TierChoice = Field(
        default=TierChoice.files,
        description="How deep to look: metadata alone, manifest lists too, or every manifest too.",
    )

    @property
    def health_tier(self) -> HealthTier:
        """The tier to measure."""
        return HealthTier(self.tier.value)


class OrphanConfig(MaintenanceConfig):
    """Run configuration of the orphan asset, which can also undo what it did."""

    restore: bool = Field(
        default=False, description="Move files that are in quarantine back to where they were, instead of new ones in."
    )

"""The parts of compiled artifacts that this package reads."""

import logging
import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from floe_dagster_iceberg.artifacts import shapes, sources
from floe_dagster_iceberg.artifacts.telemetry import PATH, TelemetrySection
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import StaleTableRecoveryMode
from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.models.maintenance import MAX_RETENTION_AGE
from floe_dagster_iceberg.models.quantities import format_duration

_logger = logging.getLogger(__name__)


class EnforcementLevel(StrEnum):
    """What happens when a setting is weaker than governance requires."""

    OFF = "off"
    WARN = "warn"
    STRICT = "strict"


class PluginSelection(FrozenModel):
    """A plugin by name, with its configuration as compiled; references are not resolved."""

    type: str = Field(min_length=1, description="Name of the plugin.")
    version: str | None = Field(default=None, description="Version the compiler resolved.")
    config: dict[str, Any] = Field(default_factory=dict, repr=False, description="Configuration of the plugin.")


class Governance(FrozenModel):
    """Retention policy. Snapshot expiry follows it; it never deletes rows by itself."""

    snapshot_max_age: timedelta | None = Field(default=None, description="Age at which snapshots expire.")
    snapshot_keep_last: int | None = Field(default=None, ge=1, description="Snapshots that are kept regardless of age.")
    data_retention_days: int | None = Field(
        default=None, ge=1, description="Age in days that rows have to reach before they go."
    )
    enforcement: EnforcementLevel = Field(default=EnforcementLevel.OFF, description="How strictly it is enforced.")
    stale_table_recovery_mode: StaleTableRecoveryMode = Field(
        default=StaleTableRecoveryMode.STRICT,
        description="What a write does to a table whose metadata file is missing or truncated.",
    )

    @property
    def data_max_age(self) -> timedelta | None:
        """`data_retention_days` as a duration."""
        days = self.data_retention_days
        return None if days is None else timedelta(days=min(days, MAX_RETENTION_AGE.days))

    def check_expiry(
        self,
        *,
        max_age: timedelta | None = None,
        min_snapshots_to_keep: int | None = None,
        row_max_age: timedelta | None = None,
    ) -> None:
        """Compare maintenance settings with governance: reject, log or ignore weaker ones, by the enforcement level.

        Raises:
            ValidationError: Enforcement is strict, and the settings keep less than governance requires.
        """
        problems = []
        if max_age is not None and self.snapshot_max_age is not None and max_age < self.snapshot_max_age:
            given, required = format_duration(max_age), format_duration(self.snapshot_max_age)
            problems.append(f"snapshots would expire after {given}, governance requires {required}")
        keep, required_keep = min_snapshots_to_keep, self.snapshot_keep_last
        if keep is not None and required_keep is not None and keep < required_keep:
            problems.append(f"{keep} snapshots would be kept, governance requires {required_keep}")
        if row_max_age is not None and self.data_max_age is not None and row_max_age < self.data_max_age:
            given, required = format_duration(row_max_age), format_duration(self.data_max_age)
            problems.append(f"rows would be deleted after {given}, governance requires {required}")
        if not problems or self.enforcement is EnforcementLevel.OFF:
            return
        message = f"Maintenance keeps less than governance allows: {'; '.join(problems)}."
        if self.enforcement is EnforcementLevel.STRICT:
            raise ValidationError(f"{message} Keep more, or change the policy in the platform manifest.")
        _logger.warning(message)


class SparkSettings(FrozenModel):
    """How to reach Spark; empty where the artifacts do not say."""

    master: str | None = Field(default=None, description="Spark master URL.")
    remote: str | None = Field(default=None, description="Spark Connect URL.")
    conf: dict[str, str] = Field(default_factory=dict, repr=False, description="Further Spark configuration.")


class CompiledArtifacts(FrozenModel):
    """The compiler's output, as far as it concerns Iceberg on Dagster."""

    version: str | None = Field(default=None, description="Version of the contract.")
    product_name: str | None = Field(default=None, description="Name of the data product.")
    product_version: str | None = Field(default=None, description="Version of the data product.")
    catalog: PluginSelection | None = Field(default=None, description="The catalog, if any.")
    storage: PluginSelection | None = Field(default=None, description="The storage; None if the catalog knows it.")
    compute: PluginSelection | None = Field(default=None, description="Where transformations run.")
    orchestrator: PluginSelection | None = Field(default=None, description="What runs them.")
    governance: Governance = Field(default_factory=Governance, description="Retention policy.")
    observability: dict[str, Any] = Field(default_factory=dict, repr=False, description="As compiled.")
    transforms: list[dict[str, Any]] = Field(default_factory=list, repr=False, description="As compiled.")
    layer_namespaces: dict[str, str] = Field(default_factory=dict, description="Namespace of each data layer.")
    namespace: str | None = Field(default=None, description="Default namespace, if the artifacts name one.")

    @classmethod
    def from_json_file(cls, path: str | Path) -> Self:
        """Read a JSON or YAML file, which may be a Kubernetes ConfigMap.

        Raises:
            ValidationError: The file does not exist or holds no valid artifacts; the invalid key is named.
        """
        return cls.from_dict(sources.read_file(Path(path)))

    @classmethod
    def from_environment(cls) -> Self | None:
        """Read the file that `$FLOE_ARTIFACTS` names, else `.floe/compiled_artifacts.json`; None if there is neither.

        Raises:
            ValidationError: The variable names no file, or the file holds no valid artifacts.
        """
        path = sources.find_file()
        return None if path is None else cls.from_json_file(path)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read JSON or YAML text, which may be a Kubernetes ConfigMap.

        Raises:
            ValidationError: The text holds no valid artifacts; the invalid key is named.
        """
        return cls.from_dict(sources.read_text(text))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read parsed artifacts of either shape.

        Raises:
            ValidationError: They have neither shape, or a value is invalid.
        """
        with shapes.raise_validation_error(cls):
            return cls.model_validate(shapes.read(sources.unwrap(data)))

    @classmethod
    def load(cls, source: object) -> Self:
        """Read artifacts from a path, text, a dict, or floe's own object.

        Raises:
            ValidationError: It is none of those, or holds no valid artifacts.
        """
        if isinstance(source, cls):
            return source
        return cls.from_dict(sources.read(source))

    @property
    def default_namespace(self) -> str:
        """Namespace of assets whose key has one part: named by the artifacts, else the product's slug."""
        slug = re.sub(r"\W+", "_", (self.product_name or "").lower()).strip("_")
        return self.namespace or slug or "public"

    @property
    def spark(self) -> SparkSettings:
        """Spark settings of `plugins.compute.config`."""
        config = {} if self.compute is None else self.compute.config
        with shapes.raise_validation_error(SparkSettings, "plugins.compute.config"):
            known = {key: config[key] for key in SparkSettings.model_fields if config.get(key) is not None}
            return SparkSettings.model_validate(known)

    @property
    def telemetry(self) -> TelemetrySection | None:
        """Telemetry settings of `observability.telemetry`, if any.

        Raises:
            ValidationError: A value is invalid.
        """
        section = self.observability.get("telemetry")
        if section is None:
            return None
        with shapes.raise_validation_error(TelemetrySection, PATH):
            return TelemetrySection.model_validate(section)

    @property
    def resource_attributes(self) -> dict[str, str]:
        """OpenTelemetry resource attributes of the data product; `observability.telemetry` may override them."""
        known = {
            "service.name": self.product_name or "floe-dagster-iceberg",
            "service.version": self.product_version,
            "floe.namespace": self.default_namespace,
            "floe.product.name": self.product_name,
            "floe.product.version": self.product_version,
        }
        return {name: value for name, value in known.items() if value}

    @property
    def maintenance(self) -> dict[str, Any]:
        """The `maintenance` settings of `plugins.orchestrator.config`."""
        return self._orchestrator_setting("maintenance")

    @property
    def resource_presets(self) -> dict[str, Any]:
        """The `resource_presets` of `plugins.orchestrator.config`."""
        return self._orchestrator_setting("resource_presets")

    @property
    def executor(self) -> dict[str, Any]:
        """The `executor` settings of `plugins.orchestrator.config`."""
        return self._orchestrator_setting("executor")

    def _orchestrator_setting(self, key: str) -> dict[str, Any]:
        value = ({} if self.orchestrator is None else self.orchestrator.config).get(key) or {}
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise ValidationError(f"plugins.orchestrator.config.{key} must be a mapping, not {kind}.")
        return value

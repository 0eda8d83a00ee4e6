"""`create_iceberg_resources()`: everything a code location needs, from one call. Only wiring."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.asset_metadata import describe_iceberg_assets, tables_of
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager, IcebergIOManager, SparkIcebergIOManager
from floe_dagster_iceberg.kubernetes import PodSizes, build_executor
from floe_dagster_iceberg.maintenance.assets import MaintenanceWiring
from floe_dagster_iceberg.maintenance.definitions import MaintenanceParts, build_parts
from floe_dagster_iceberg.maintenance.health_checks import build_checks, check_key
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.settings import MaintenanceSettings
from floe_dagster_iceberg.models import MaintenancePolicy
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.telemetry.setup import prepare

_logger = logging.getLogger(__name__)

_ICEBERG, _SPARK = "iceberg", "pyspark"

ArtifactsSource = CompiledArtifacts | Mapping[str, Any] | str | Path
IcebergAsset = dg.AssetsDefinition | dg.AssetSpec


@dataclass(frozen=True, eq=False)
class IcebergBundle(Mapping[str, Any]):
    """Everything a code location needs for Iceberg. As a mapping, it is its resources.

    Example:
        >>> bundle = create_iceberg_resources()
        >>> sorted(bundle)
        ['iceberg', 'iceberg_arrow_io_manager', 'iceberg_io_manager', 'iceberg_spark_io_manager', 'pyspark']

    Attributes:
        resources: The catalog, Spark and the IO managers, by their keys.
        assets: The given assets with their table names, and the maintenance assets.
        asset_checks: Checks of the tables' health.
        jobs: A job for each maintenance asset.
        schedules: A schedule for each of those jobs.
        sensors: The sensor that compacts tables whose check failed.
        executor: The executor the artifacts name; None leaves it to Dagster.
    """

    resources: Mapping[str, Any] = field(default_factory=dict)
    assets: Sequence[IcebergAsset] = ()
    asset_checks: Sequence[dg.AssetChecksDefinition] = ()
    jobs: Sequence[Any] = ()
    schedules: Sequence[Any] = ()
    sensors: Sequence[Any] = ()
    executor: dg.ExecutorDefinition | None = None

    def definitions(self) -> dg.Definitions:
        """Return all of it as `Definitions`, to be served as they are or merged with others."""
        return dg.Definitions(
            assets=self.assets,
            asset_checks=self.asset_checks,
            jobs=self.jobs,
            schedules=self.schedules,
            sensors=self.sensors,
            resources=dict(self.resources),
            executor=self.executor,
        )

    def __getitem__(self, key: str) -> Any:
        return self.resources[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.resources)

    def __len__(self) -> int:
        return len(self.resources)


def create_iceberg_resources(
    artifacts: ArtifactsSource | None = None,
    *,
    assets: Iterable[IcebergAsset] = (),
    policy: MaintenancePolicy | None = None,
    maintenance: bool = True,
) -> IcebergBundle:
    """Build resources, IO managers and maintenance for the catalog that compiled artifacts name.

    Nothing is connected, written or looked up here, so problems with the catalog show when a run
    starts. Artifacts without a catalog give an empty bundle and a warning.

    Args:
        artifacts: Compiled artifacts, a path to them, or their content. None is the embedded
            default: a SQLite catalog below `$FLOE_HOME`, else below `.floe`.
        assets: Assets that are stored in Iceberg. They get their table's name, a kind, a health
            check and, with `k8s_job_executor`, the size of their pod.
        policy: How tables are maintained; takes precedence over the artifacts and table properties.
        maintenance: Whether to define the maintenance assets; one code location per catalog is enough.

    Raises:
        ValidationError: The artifacts or the policy are not valid, or two assets share a table.
    """
    given = None if artifacts is None else CompiledArtifacts.load(artifacts)
    if given is not None and given.catalog is None:
        _logger.warning(
            "The compiled artifacts name no catalog: no Iceberg resources, assets or schedules are defined. "
            "Add 'plugins.catalog' to the manifest."
        )
        return IcebergBundle()
    if given is not None:
        _prepare_telemetry(given)
    iceberg = IcebergResource() if given is None else IcebergResource.from_artifacts(given)
    return _build_bundle(given or CompiledArtifacts(), iceberg, list(assets), policy, maintenance=maintenance)


def _prepare_telemetry(artifacts: CompiledArtifacts) -> None:
    """Let the first operation start telemetry, if the artifacts ask for it."""
    try:
        telemetry = artifacts.telemetry
        if telemetry is None:
            return
        settings = telemetry.settings(artifacts.resource_attributes)
        telemetry.logging.apply()
    except ValidationError as error:
        # Invalid telemetry settings must not keep the code location from loading.
        _logger.warning("%s No telemetry is sent.", error)
        settings = None
    prepare(settings)


def _build_bundle(
    artifacts: CompiledArtifacts,
    iceberg: IcebergResource,
    assets: list[IcebergAsset],
    policy: MaintenancePolicy | None,
    *,
    maintenance: bool,
) -> IcebergBundle:
    settings, sizes = MaintenanceSettings.from_artifacts(artifacts.maintenance), PodSizes(artifacts.resource_presets)
    tags = sizes.maintenance_tags(settings)
    wiring = MaintenanceWiring(
        PolicySources(code=policy, artifacts=settings.policy, governance=artifacts.governance),
        iceberg_resource_key=_ICEBERG,
        spark_resource_key=_SPARK,
        op_tags=tags,
    )
    tables = tables_of(assets, default_namespace=iceberg.default_namespace, unique=True)
    described, checks = describe_iceberg_assets(assets, tables), build_checks(tables, wiring)
    watched = [check_key(key) for key in tables]
    parts = build_parts(wiring, settings, job_tags=tags, health_checks=watched) if maintenance else MaintenanceParts()
    return IcebergBundle(
        resources=_build_resources(artifacts, iceberg),
        assets=[*described, *parts.assets],
        asset_checks=checks,
        jobs=parts.jobs,
        schedules=parts.schedules,
        sensors=parts.sensors,
        executor=build_executor(artifacts, {**sizes.step_configs(described), **sizes.check_configs(checks, tags)}),
    )


def _build_resources(artifacts: CompiledArtifacts, iceberg: IcebergResource) -> dict[str, Any]:
    pyspark = IcebergSparkResource.from_artifacts(artifacts, iceberg)
    return {
        _ICEBERG: iceberg,
        _SPARK: pyspark,
        "iceberg_io_manager": IcebergIOManager(iceberg=iceberg, pyspark=pyspark),
        "iceberg_arrow_io_manager": ArrowIcebergIOManager(iceberg=iceberg),
        "iceberg_spark_io_manager": SparkIcebergIOManager(iceberg=iceberg, pyspark=pyspark),
    }

"""`create_iceberg_resources()`: everything a code location needs, from one call. Only wiring."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.asset_metadata import (
    DEFAULT_IO_MANAGER_KEY,
    IcebergAsset,
    describe_iceberg_assets,
    io_manager_keys,
    passes_values,
    tables_of,
)
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.io_managers.default import build_default_io_manager
from floe_dagster_iceberg.io_managers.managers import (
    ArrowIcebergIOManager,
    IcebergIOManager,
    IcebergIOManagerBase,
    SparkIcebergIOManager,
)
from floe_dagster_iceberg.kubernetes import PodSizes, build_executor
from floe_dagster_iceberg.maintenance.assets import MaintenanceWiring
from floe_dagster_iceberg.maintenance.definitions import MaintenanceParts, build_parts
from floe_dagster_iceberg.maintenance.health_checks import build_checks, check_key
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.settings import MaintenanceSettings
from floe_dagster_iceberg.models import MaintenancePolicy, WriteMode
from floe_dagster_iceberg.models.writing import FORMAT_VERSIONS, FormatVersion
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.telemetry.setup import prepare

_logger = logging.getLogger(__name__)

_ICEBERG, _SPARK = "iceberg", "pyspark"
_IO_MANAGERS = ("iceberg_io_manager", "iceberg_arrow_io_manager", "iceberg_spark_io_manager")
_IO_MANAGER, _ARROW_IO_MANAGER, _SPARK_IO_MANAGER = _IO_MANAGERS

ArtifactsSource = CompiledArtifacts | Mapping[str, Any] | str | Path
AssetsSource = dg.Definitions | IcebergAsset | Iterable[IcebergAsset | dg.Definitions]


@dataclass(frozen=True, eq=False)
class IcebergBundle(Mapping[str, Any]):
    """Everything a code location needs for Iceberg. As a mapping, it is its resources.

    Examples:
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
        others: What else the given `Definitions` hold.
    """

    resources: Mapping[str, Any] = field(default_factory=dict)
    assets: Sequence[Any] = ()
    asset_checks: Sequence[dg.AssetChecksDefinition] = ()
    jobs: Sequence[Any] = ()
    schedules: Sequence[Any] = ()
    sensors: Sequence[Any] = ()
    executor: dg.ExecutorDefinition | None = None
    others: Sequence[dg.Definitions] = ()

    def definitions(self) -> dg.Definitions:
        """Return all of it as `Definitions`, to be served as they are or merged with others.

        They include the `Definitions` that were given as assets, which are not to be merged again.
        """
        own = dg.Definitions(
            assets=self.assets,
            asset_checks=self.asset_checks,
            jobs=self.jobs,
            schedules=self.schedules,
            sensors=self.sensors,
            resources=dict(self.resources),
            executor=self.executor,
        )
        return dg.Definitions.merge(own, *self.others) if self.others else own

    def __getitem__(self, key: str) -> Any:
        return self.resources[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.resources)

    def __len__(self) -> int:
        return len(self.resources)


def create_iceberg_resources(
    artifacts: ArtifactsSource | None = None,
    *,
    assets: AssetsSource = (),
    policy: MaintenancePolicy | None = None,
    maintenance: bool = True,
    format_version: FormatVersion | None = None,
    write_mode: WriteMode | str | None = None,
    qualified_table_names: bool = False,
    environment: str | dg.EnvVar | None = None,
) -> IcebergBundle:
    """Build resources, IO managers and maintenance for the catalog that compiled artifacts name.

    Nothing is connected, written or looked up here, so problems with the catalog show when a run
    starts. Artifacts without a catalog give an empty bundle and a warning.

    Args:
        artifacts: Compiled artifacts, a path to them, or their content. None is the embedded
            default: a SQLite catalog below `$FLOE_HOME`, else below `.floe`.
        assets: Assets that are stored in Iceberg: assets, multi-assets, graph assets, specs, source assets. They get
            their table's name, a kind, a health check and, with `k8s_job_executor`, the size of their pod. Those that
            name no IO manager are stored with `iceberg_io_manager`: the bundle then has an `io_manager`, Dagster's
            default, that does so for exactly these assets and stores all others in files, as Dagster does without it.
            Of `Definitions`, such as `load_from_defs_folder()` returns, these are the assets with an IO manager of this
            package, and with none if the definitions have no default of their own; `definitions()` includes the rest.
        policy: How tables are maintained; takes precedence over the artifacts and table properties.
        maintenance: Whether to define the maintenance assets; one code location per catalog is enough.
        format_version: Format version of new tables, unless their asset sets one: 1, 2 or 3; 2 if not given. Version 3
            needs Spark. Existing tables keep theirs.
        write_mode: Write mode of assets without partitions that set none; `append` if not given.
        qualified_table_names: Whether metadata `dagster/table_name` begins with the catalog's name.
        environment: Environment of a preview, as `IcebergResource` takes it; none for production.

    Raises:
        ValidationError: The artifacts, the policy, the format version or the write mode are not valid, or two assets
            share a table.
    """
    settings = _io_manager_settings(format_version, write_mode)
    given = None if artifacts is None else CompiledArtifacts.load(artifacts)
    if given is not None and given.catalog is None:
        _logger.warning(
            "The compiled artifacts name no catalog: no Iceberg resources, assets or schedules are defined. "
            "Add 'plugins.catalog' to the manifest."
        )
        return IcebergBundle()
    if given is not None:
        prepare_telemetry(given)
    # Unset stays unset: the launchpad shows what is set.
    chosen: dict[str, Any] = {"qualified_table_names": True} if qualified_table_names else {}
    if environment is not None:
        chosen["environment"] = environment
    iceberg = IcebergResource(**chosen) if given is None else IcebergResource.from_artifacts(given, **chosen)
    found = _GivenAssets.read(assets)
    bundle = _build_bundle(given or CompiledArtifacts(), iceberg, found, policy, maintenance=maintenance)
    resources = build_resources(
        iceberg, IcebergSparkResource.from_artifacts(given or CompiledArtifacts(), iceberg), settings
    )
    if unnamed := found.without_io_manager:
        keys, graphs = {key for each in unnamed for key in _keys(each)}, _graph_names(unnamed)
        resources[DEFAULT_IO_MANAGER_KEY] = build_default_io_manager(keys, graphs, iceberg_key=_IO_MANAGER)
    return replace(bundle, resources=resources, others=found.others)


@dataclass(frozen=True)
class _GivenAssets:
    """The assets that were given.

    Attributes:
        stored: Those that are stored in Iceberg.
        rest: Other assets of the same definitions.
        others: The definitions without their assets.
    """

    stored: Sequence[IcebergAsset]
    rest: Sequence[Any] = ()
    others: Sequence[dg.Definitions] = ()

    @classmethod
    def read(cls, given: AssetsSource) -> "_GivenAssets":
        stored: list[IcebergAsset] = []
        rest: list[Any] = []
        others: list[dg.Definitions] = []
        for each in [given] if isinstance(given, dg.Definitions | IcebergAsset) else _iterate(given):
            if isinstance(each, IcebergAsset):
                stored.append(each)
                continue
            if not isinstance(each, dg.Definitions):
                raise _not_an_asset(each)
            for asset in each.assets or ():
                if isinstance(asset, IcebergAsset) and _is_stored(asset, each.resources or {}):
                    stored.append(asset)
                else:
                    rest.append(asset)
            others.append(_without_assets(each))
        return cls(stored, rest, others)

    @property
    def without_io_manager(self) -> list[dg.AssetsDefinition | dg.SourceAsset]:
        """Assets whose values Dagster would pickle, because they name no IO manager; specs get a key of their own."""
        return [
            asset
            for asset in self.stored
            if not isinstance(asset, dg.AssetSpec)
            and passes_values(asset)
            and DEFAULT_IO_MANAGER_KEY in io_manager_keys(asset).values()
        ]


def _iterate(given: Any) -> Iterable[Any]:
    # Dagster's own values, such as an asset key, can be iterated in name only.
    if isinstance(given, str | dg.AssetKey | dg.AssetSelection) or not isinstance(given, Iterable):
        raise _not_an_asset(given)
    return given


def _not_an_asset(given: object) -> ValidationError:
    return ValidationError(
        f"assets has a value of type {type(given).__name__}. Give a list of assets, specs, source assets or "
        "Definitions. Load the assets of a module with dagster.load_assets_from_modules()."
    )


def _keys(asset: dg.AssetsDefinition | dg.SourceAsset) -> Iterable[dg.AssetKey]:
    return asset.keys if isinstance(asset, dg.AssetsDefinition) else [asset.key]


def _graph_names(assets: Iterable[dg.AssetsDefinition | dg.SourceAsset]) -> set[str]:
    executable = [each for each in assets if isinstance(each, dg.AssetsDefinition) and each.is_executable]
    return {each.node_def.name for each in executable if isinstance(each.node_def, dg.GraphDefinition)}


def _is_stored(asset: IcebergAsset, resources: Mapping[str, Any]) -> bool:
    ours = {*_IO_MANAGERS, *(key for key, each in resources.items() if isinstance(each, IcebergIOManagerBase))}
    if DEFAULT_IO_MANAGER_KEY not in resources and passes_values(asset):
        ours.add(DEFAULT_IO_MANAGER_KEY)
    return not ours.isdisjoint(io_manager_keys(asset).values())


def _without_assets(definitions: dg.Definitions) -> dg.Definitions:
    return dg.Definitions(
        asset_checks=definitions.asset_checks,
        schedules=definitions.schedules,
        sensors=definitions.sensors,
        jobs=definitions.jobs,
        resources=definitions.resources,
        executor=definitions.executor,
        loggers=definitions.loggers,
        metadata=definitions.metadata,
        component_tree=definitions.component_tree,
    )


def prepare_telemetry(artifacts: CompiledArtifacts) -> None:
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
    given: _GivenAssets,
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
    tables = tables_of(given.stored, default_namespace=iceberg.default_namespace, unique=True)
    described = describe_iceberg_assets(
        given.stored, tables, io_manager_key=_IO_MANAGER, catalog=iceberg.catalog_of_table_names
    )
    checks = build_checks(tables, wiring)
    watched = [check_key(key) for key in tables]
    parts = build_parts(wiring, settings, job_tags=tags, health_checks=watched) if maintenance else MaintenanceParts()
    return IcebergBundle(
        assets=[*described, *given.rest, *parts.assets],
        asset_checks=checks,
        jobs=parts.jobs,
        schedules=parts.schedules,
        sensors=parts.sensors,
        executor=build_executor(artifacts, {**sizes.step_configs(described), **sizes.check_configs(checks, tags)}),
    )


def build_resources(
    iceberg: IcebergResource, pyspark: IcebergSparkResource, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the resources of a code location by their keys; the settings are those of all IO managers."""
    return {
        _ICEBERG: iceberg,
        _SPARK: pyspark,
        _IO_MANAGER: IcebergIOManager(iceberg=iceberg, pyspark=pyspark, **settings),
        _ARROW_IO_MANAGER: ArrowIcebergIOManager(iceberg=iceberg, **settings),
        _SPARK_IO_MANAGER: SparkIcebergIOManager(iceberg=iceberg, pyspark=pyspark, **settings),
    }


def _io_manager_settings(format_version: int | None, write_mode: WriteMode | str | None) -> dict[str, Any]:
    # Unset stays unset: the launchpad shows what is set.
    settings: dict[str, Any] = {}
    if format_version is not None:
        if format_version not in FORMAT_VERSIONS:
            raise ValidationError(f"format_version is {format_version}. Use {', '.join(map(str, FORMAT_VERSIONS))}.")
        settings["format_version"] = format_version
    if write_mode is not None:
        if write_mode not in set(WriteMode):
            raise ValidationError(f"write_mode is '{write_mode}'. Use {', '.join(WriteMode)}.")
        settings["write_mode"] = WriteMode(write_mode)
    return settings

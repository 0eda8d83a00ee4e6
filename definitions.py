"""The code location in workspace.yaml. Loading it connects to nothing and writes nothing.

Artifacts are read from $FLOE_ARTIFACTS or .floe/compiled_artifacts.json. Without artifacts,
tables are stored in a SQLite catalog in $FLOE_HOME or .floe.
"""

from dagster import (
    AssetsDefinition,
    AssetSelection,
    Definitions,
    define_asset_job,
    load_asset_checks_from_modules,
    load_assets_from_modules,
)

from examples import bronze, gold, silver
from examples.jobs import JOBS
from floe_dagster_iceberg import CompiledArtifacts, create_iceberg_resources

_layers = [bronze, silver, gold]
_assets = [asset for asset in load_assets_from_modules(_layers) if isinstance(asset, AssetsDefinition)]

iceberg = create_iceberg_resources(CompiledArtifacts.from_environment(), assets=_assets)
_health = define_asset_job("table_health_checks", selection=AssetSelection.checks(*iceberg.asset_checks))

defs = Definitions()
# With artifacts that name no catalog there is nothing to serve.
if iceberg:
    defs = Definitions.merge(
        iceberg.definitions(),
        Definitions(asset_checks=load_asset_checks_from_modules(_layers), jobs=[*JOBS, _health]),
    )

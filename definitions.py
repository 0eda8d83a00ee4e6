"""The code location that workspace.yaml serves. Loading it connects to nothing and writes nothing.

Artifacts come from $FLOE_ARTIFACTS or .floe/compiled_artifacts.json; without them everything
lives in a SQLite catalog below $FLOE_HOME or .floe.
"""

import os
from pathlib import Path

from dagster import AssetsDefinition, Definitions, load_asset_checks_from_modules, load_assets_from_modules

from examples import bronze, gold, silver
from floe_dagster_iceberg import create_iceberg_resources

_layers = [bronze, silver, gold]
_artifacts = Path(os.environ.get("FLOE_ARTIFACTS", ".floe/compiled_artifacts.json"))
_given = _artifacts if "FLOE_ARTIFACTS" in os.environ or _artifacts.exists() else None

_assets = [asset for asset in load_assets_from_modules(_layers) if isinstance(asset, AssetsDefinition)]

iceberg = create_iceberg_resources(_given, assets=_assets)
defs = Definitions.merge(iceberg.definitions(), Definitions(asset_checks=load_asset_checks_from_modules(_layers)))

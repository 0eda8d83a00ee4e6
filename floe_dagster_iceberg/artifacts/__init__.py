"""Compiled artifacts: what floe's compiler decided, read and never written.

The rule of this folder: `sources` turns anything into a dict, `shapes` turns either
producer's dict into `model`, and nobody else knows that there are two shapes.
"""

from floe_dagster_iceberg.artifacts.model import (
    CompiledArtifacts,
    EnforcementLevel,
    Governance,
    PluginSelection,
    SparkSettings,
)

__all__ = ["CompiledArtifacts", "EnforcementLevel", "Governance", "PluginSelection", "SparkSettings"]

"""Compiled artifacts, the output of floe's compiler: read here, never written, and in one shape for everyone else."""

from floe_dagster_iceberg.artifacts.model import CompiledArtifacts, EnforcementLevel, Governance, SparkSettings

__all__ = ["CompiledArtifacts", "EnforcementLevel", "Governance", "SparkSettings"]

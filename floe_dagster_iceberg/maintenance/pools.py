"""Pools, op tags: how many steps may work on something at once, and in what kind of pod."""

from collections.abc import Mapping
from typing import Any, Final

from dagster import AssetsDefinition, AssetSpec, OpDefinition

from floe_dagster_iceberg.models import TableIdentifier

MAINTENANCE_POOL: Final = "iceberg_maintenance"


def table_pool(table: TableIdentifier) -> str:
    """The pool of everything that writes to a table."""
    return f"iceberg_table/{table}"


def with_op_settings(
    asset: AssetsDefinition | AssetSpec, *, pool: str | None = None, op_tags: Mapping[str, Any] | None = None
) -> AssetsDefinition | AssetSpec:
    """Return a copy of an asset whose op has a pool and tags; those it has already stay.

    Specs and graph-backed assets have no op of their own and are returned as they are.
    """
    if not isinstance(asset, AssetsDefinition) or not asset.is_executable:
        return asset
    op = asset.node_def
    if not isinstance(op, OpDefinition) or ((op.pool or not pool) and op.tags.keys() >= (op_tags or {}).keys()):
        return asset
    # Dagster offers specs to be mapped, but not ops; this is how `map_asset_specs` itself makes its copies.
    settled = OpDefinition.dagster_internal_init(
        compute_fn=op.compute_fn,
        name=op.name,
        ins=op.ins,
        outs=op.outs,
        description=op.description,
        config_schema=op.config_schema,
        required_resource_keys=op.required_resource_keys,
        tags={**(op_tags or {}), **op.tags},
        version=None,
        retry_policy=op.retry_policy,
        code_version=None,
        pool=op.pool or pool,
    )
    return type(asset).dagster_internal_init(**{**asset.get_attributes_dict(), "node_def": settled})

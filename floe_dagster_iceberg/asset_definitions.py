"""What can be said of assets before they run: their table, their kind, and that no two share a table."""

from collections.abc import Iterable, Sequence

from dagster import AssetKey, AssetsDefinition, AssetSpec, map_asset_specs

from floe_dagster_iceberg.asset_metadata import STORAGE_KIND, build_table_metadata
from floe_dagster_iceberg.asset_settings import AssetSettings, table_identifier
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableIdentifier

_MOST_KINDS = 3


def describe_iceberg_assets(
    assets: Iterable[AssetsDefinition | AssetSpec],
    *,
    default_namespace: str = "public",
    table_name_pattern: str = "{asset_key}",
) -> Sequence[AssetsDefinition | AssetSpec]:
    """Put table name and kind on assets that are stored in Iceberg, and refuse two on one table.

    An asset that names its table by metadata `table` may share it: that is saying so.

    Args:
        assets: The assets; others than these are not looked at.
        default_namespace: Namespace of assets whose key has one part, as of their IO manager.
        table_name_pattern: Name of tables, as of their IO manager.

    Raises:
        ValidationError: Two assets would be stored in one table, or settings are not valid.
    """
    owners: dict[TableIdentifier, AssetKey] = {}

    def describe(spec: AssetSpec) -> AssetSpec:
        settings = AssetSettings.from_metadata(spec.metadata, owner=f"asset '{spec.key.to_user_string()}'")
        table = table_identifier(
            spec.key.path, settings, default_namespace=default_namespace, table_name_pattern=table_name_pattern
        )
        if settings.table is None:
            owner = owners.setdefault(table, spec.key)
            if owner != spec.key:
                raise ValidationError(
                    f"Assets '{owner.to_user_string()}' and '{spec.key.to_user_string()}' would both be stored in "
                    f"'{table}'. Rename one, or set metadata 'table' on one of them.",
                    table=table,
                )
        # Dagster shows so many kinds and no more; those that the user chose stay.
        kinds = {STORAGE_KIND} if len(spec.kinds) < _MOST_KINDS else set()
        return spec.merge_attributes(metadata=build_table_metadata(table), kinds=kinds)

    return map_asset_specs(describe, assets)

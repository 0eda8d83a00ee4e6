"""Adoption: an asset that takes over a table does not have to write again what the table already holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from floe_dagster_iceberg.asset_metadata import build_observation_metadata
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.observations.assets import ObservedAsset, observed_asset
from floe_dagster_iceberg.observations.events import DATA_VERSION
from floe_dagster_iceberg.resources import IcebergResource

if TYPE_CHECKING:
    from floe_dagster_iceberg.table.observation import ObservedTable


@dataclass(frozen=True)
class AdoptionPlan:
    """The materializations that an adoption reports.

    Attributes:
        asset: The asset and its table.
        rows: Rows by partition; the only key is None for an asset without partitions.
        known: How many partitions with rows have a materialization already; they are left alone.
        data_version: The table's data version.
        metadata: Metadata of the table.
    """

    asset: ObservedAsset
    rows: Mapping[str | None, int]
    known: int
    data_version: str
    metadata: Mapping[str, Any]

    def report(self, instance: dg.DagsterInstance) -> None:
        """Store the materializations, as events without a run."""
        for partition, rows in self.rows.items():
            own = {"dagster/partition_row_count": rows} if partition is not None else {}
            materialization = dg.AssetMaterialization(
                self.asset.key,
                partition=partition,
                description=f"Adopted from table '{self.asset.table}'.",
                metadata={**self.metadata, **own},
                tags={DATA_VERSION: self.data_version},
            )
            instance.report_runless_asset_event(materialization)


def plan_adoption(
    iceberg: IcebergResource, table: TableIdentifier, spec: dg.AssetSpec, instance: dg.DagsterInstance
) -> AdoptionPlan:
    """Find the partitions of an asset that a table has rows of, by reading its partition columns.

    Raises:
        NoSuchTableError: There is no such table.
        ValidationError: The asset is stored in another table, has no partition column, or the table does not have it.
    """
    asset = observed_asset(spec, iceberg.default_namespace)
    if asset.table != table:
        raise ValidationError(
            f"Asset '{spec.key.to_user_string()}' is stored in '{asset.table}', not in '{table}'. Set metadata "
            f"'schema' and 'table' of the asset, or adopt '{asset.table}'.",
            table=table,
        )
    found = iceberg.table_manager.observe(iceberg.table_manager.load_table(table))
    known = (
        {None} if asset.partitions_def is None and instance.fetch_materializations(spec.key, limit=1).records else set()
    )
    if asset.partitions_def is not None:
        known |= instance.get_materialized_partitions(spec.key)  # type: ignore[arg-type]
    rows = _count_rows(iceberg, asset, found, instance)
    return AdoptionPlan(
        asset,
        {key: count for key, count in rows.items() if key not in known},
        known=sum(key in known for key in rows),
        data_version=found.observation.data_version,
        metadata=build_observation_metadata(
            found, catalog=iceberg.catalog_name, qualified=iceberg.qualified_table_names
        ),
    )


def _count_rows(
    iceberg: IcebergResource, asset: ObservedAsset, found: "ObservedTable", instance: dg.DagsterInstance
) -> dict[str | None, int]:
    """Rows by partition, without those that have none; statistics only choose where to count."""
    from floe_dagster_iceberg.observations.changed_keys import keys_of  # noqa: PLC0415 - it loads PyIceberg

    if asset.partitions_def is None:
        return {None: found.observation.row_count or 0} if found.observation.state.snapshot_id is not None else {}
    keys = keys_of(asset, found, instance)
    counted: dict[str | None, int] = {}
    for key in keys.of_files(found.live_files()):
        columns, row_filter = keys.rows_of([key])
        batches = iceberg.table_manager.scan_batches(found.table, columns=columns, row_filter=row_filter)
        if count := sum(batch.num_rows for batch in batches):
            counted[key] = count
    return counted

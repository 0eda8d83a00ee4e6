"""Rows of Dagster partitions deleted from the table of their asset; the counterpart of adoption."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import dagster as dg
from pydantic import Field

from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.failures import to_failure
from floe_dagster_iceberg.models import SnapshotInfo, TableIdentifier, snapshot_properties
from floe_dagster_iceberg.models.base import nearest
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.observations.assets import ObservedAsset, observed_asset
from floe_dagster_iceberg.resources import IcebergResource, StrictFields

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

_MOST_SHOWN: Final = 10


@dataclass(frozen=True)
class PartitionDeletion:
    """The partitions whose rows are to be deleted.

    Attributes:
        asset: The asset and its table.
        rows: Rows by partition.
        where: The filter of exactly these rows.
    """

    asset: ObservedAsset
    rows: Mapping[str, int]
    where: "BooleanExpression"

    def execute(self, iceberg: IcebergResource, report: Callable[[dg.AssetObservation], object]) -> SnapshotInfo | None:
        """Delete the rows in one commit, and report an observation of each partition; None if there are no rows.

        Raises:
            CommitConflictError: Other writers won more often than the retry budget allows; nothing was changed.
        """
        properties = {
            snapshot_properties.ASSET_KEY: self.asset.key.to_user_string(),
            snapshot_properties.PARTITION_KEY: ",".join(self.rows),
        }
        snapshot = iceberg.table_manager.delete(self.asset.table, self.where, snapshot_properties=properties)
        if snapshot is not None:
            for partition, rows in self.rows.items():
                report(self._observation(partition, rows, snapshot))
        return snapshot

    def _observation(self, partition: str, rows: int, snapshot: SnapshotInfo) -> dg.AssetObservation:
        return dg.AssetObservation(
            self.asset.key,
            partition=partition,
            description=f"The rows of the partition were deleted from table '{self.asset.table}'.",
            metadata={
                "dagster/partition_row_count": 0,
                "iceberg/rows_deleted": rows,
                # Ids do not fit into the numbers of a browser.
                "iceberg/snapshot_id": str(snapshot.snapshot_id),
            },
        )


class DeletePartitionsConfig(StrictFields, dg.Config):
    """Run config of the op that deletes partitions."""

    asset: str = Field(description="Key of the asset, as in 'shop/orders'.")
    partitions: list[str] = Field(description="Keys of the partitions whose rows are deleted.")
    dry_run: bool = Field(default=True, description="Count the rows only and change nothing.")


def build_delete_partitions_job(
    assets: Iterable[dg.AssetsDefinition | dg.AssetSpec],
    *,
    iceberg_resource_key: str = "iceberg",
    name: str = "delete_iceberg_partitions",
) -> dg.JobDefinition:
    """Build a job with one op that deletes the rows of partitions of an asset from its table.

    A launch from Dagster's launchpad names the asset and the partitions. It is a dry run, which counts the rows, unless
    its config has `dry_run: false`. Each partition whose rows went gets an observation. Dagster's own "wipe" only
    forgets events, and of an asset as a whole.

    Args:
        assets: The assets whose partitions may be deleted.
        iceberg_resource_key: Key of the `IcebergResource`.
        name: Name of the job and of its op.
    """
    specs = {spec.key: spec for each in assets for spec in ([each] if isinstance(each, dg.AssetSpec) else each.specs)}

    @dg.op(name=name, required_resource_keys={iceberg_resource_key})
    def delete_partitions(context: dg.OpExecutionContext, config: DeletePartitionsConfig) -> None:
        iceberg: IcebergResource = getattr(context.resources, iceberg_resource_key)
        try:
            spec = _find_spec(specs, config.asset)
            table = observed_asset(spec, iceberg.default_namespace).table
            plan = plan_partition_deletion(iceberg, table, spec, config.partitions, context.instance)
            if not config.dry_run:
                plan.execute(iceberg, context.log_event)
        except FloeStorageError as error:
            raise to_failure(error) from error
        what = "would be deleted; set dry_run: false to delete them" if config.dry_run else "deleted"
        for partition, rows in plan.rows.items():
            context.log.info("'%s', partition %s: %s %s.", table, partition, counted(rows, "row"), what)
        context.add_output_metadata({"iceberg/dry_run": config.dry_run, "iceberg/partition_rows": dict(plan.rows)})

    @dg.job(name=f"{name}_job", description="Deletes the rows of partitions; a dry run unless dry_run is false.")
    def job() -> None:
        delete_partitions()

    return job


def _find_spec(specs: Mapping[dg.AssetKey, dg.AssetSpec], key: str) -> dg.AssetSpec:
    spec = specs.get(dg.AssetKey.from_user_string(key))
    if spec is None:
        known = ", ".join(each.to_user_string() for each in specs)
        raise ValidationError(f"The job has no asset '{key}'. It has: {known}. Nothing was changed.")
    return spec


def plan_partition_deletion(
    iceberg: IcebergResource,
    table: TableIdentifier,
    spec: dg.AssetSpec,
    keys: Sequence[str],
    instance: dg.DagsterInstance,
) -> PartitionDeletion:
    """Count the rows of partitions of an asset, by reading its partition columns. Changes nothing.

    Raises:
        NoSuchTableError: There is no such table.
        MaintenanceRefusedError: The table has a legal hold.
        ValidationError: The asset is stored in another table, has no partitions or not these, or the resource has an
            environment.
    """
    from floe_dagster_iceberg.partition_keys import PartitionKeys  # noqa: PLC0415 - it loads PyIceberg
    from floe_dagster_iceberg.table.maintenance.expired_rows import refuse_legal_hold  # noqa: PLC0415 - it loads PyIceberg

    asset, name = observed_asset(spec, iceberg.default_namespace), spec.key.to_user_string()
    if asset.table != table:
        raise ValidationError(f"Asset '{name}' is stored in '{asset.table}', not in '{table}'.", table=table)
    if (environment := iceberg.environment_name) is not None:
        raise ValidationError(
            f"Partitions are deleted from main, and this is environment '{environment}'. Nothing was changed. Run it "
            "where IcebergResource has no environment."
        )
    if asset.partitions_def is None:
        raise ValidationError(f"Asset '{name}' has no partitions. Delete its rows with a filter instead.", table=table)
    known = asset.partitions_def.get_partition_keys(dynamic_partitions_store=instance)
    _check_keys(name, keys, known)
    loaded = iceberg.table_manager.load_table(table)
    refuse_legal_hold(str(table), loaded.metadata)
    partitions = PartitionKeys(
        loaded.metadata,
        asset.partitions_def,
        known,
        partition_expr=asset.partition_expr,
        naive_timezone=asset.naive_timezone,
    )
    rows = {}
    for key in dict.fromkeys(keys):
        columns, row_filter = partitions.rows_of([key])
        batches = iceberg.table_manager.scan_batches(loaded, columns=columns, row_filter=row_filter)
        rows[key] = sum(batch.num_rows for batch in batches)
    _, where = partitions.rows_of(list(rows))
    return PartitionDeletion(asset, rows, where)


def _check_keys(asset: str, keys: Sequence[str], known: Sequence[str]) -> None:
    existing = set(known)
    for key in keys:
        if key not in existing:
            guess = nearest(key, known)
            hint = f"Did you mean '{guess}'?" if guess else f"Its first are {', '.join(known[:_MOST_SHOWN])}."
            raise ValidationError(f"Asset '{asset}' has no partition '{key}'. {hint} Nothing was changed.")

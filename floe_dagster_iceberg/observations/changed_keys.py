"""Which Dagster partitions of an observed table have changed, from manifests alone."""

import dagster as dg

from floe_dagster_iceberg.observations.assets import ObservedAsset
from floe_dagster_iceberg.partition_keys import PartitionKeys
from floe_dagster_iceberg.table.observation import ObservedTable


def keys_of(asset: ObservedAsset, found: ObservedTable, instance: dg.DagsterInstance) -> PartitionKeys:
    """Finds the partitions of an observed table."""
    if asset.partitions_def is None:
        raise ValueError(f"Asset '{asset.key.to_user_string()}' has no partitions.")
    return PartitionKeys(
        found.table.metadata,
        asset.partitions_def,
        asset.partitions_def.get_partition_keys(dynamic_partitions_store=instance),
        partition_expr=asset.partition_expr,
        naive_timezone=asset.naive_timezone,
    )


def changed_keys(asset: ObservedAsset, found: ObservedTable, instance: dg.DagsterInstance) -> dict[str, str]:
    """The partitions whose rows may have changed since the last look, each with its data version.

    The version of a partition is the last snapshot that added or removed a file with rows of it. If it is not known
    what has changed, all partitions with rows have the version of the table.
    """
    keys = keys_of(asset, found, instance)
    changed = found.changed_files()
    if changed is None:
        return dict.fromkeys(keys.of_files(found.live_files()), found.observation.data_version)
    return {key: str(snapshot_id) for snapshot_id, files in changed for key in keys.of_files(files)}

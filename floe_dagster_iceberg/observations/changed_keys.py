"""Which Dagster partitions of an observed table have changed, from manifests alone."""

from datetime import datetime

import dagster as dg

from floe_dagster_iceberg.models import TableState
from floe_dagster_iceberg.observations.assets import ObservedAsset
from floe_dagster_iceberg.partition_keys import PartitionKeys
from floe_dagster_iceberg.table.observation import ObservedTable


def keys_of(asset: ObservedAsset, found: ObservedTable, instance: dg.DagsterInstance) -> PartitionKeys:
    """Finds the partitions of an observed table."""
    return _finder(asset, found, _known(asset, instance, found.observation.state.observed_at))


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


def ended_keys(
    asset: ObservedAsset, found: ObservedTable, instance: dg.DagsterInstance, since: TableState | None
) -> dict[str, str]:
    """The partitions with rows that ended after an earlier look, each with the data version of the table.

    Dagster has no key of a day that is not over, so the snapshots that wrote its rows changed no partition then.
    """
    if since is None or since.observed_at is None or since.table_uuid != found.observation.state.table_uuid:
        return {}
    before = set(_known(asset, instance, since.observed_at))
    ended = [key for key in _known(asset, instance, found.observation.state.observed_at) if key not in before]
    with_rows = _finder(asset, found, ended).of_files(found.live_files()) if ended else ()
    return dict.fromkeys(with_rows, found.observation.data_version)


def _known(asset: ObservedAsset, instance: dg.DagsterInstance, now: datetime | None) -> list[str]:
    return list(_definition_of(asset).get_partition_keys(now, dynamic_partitions_store=instance))


def _finder(asset: ObservedAsset, found: ObservedTable, keys: list[str]) -> PartitionKeys:
    return PartitionKeys(
        found.table.metadata,
        _definition_of(asset),
        keys,
        partition_expr=asset.partition_expr,
        naive_timezone=asset.naive_timezone,
    )


def _definition_of(asset: ObservedAsset) -> dg.PartitionsDefinition:
    if asset.partitions_def is None:
        raise ValueError(f"Asset '{asset.key.to_user_string()}' has no partitions.")
    return asset.partitions_def

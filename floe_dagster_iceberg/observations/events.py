"""What Dagster stores of a look at a table: an observation, and a materialization for each change of rows.

Dagster's automation conditions and freshness policies read the materializations of an external asset, and none of its
observations. So every change of rows is reported as a materialization, once; the observation carries the figures.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from floe_dagster_iceberg.asset_metadata import (
    LAST_UPDATED,
    SEQUENCE_NUMBER,
    SNAPSHOT_ID,
    TABLE_UUID,
    build_observation_metadata,
)
from floe_dagster_iceberg.models import TableState
from floe_dagster_iceberg.observations.assets import ObservedAsset
from floe_dagster_iceberg.resources import IcebergResource

if TYPE_CHECKING:
    # It loads PyIceberg, which takes seconds; loading definitions must not.
    from floe_dagster_iceberg.table.observation import ObservedTable

DATA_VERSION: Final = "dagster/data_version"

Event = dg.AssetObservation | dg.AssetMaterialization


def load_state(instance: dg.DagsterInstance, key: dg.AssetKey) -> TableState | None:
    """The state that the last observation of an asset left; None if there is none."""
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        if observation is None or TABLE_UUID not in observation.metadata:
            return None
        metadata = {name: value.value for name, value in observation.metadata.items()}
        updated, snapshot_id = metadata.get(LAST_UPDATED), metadata.get(SNAPSHOT_ID)
        return TableState(
            table_uuid=str(metadata[TABLE_UUID]),
            snapshot_id=None if snapshot_id is None else int(str(snapshot_id)),
            sequence_number=int(str(metadata.get(SEQUENCE_NUMBER, 0))),
            data_version=observation.tags[DATA_VERSION],
            last_updated=datetime.fromtimestamp(updated, UTC) if isinstance(updated, float) else None,
        )
    return None


def build_events(
    asset: ObservedAsset, found: "ObservedTable", instance: dg.DagsterInstance, iceberg: IcebergResource
) -> Iterator[Event]:
    """The events of a look.

    Args:
        asset: The asset.
        found: The look; it was compared with the state that the last stored observation left.
        instance: Has the keys of dynamic partitions.
        iceberg: The catalog.
    """
    observation = found.observation
    metadata = build_observation_metadata(found, catalog=iceberg.catalog_name, qualified=iceberg.qualified_table_names)
    tags = {DATA_VERSION: observation.data_version}
    if observation.rows_changed:
        yield from _materializations(asset, found, instance, metadata)
    yield dg.AssetObservation(asset.key, metadata=metadata, tags=tags, description=observation.note)


def _materializations(
    asset: ObservedAsset, found: "ObservedTable", instance: dg.DagsterInstance, metadata: Mapping[str, Any]
) -> Iterator[dg.AssetMaterialization]:
    if asset.partitions_def is None:
        yield dg.AssetMaterialization(asset.key, metadata=metadata, tags={DATA_VERSION: found.observation.data_version})
        return
    from floe_dagster_iceberg.observations.changed_keys import changed_keys  # noqa: PLC0415 - it loads PyIceberg

    for partition, version in changed_keys(asset, found, instance).items():
        own = {name: metadata[name] for name in (LAST_UPDATED, SNAPSHOT_ID, "dagster/table_name") if name in metadata}
        yield dg.AssetMaterialization(asset.key, partition=partition, metadata=own, tags={DATA_VERSION: version})

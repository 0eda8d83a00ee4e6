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
    OBSERVED_AT,
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
        snapshot_id = metadata.get(SNAPSHOT_ID)
        return TableState(
            table_uuid=str(metadata[TABLE_UUID]),
            snapshot_id=None if snapshot_id is None else int(str(snapshot_id)),
            sequence_number=int(str(metadata.get(SEQUENCE_NUMBER, 0))),
            data_version=observation.tags[DATA_VERSION],
            last_updated=_to_time(metadata.get(LAST_UPDATED)),
            observed_at=_to_time(metadata.get(OBSERVED_AT)),
        )
    return None


def _to_time(timestamp: object) -> datetime | None:
    return datetime.fromtimestamp(timestamp, UTC) if isinstance(timestamp, float) else None


def build_events(
    asset: ObservedAsset,
    found: "ObservedTable",
    instance: dg.DagsterInstance,
    iceberg: IcebergResource,
    stored: TableState | None,
) -> Iterator[Event]:
    """The events of a look.

    Args:
        asset: The asset.
        found: The look.
        instance: Has the keys of dynamic partitions.
        iceberg: The catalog.
        stored: The state that the last stored observation left. It has the changes up to its data version, and the
            partitions that had ended then.
    """
    observation = found.observation
    metadata = build_observation_metadata(found, catalog=iceberg.catalog_name, qualified=iceberg.qualified_table_names)
    tags = {DATA_VERSION: observation.data_version}
    if asset.partitions_def is not None:
        yield from _of_partitions(asset, found, instance, metadata, stored)
    elif is_unreported(found, stored):
        yield dg.AssetMaterialization(asset.key, metadata=metadata, tags=tags)
    yield dg.AssetObservation(asset.key, metadata=metadata, tags=tags, description=observation.note)


def is_unreported(found: "ObservedTable", stored: TableState | None) -> bool:
    """Whether the data version is not the one of the last stored observation."""
    return stored is None or stored.data_version != found.observation.data_version


def _of_partitions(
    asset: ObservedAsset,
    found: "ObservedTable",
    instance: dg.DagsterInstance,
    metadata: Mapping[str, Any],
    stored: TableState | None,
) -> Iterator[dg.AssetMaterialization]:
    from floe_dagster_iceberg.observations.changed_keys import (  # noqa: PLC0415 - it loads PyIceberg
        changed_keys,
        ended_keys,
    )

    versions = ended_keys(asset, found, instance, stored)
    if is_unreported(found, stored):
        versions |= changed_keys(asset, found, instance)
    own = {name: metadata[name] for name in (LAST_UPDATED, SNAPSHOT_ID, "dagster/table_name") if name in metadata}
    for partition, version in versions.items():
        yield dg.AssetMaterialization(asset.key, partition=partition, metadata=own, tags={DATA_VERSION: version})

"""A sensor that runs assets again whose last run has left changes of their inputs unread."""

from collections.abc import Sequence
from typing import Final

import dagster as dg

from floe_dagster_iceberg.errors import ValidationError

CHANGES_BEHIND: Final = "iceberg/changes_behind"
"""Metadata of a materialization: how many snapshots with changes its incremental inputs have left."""


def build_catch_up_sensor(
    assets: Sequence[dg.AssetsDefinition],
    *,
    name: str = "iceberg_catch_up",
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Build a sensor that runs assets with incremental inputs until they have read all changes.

    A run with `iceberg/changes_limit` reads a part of the changes and stores how many snapshots are left. For each
    materialization with some left, the sensor requests one run of its assets. A run that fails is not requested again:
    it stores no materialization. The sensor reads Dagster's events only, no table.

    Args:
        assets: Assets with incremental inputs.
        name: Name of the sensor.
        minimum_interval_seconds: Seconds between two evaluations.
        default_status: Whether it runs without being started.

    Raises:
        ValidationError: There is no asset.
    """
    groups = [sorted(each.keys) for each in assets]
    if not any(groups):
        raise ValidationError("build_catch_up_sensor() has no assets to run. Pass assets with incremental inputs.")

    @dg.sensor(
        name=name,
        target=[*assets],
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Runs assets whose last run has left changes of their inputs unread.",
    )
    def catch_up(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        found = [_request(context.instance, keys) for keys in groups]
        requests = [request for request in found if request is not None]
        return dg.SensorResult(run_requests=requests) if requests else dg.SkipReason("No asset is behind.")

    return catch_up


def _request(instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]) -> dg.RunRequest | None:
    """A run of the assets of one step, if the newest materialization of one of them is behind."""
    newest = 0
    for key in keys:
        for record in instance.fetch_materializations(key, limit=1).records:
            materialization = record.asset_materialization
            behind = None if materialization is None else materialization.metadata.get(CHANGES_BEHIND)
            if behind is not None and behind.value:
                newest = max(newest, record.storage_id)
    if not newest:
        return None
    return dg.RunRequest(run_key=f"{keys[0].to_user_string()}:{newest}", asset_selection=[*keys])

"""A sensor that looks at tables at short intervals, reports what has changed, and requests runs for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
import pydantic

from floe_dagster_iceberg.models import TableIdentifier, TableState
from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.observations.assets import (
    GROUP,
    ObservationTargets,
    ObservedAsset,
    ObservedTables,
    TableListing,
)
from floe_dagster_iceberg.observations.events import Event, build_events, is_unreported, load_state
from floe_dagster_iceberg.observations.run import FailedLook, attempt, find_tables, look_at
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.secrets import redact

if TYPE_CHECKING:
    from floe_dagster_iceberg.table.observation import ObservedTable

SENSOR: Final = f"{GROUP}_sensor"
TABLE_TAG: Final = "iceberg/table"
SNAPSHOT_TAG: Final = "iceberg/snapshot_id"
PREVIOUS_SNAPSHOT_TAG: Final = "iceberg/previous_snapshot_id"


class _Seen(FrozenModel):
    """What the last evaluation saw of a table, and how many changes all of them saw."""

    state: TableState
    changes: int = 0


class _Cursor(FrozenModel):
    """What the last evaluation saw, by table."""

    tables: dict[str, _Seen] = pydantic.Field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> "_Cursor":
        if not text:
            return cls()
        try:
            return cls.model_validate_json(text)
        except pydantic.ValidationError:
            # Set by hand, or by another sensor of the same name: every table is looked at as if for the first time.
            return cls()


@dataclass
class _Reaction:
    """What a look at a table leads to."""

    events: list[Event] = field(default_factory=list)
    run_requests: list[dg.RunRequest] = field(default_factory=list)
    partition_requests: list[dg.AddDynamicPartitionsRequest] = field(default_factory=list)


@dataclass
class _Tick(_Reaction):
    """What one evaluation found."""

    seen: dict[str, _Seen] = field(default_factory=dict)

    def add(self, reaction: _Reaction) -> None:
        self.events += reaction.events
        self.run_requests += reaction.run_requests
        self.partition_requests += reaction.partition_requests


@dataclass(frozen=True)
class _Change:
    """A look at a table, compared with the one before.

    Attributes:
        asset: The table's asset.
        looked: The look.
        number: How many changes all evaluations saw. A rollback brings back a data version that had its run; an
            evaluation that is repeated counts the same.
        instance: Has the keys of dynamic partitions.
    """

    asset: ObservedAsset
    looked: "ObservedTable"
    number: int
    instance: dg.DagsterInstance

    def changed_keys(self) -> dict[str, str]:
        """The partitions that have changed, or have ended, since the last evaluation."""
        from floe_dagster_iceberg.observations.changed_keys import (  # noqa: PLC0415 - it loads PyIceberg
            changed_keys,
            ended_keys,
        )

        keys = ended_keys(self.asset, self.looked, self.instance, self.looked.since)
        if self.looked.observation.rows_changed:
            keys |= changed_keys(self.asset, self.looked, self.instance)
        return keys

    def request(
        self,
        reaction: _Reaction,
        keys: Mapping[str, str] | None,
        partitions: dg.DynamicPartitionsDefinition | None,
    ) -> None:
        """Request runs: of a new dynamic partition, of partitions that have changed, or one of the whole table."""
        observation = self.looked.observation
        name, tags = f"{observation.table}:{observation.data_version}", _tags(observation.table, self.looked)
        if partitions is not None and partitions.name is not None:
            if observation.rows_changed:
                reaction.partition_requests.append(partitions.build_add_request([name]))
                request = dg.RunRequest(run_key=f"{name}:{self.number}", partition_key=name, tags=tags)
                reaction.run_requests.append(request)
        elif keys is not None:
            reaction.run_requests += [
                dg.RunRequest(
                    run_key=f"{observation.table}:{version}:{self.number}:{key}", partition_key=key, tags=tags
                )
                for key, version in keys.items()
            ]
        else:
            reaction.run_requests.append(dg.RunRequest(run_key=f"{name}:{self.number}", tags=tags))


def build_table_change_sensor(
    tables: ObservedTables,
    *,
    target: Any = None,
    partitions: dg.DynamicPartitionsDefinition | None = None,
    listing: Path | str | None = None,
    name: str = SENSOR,
    iceberg_resource_key: str = "iceberg",
    default_namespace: str = "public",
    minimum_interval_seconds: int = 60,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Build a sensor that reports changes of tables and requests runs for them.

    Each evaluation looks at the metadata of the tables and compares it with the snapshots in its cursor. Tables without
    a change of rows cost a look and nothing else. For a change it reports an observation and a materialization of the
    table's asset, as `build_iceberg_observations` does, and requests runs of the target:

    - of an asset with partitions, one per partition that has changed;
    - with dynamic `partitions`, one for a new partition, named `<table>:<snapshot>`;
    - otherwise one per table.

    The first look at a table reports it and requests nothing, because it is not known what is new. Every request has a
    run key of table and snapshot, so an evaluation that is repeated requests no second run. If the snapshot in the
    cursor has expired, the log says so, and the change counts as one of the whole table.

    Args:
        tables: Names, globs or specs, as for `build_iceberg_observations`.
        target: Job or assets to run; without one, changes are reported only.
        partitions: Gets a partition for each change; the target's own partitions.
        listing: File that `floe-iceberg discover` wrote.
        name: Name of the sensor.
        iceberg_resource_key: Key of the `IcebergResource`.
        default_namespace: Namespace of specs whose key has one part.
        minimum_interval_seconds: Seconds between two evaluations.
        default_status: Whether it runs without being started.

    Raises:
        ValidationError: A name, a spec or the listing is not valid.
    """
    stored = None if listing is None else TableListing.load(Path(listing))
    targets = ObservationTargets.build(tables, listing=stored, default_namespace=default_namespace, group_name=None)

    @dg.sensor(
        name=name,
        target=target,
        required_resource_keys={iceberg_resource_key},
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Looks at the metadata of tables that others write, and reports changes of their rows.",
    )
    def watch_tables(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        iceberg: IcebergResource = getattr(context.resources, iceberg_resource_key)
        return _evaluate(context, iceberg, targets, requests=target is not None, partitions=partitions)

    return watch_tables


def _evaluate(
    context: dg.SensorEvaluationContext,
    iceberg: IcebergResource,
    targets: ObservationTargets,
    *,
    requests: bool,
    partitions: dg.DynamicPartitionsDefinition | None,
) -> dg.SensorResult:
    manager, before = iceberg.table_manager, _Cursor.parse(context.cursor).tables
    tables, failed = find_tables(manager, targets)
    # A table that cannot be looked at keeps its place, so that nothing is missed once it can be.
    tick = _Tick(seen=dict(before))

    def state_of(table: TableIdentifier) -> TableState | None:
        known = before.get(str(table))
        return load_state(context.instance, targets.asset_of(table).key) if known is None else known.state

    for table, looked in look_at(manager, tables, state_of):
        if isinstance(looked, FailedLook):
            failed.append(looked)
            continue
        known, observation = before.get(str(table)), looked.observation
        number = (0 if known is None else known.changes) + observation.rows_changed
        change = _Change(targets.asset_of(table), looked, number, context.instance)
        asks = requests and known is not None
        done = attempt(table, partial(_react, change, iceberg, partitions, requests=asks))
        if isinstance(done, FailedLook):
            failed.append(done)
            continue
        if observation.note is not None:
            context.log.warning("Table '%s': %s", table, observation.note)
        tick.seen[str(table)] = _Seen(state=observation.state, changes=number)
        tick.add(done)
    for failure in failed:
        context.log.error(str(failure))
    return _to_result(tick, len(tables), failed)


def _react(
    change: _Change, iceberg: IcebergResource, partitions: dg.DynamicPartitionsDefinition | None, *, requests: bool
) -> _Reaction:
    """What follows from a look at one table."""
    partitioned = change.asset.partitions_def is not None
    keys = change.changed_keys() if partitioned else {}
    if not keys and not change.looked.observation.rows_changed:
        return _Reaction()
    stored = load_state(change.instance, change.asset.key)
    events = list(build_events(change.asset, change.looked, change.instance, iceberg, stored))
    # The last event is the observation, which alone says nothing new if the job has made one of this data version.
    reaction = _Reaction(events=events if len(events) > 1 or is_unreported(change.looked, stored) else [])
    if requests:
        change.request(reaction, keys if partitioned else None, partitions)
    return reaction


def _tags(table: TableIdentifier, looked: "ObservedTable") -> dict[str, str]:
    """Tags of a requested run: the snapshots before and after, to read exactly what has arrived."""
    after, before = looked.observation.state.snapshot_id, looked.since and looked.since.snapshot_id
    tags = {TABLE_TAG: str(table), SNAPSHOT_TAG: after, PREVIOUS_SNAPSHOT_TAG: before}
    return {key: str(value) for key, value in tags.items() if value is not None}


def _to_result(tick: _Tick, looked_at: int, failed: Sequence[FailedLook]) -> dg.SensorResult:
    cursor = _Cursor(tables=tick.seen).model_dump_json()
    if tick.run_requests or tick.events:
        return dg.SensorResult(
            run_requests=tick.run_requests,
            dynamic_partitions_requests=tick.partition_requests,
            asset_events=tick.events,
            cursor=cursor,
        )
    reason = f"No rows have changed in {looked_at - len(failed)} tables."
    return dg.SensorResult(skip_reason=redact(" ".join([reason, *map(str, failed)])), cursor=cursor)

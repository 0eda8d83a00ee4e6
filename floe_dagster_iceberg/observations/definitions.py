"""External assets of tables that others write, with the job and the schedule that observe them."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.failures import to_failure
from floe_dagster_iceberg.models import TableObservation
from floe_dagster_iceberg.observations.assets import (
    GROUP,
    ObservationTargets,
    ObservedAsset,
    ObservedTables,
    TableListing,
)
from floe_dagster_iceberg.observations.events import Event, build_events, load_state
from floe_dagster_iceberg.observations.run import FailedLook, attempt, find_tables, look_at
from floe_dagster_iceberg.resources import IcebergResource

if TYPE_CHECKING:
    # It loads PyIceberg, which takes seconds; loading definitions must not.
    from floe_dagster_iceberg.table.observation import ObservedTable

JOB: Final = f"{GROUP}_job"
_MOST_NAMED: Final = 10
_EVERY_HOUR: Final = "0 * * * *"


class ObservationConfig(dg.Config):
    """Run config of an observation."""

    tables: list[str] = Field(default=[], description="Names or globs of the tables to observe; all if empty.")


def build_iceberg_observations(
    tables: ObservedTables,
    *,
    iceberg: IcebergResource | None = None,
    listing: Path | str | None = None,
    iceberg_resource_key: str = "iceberg",
    default_namespace: str | None = None,
    group_name: str | None = GROUP,
    name: str = GROUP,
    cron: str = _EVERY_HOUR,
    timezone: str = "UTC",
) -> dg.Definitions:
    """Build external assets of tables that others write, and a job with a schedule that observes them.

    A run looks at the metadata of all tables, several at a time. It stores an observation per table and, if rows have
    changed since the last one, a materialization: for a partitioned asset, one per partition that has changed. The
    data version is the last snapshot that changed rows; compaction and manifest rewrites do not count.

    Loading the definitions connects to nothing. The schedule is stopped until you start it.

    Args:
        tables: Names of tables, globs, and specs of assets whose key, partitions or metadata are your own. A spec names
            its table like an asset of the IO managers does. What a glob matches is found out in each run; to have
            definitions of these assets, give a `listing`.
        iceberg: The resource, if the definitions are to hold it; otherwise other definitions do.
        listing: File that `floe-iceberg discover` wrote: tables with columns, description and owner.
        iceberg_resource_key: Key of the `IcebergResource`.
        default_namespace: Namespace of specs whose key has one part; that of `iceberg` if not given.
        group_name: Group of the assets; specs keep their own.
        name: Name of the op and, with a suffix, of job and schedule; for several observations in one code location.
        cron: When the schedule observes.
        timezone: Time zone of the schedule.

    Raises:
        ValidationError: A name, a spec, the listing or the cron schedule is not valid.
    """
    namespace = default_namespace or ("public" if iceberg is None else iceberg.default_namespace)
    stored = None if listing is None else TableListing.load(Path(listing))
    targets = ObservationTargets.build(tables, listing=stored, default_namespace=namespace, group_name=group_name)
    job = _build_job(name, _build_op(name, targets, iceberg_resource_key))
    return dg.Definitions(
        assets=[asset.spec for asset in targets.assets.values()],
        jobs=[job],
        schedules=[_build_schedule(name, job, cron, timezone)],
        resources=None if iceberg is None else {iceberg_resource_key: iceberg},
    )


def _build_op(name: str, targets: ObservationTargets, resource_key: str) -> dg.OpDefinition:
    @dg.op(
        name=name,
        required_resource_keys={resource_key},
        description="Looks at the metadata of tables and stores what has changed. Changes no table.",
    )
    def observe_tables(context: dg.OpExecutionContext, config: ObservationConfig) -> None:
        iceberg: IcebergResource = getattr(context.resources, resource_key)
        try:
            failed = _observe(context, iceberg, targets, config.tables)
        except FloeStorageError as error:
            raise to_failure(error) from error
        if failed:
            raise dg.Failure(
                f"{len(failed)} of the tables were not observed: " + "; ".join(map(str, failed)), allow_retries=False
            )

    return observe_tables


def _observe(
    context: dg.OpExecutionContext, iceberg: IcebergResource, targets: ObservationTargets, only: Sequence[str]
) -> list[FailedLook]:
    manager, instance = iceberg.table_manager, context.instance
    tables, failed = find_tables(manager, targets, only)
    assets = {table: targets.asset_of(table) for table in tables}
    changed = 0

    def report(asset: ObservedAsset, found: "ObservedTable") -> tuple[TableObservation, list[Event]]:
        return found.observation, list(build_events(asset, found, instance, iceberg, found.since))

    for table, found in look_at(manager, tables, lambda table: load_state(instance, assets[table].key)):
        reported = found if isinstance(found, FailedLook) else attempt(table, partial(report, assets[table], found))
        if isinstance(reported, FailedLook):
            context.log.error(str(reported))
            failed.append(reported)
            continue
        observation, events = reported
        if observation.note is not None:
            context.log.warning("Table '%s': %s", table, observation.note)
        changed += observation.rows_changed
        for event in events:
            context.log_event(event)
    context.log.info("Observed %d tables; the rows of %d have changed.", len(tables) - len(failed), changed)
    if without := [str(table) for table in tables if table not in targets.assets]:
        context.log.warning(
            "%d tables match a glob and have no asset definition: %s. Renew the listing with 'floe-iceberg discover'.",
            len(without),
            ", ".join(without[:_MOST_NAMED]),
        )
    return failed


def _build_job(name: str, op: dg.OpDefinition) -> dg.JobDefinition:
    @dg.job(name=f"{name}_job", description="Observes tables that others write.")
    def observe() -> None:
        op()

    return observe


def _build_schedule(name: str, job: dg.JobDefinition, cron: str, timezone: str) -> dg.ScheduleDefinition:
    settings: dict[str, Any] = {"job": job, "cron_schedule": cron, "execution_timezone": timezone}
    try:
        return dg.ScheduleDefinition(
            name=f"{name}_schedule", default_status=dg.DefaultScheduleStatus.STOPPED, **settings
        )
    except (dg.DagsterInvalidDefinitionError, dg.DagsterInvariantViolationError) as error:
        raise ValidationError(
            f"The schedule of '{name}' has cron '{cron}' in time zone '{timezone}', which is not valid. "
            "Write five fields, as in '0 3 * * *' for every day at three, and a zone such as 'Europe/Zurich'."
        ) from error

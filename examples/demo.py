"""What `make demo` runs: a year of flights through the lakehouse, its maintenance, and a report."""

import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import dagster as dg

FOLDER = Path(".floe").absolute()
# The UI of `make ui` shows the same runs.
DAGSTER_HOME = Path(".dagster_home").absolute()
os.environ.setdefault("FLOE_HOME", str(FOLDER))

from definitions import iceberg  # noqa: E402 - reads FLOE_HOME
from examples import bronze, gold, silver  # noqa: E402
from floe_dagster_iceberg import (  # noqa: E402
    ExpiryPolicy,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceRail,
    MaintenanceResult,
)
from floe_dagster_iceberg.maintenance.operations import TableMaintenance  # noqa: E402

DAYS = bronze.NEW_YORK_DAYS.get_partition_keys()
DECEMBER = [day for day in DAYS if day >= "2013-12-01"]
CHRISTMAS_WEEK = [day for day in DAYS if "2013-12-23" <= day <= "2013-12-27"]
TABLES = ["bronze.flights", "bronze.weather", "silver.departures", "gold.carrier_punctuality", "gold.aircraft"]


def main() -> None:
    """Build what is not there yet, look after it, and say what came out."""
    # Dagster warns of beta features and of assets with different backfill policies; both are on purpose here.
    warnings.simplefilter("ignore")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    started = time.perf_counter()
    DAGSTER_HOME.mkdir(exist_ok=True)
    (DAGSTER_HOME / "dagster.yaml").touch()
    with dg.DagsterInstance.from_config(str(DAGSTER_HOME)) as instance:
        build(instance)
        look_after(instance)
    report()
    print(f"\nDone in {time.perf_counter() - started:.0f} s. Next: make ui shows all of it; run it again, it is quick.")


def build(instance: dg.DagsterInstance) -> None:
    """A backfill of the year in single runs, then some days one by one."""
    print("Building a lakehouse of every flight that left New York in 2013.")
    if instance.get_latest_materialization_event(gold.day_over_day.key) is None:
        build_the_year(instance)
    else:
        print("  The year is there already.")
    for day in CHRISTMAS_WEEK[:2]:
        run(instance, f"silver and gold: {day} again", [silver.departures, gold.day_over_day], (day, day))
    answers = [gold.carrier_punctuality, gold.weather_effect, gold.aircraft, gold.reviewed_routes]
    run(instance, "gold: punctuality, weather, aircraft, reviewed routes", answers)


def build_the_year(instance: dg.DagsterInstance) -> None:
    """The first time: everything."""
    year, until_december = (DAYS[0], DAYS[-1]), (DAYS[0], DECEMBER[0])
    run(instance, "bronze: airlines and planes", [bronze.airlines, bronze.planes])
    run(instance, "bronze: 365 days of flights, one commit", [bronze.flights], year)
    run(instance, "bronze: weather until December, one commit", [bronze.weather], until_december)
    with timed(f"bronze: {len(DECEMBER)} days of weather, day by day"):
        for day in DECEMBER:
            materialize(instance, [bronze.weather], (day, day))
    run(instance, "bronze: a day of flights with a new column", [bronze.flights], year[:1] * 2, note="checked by hand")
    run(instance, "silver: the year on Spark, one commit", [silver.departures], year)
    iceberg["iceberg"].table_manager.create_tag("silver.departures", gold.REVIEWED)


def run(
    instance: dg.DagsterInstance,
    title: str,
    assets: Sequence[dg.AssetsDefinition],
    days: tuple[str, ...] | None = None,
    *,
    note: str | None = None,
) -> None:
    """Materialize assets in one run and say how long it took."""
    with timed(title):
        materialize(instance, assets, days, note=note)


def materialize(
    instance: dg.DagsterInstance,
    assets: Sequence[dg.AssetsDefinition],
    days: tuple[str, ...] | None = None,
    *,
    note: str | None = None,
) -> None:
    """One run, of a range of days if given, quiet unless it fails."""
    range_tags = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
    config = {"ops": {"bronze__flights": {"config": {"note": note}}}} if note else {}
    result = dg.materialize(
        list(iceberg.assets),
        selection=[key for asset in assets for key in asset.keys],
        resources=dict(iceberg),
        instance=instance,
        tags={} if days is None else dict(zip(range_tags, days, strict=True)),
        run_config={**config, "loggers": {"console": {"config": {"log_level": "ERROR"}}}},
    )
    if not result.success:
        raise SystemExit("A run failed; make ui shows why.")


def look_after(instance: dg.DagsterInstance) -> None:
    """Compaction, expiry and manifests, as the schedules would run them."""
    del instance
    # A snapshot must be a day old to expire; here the rail is switched off on purpose, and the result says so.
    at_once = ExpiryPolicy(max_age=timedelta(0), min_snapshots_to_keep=2, overrides=[MaintenanceRail.EXPIRY_AGE])
    policy = MaintenancePolicy(expiry=at_once)
    maintenance = TableMaintenance(iceberg["iceberg"].table_manager)
    print("\nMaintenance            files        snapshots     manifests")
    for table in TABLES:
        before = maintenance.health(table, policy)
        for operation in (
            MaintenanceOperation.COMPACTION,
            MaintenanceOperation.MANIFESTS,
            MaintenanceOperation.SNAPSHOT_EXPIRY,
        ):
            check(maintenance.execute(operation, table, policy))
        after = maintenance.health(table, policy)
        measures = ("data_files", "snapshots", "manifests")
        changes = (f"{getattr(before, name):>4} -> {getattr(after, name):<4}" for name in measures)
        print(f"  {table:<24}{'  '.join(changes)}")


def check(result: MaintenanceResult) -> None:
    """Stop the demo when an operation failed."""
    if result.error is not None:
        raise SystemExit(f"{result.operation} of {result.table} failed: {result.error}")


def report() -> None:
    """One real question, answered from the gold layer."""
    tables = iceberg["iceberg"].table_manager
    carriers = tables.scan("gold.carrier_punctuality").sort_by([("late_share", "descending")]).to_pylist()
    sight = {row["sight"]: row for row in tables.scan("gold.weather_effect").to_pylist()}
    rows = {table: tables.get_current_snapshot(table) for table in TABLES}
    print("\nTables")
    for table, snapshot in rows.items():
        if snapshot is not None:
            print(f"  {table:<24}{snapshot.total_records:>9,} rows")
    worst, best = carriers[0], carriers[-1]
    print("\nWhom not to fly with?")
    print(f"  {worst['name']}: {worst['late_share']:.0%} of flights arrive more than 15 minutes late.")
    print(f"  {best['name']}: {best['late_share']:.0%}.")
    fog, clear = (sight[band]["average_delay"] for band in ("fog", "clear"))
    print(f"  In fog a departure is {fog:.0f} minutes late on average, else {clear:.0f}.")


@contextmanager
def timed(title: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    print(f"  {title} ...", end="", flush=True)
    started = time.perf_counter()
    yield
    print(f" {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()

"""The demo's runs, each executed by Dagster."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow.compute as pc

from definitions import defs, iceberg
from examples import bronze, gold, silver
from examples.calendar import Calendar
from examples.jobs import answers, new_day, reference_data
from examples.progress import Progress
from floe_dagster_iceberg import IcebergSparkResource

RAW = [bronze.flights.key, bronze.weather.key]
PER_DAY = [silver.departures.key, gold.day_over_day.key]
DEPARTURES = "silver.departures"
NOTE = "most cancelled flights of the year"
CUT_OFF_AFTER = 300

_RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


def run_job(
    instance: dg.DagsterInstance,
    job: dg.JobDefinition,
    *,
    assets: Sequence[dg.AssetKey] | None = None,
    days: Sequence[str] = (),
    ops: Mapping[str, Any] | None = None,
) -> None:
    """Run a job in this process, optionally for a range of days; quiet unless it fails."""
    result = _execute(instance, job, assets=assets, days=days, ops=ops, log_level="ERROR")
    if not result.success:
        raise SystemExit(f"Run {result.run_id} failed.")


def _execute(
    instance: dg.DagsterInstance,
    job: dg.JobDefinition,
    *,
    assets: Sequence[dg.AssetKey] | None = None,
    days: Sequence[str] = (),
    ops: Mapping[str, Any] | None = None,
    log_level: str,
) -> dg.ExecuteInProcessResult:
    tags = dict(zip(_RANGE, (days[0], days[-1]), strict=True)) if len(days) > 1 else {}
    config = {
        "loggers": {"console": {"config": {"log_level": log_level}}},
        "ops": {op: {"config": dict(values)} for op, values in (ops or {}).items()},
    }
    return job.execute_in_process(
        run_config=config,
        instance=instance,
        asset_selection=assets,
        partition_key=days[0] if len(days) == 1 else None,
        tags=tags,
        raise_on_error=False,
    )


class Pipeline:
    """Builds what is missing and keeps what exists."""

    def __init__(
        self, instance: dg.DagsterInstance, pyspark: IcebergSparkResource, progress: Progress, calendar: Calendar
    ) -> None:
        self._instance, self._pyspark, self._progress, self._calendar = instance, pyspark, progress, calendar
        self._tables = iceberg["iceberg"].table_manager
        self._spark_runs = False
        self.runs = 0

    def build(self) -> None:
        """Build all layers, in order."""
        history, daily, watched = self._calendar.history, self._calendar.daily, self._calendar.watched
        self._progress.headline("Bronze: load raw files (Arrow)")
        self._reference_data()
        self._days(f"backfill of {len(history)} days: one run, one commit per table", RAW, history)
        self._one_by_one(f"{len(daily)} days: one run each", RAW, daily)
        self._hours("gold: flights per hour, which reads everything in its first run")
        self._progress.headline("Silver and gold: join and aggregate (PySpark)")
        self._days(f"{len(history) + len(daily)} days: one run, one commit per table", PER_DAY, [*history, *daily])
        self._annotate_the_worst_day()
        *before, last = watched
        self._one_by_one(f"{len(before)} days in all layers: one run each", [*RAW, *PER_DAY], before)
        self._audit_the_last_day(last)
        self._pin_what_was_reviewed()
        self._answers()

    def _reference_data(self) -> None:
        title = "airlines, airports and planes"
        if all(map(self._is_there, (bronze.airlines.key, bronze.airports.key, bronze.planes.key))):
            return self._progress.up_to_date(title)
        with self._progress.step(title):
            self._run(reference_data.name)
        return None

    def _days(self, title: str, assets: Sequence[dg.AssetKey], days: Sequence[str]) -> None:
        """Load all days in a single run."""
        if not self._missing(assets, days):
            return self._progress.up_to_date(title)
        self._start_spark(assets)
        with self._progress.step(title):
            self._run(new_day.name, assets=assets, days=days)
        return None

    def _one_by_one(self, title: str, assets: Sequence[dg.AssetKey], days: Sequence[str]) -> None:
        """Load each missing day in its own run."""
        missing = self._missing(assets, days)
        if not missing:
            return self._progress.up_to_date(title)
        self._start_spark(assets)
        with self._progress.step(title):
            for day in missing:
                self._run(new_day.name, assets=assets, days=[day])
        return None

    def _annotate_the_worst_day(self) -> None:
        """Rewrite one day with a new column, which is added to both tables."""
        title = "new column: a note on the day with most cancellations"
        if all(
            "note" in self._tables.load_table(table).schema().column_names for table in ("bronze.flights", DEPARTURES)
        ):
            return self._progress.up_to_date(title)
        flights = self._tables.scan("bronze.flights", columns=["month", "day"], row_filter="dep_time is null")
        counts = flights.group_by(["month", "day"]).aggregate([([], "count_all")])
        worst = counts.take(pc.select_k_unstable(counts, 1, [("count_all", "descending")])).to_pylist()[0]
        day = f"2013-{worst['month']:02}-{worst['day']:02}"
        self._start_spark([silver.departures.key])
        with self._progress.step(f"{title} ({day}, {worst['count_all']})"):
            self._run(
                new_day.name,
                assets=[bronze.flights.key, *PER_DAY],
                days=[day],
                ops={"bronze__flights": {"note": NOTE}},
            )
        return None

    def _hours(self, title: str) -> None:
        if self._is_there(gold.flights_per_hour.key):
            return self._progress.up_to_date(title)
        with self._progress.step(title):
            self._run(answers.name, assets=[gold.flights_per_hour.key])
        return None

    def _audit_the_last_day(self, day: str) -> None:
        """Load a day from a file that was cut off, which the audit rejects, and then from the complete one."""
        if not self._missing([*RAW, *PER_DAY], [day]):
            return self._progress.up_to_date(f"audit of {day}")
        self._start_spark(PER_DAY)
        with self._progress.step(f"{day}, from a file that was cut off: rejected by the audit"):
            self._run_rejected(new_day.name, days=[day], ops={"bronze__flights": {"cut_off_after": CUT_OFF_AFTER}})
        with self._progress.step(f"{day}, from the complete file: published"):
            self._run(new_day.name, days=[day])
        return None

    def _run_rejected(self, job: str, **choices: Any) -> None:
        """Run a job whose audit has to fail, without moving main."""
        before = self._tables.load_table(DEPARTURES).metadata.current_snapshot_id
        result = _execute(self._instance, defs.resolve_job_def(job), log_level="CRITICAL", **choices)
        self.runs += 1
        failed = {check.check_name for check in result.get_asset_check_evaluations() if not check.passed}
        if silver.every_day_is_complete.__name__ not in failed or result.success:
            raise SystemExit(f"Run {result.run_id} was not rejected by the audit.")
        if self._tables.load_table(DEPARTURES).metadata.current_snapshot_id != before:
            raise SystemExit(f"Run {result.run_id} was rejected, but main has moved.")

    def _pin_what_was_reviewed(self) -> None:
        if gold.REVIEWED not in self._tables.load_table(DEPARTURES).metadata.refs:
            self._tables.create_tag(DEPARTURES, gold.REVIEWED)

    def _answers(self) -> None:
        title = "gold: carriers, routes, weather, aircraft, hours"
        keys = [gold.carrier_punctuality.key, gold.route_punctuality.key, gold.weather_effect.key, gold.aircraft.key]
        others = [gold.flights_per_hour.key, gold.reviewed_routes.key]
        if not self._spark_runs and all(map(self._is_there, [*keys, *others])):
            return self._progress.up_to_date(title)
        self._start_spark(keys)
        with self._progress.step(title):
            self._run(answers.name)
        return None

    def _run(self, job: str, **choices: Any) -> None:
        run_job(self._instance, defs.resolve_job_def(job), **choices)
        self.runs += 1

    def _start_spark(self, assets: Sequence[dg.AssetKey]) -> None:
        """Start Spark in its own step, so that its start does not count as part of a run."""
        if self._spark_runs or all(key.path[0] == "bronze" for key in assets):
            return
        with self._progress.step("start Spark"), self._progress.quiet_children():
            self._spark_runs = self._pyspark.spark_session is not None

    def _missing(self, assets: Sequence[dg.AssetKey], days: Sequence[str]) -> list[str]:
        """Days that are missing in one of the assets."""
        if not all(map(self._is_there, assets)):
            return list(days)
        statuses = [self._instance.get_status_by_partition(key, days, bronze.NEW_YORK_DAYS) or {} for key in assets]
        return [day for day in days if any(_name(status.get(day)) != "MATERIALIZED" for status in statuses)]

    def _is_there(self, key: dg.AssetKey) -> bool:
        # Tables may have been removed without Dagster's event log, or the other way round.
        known = self._instance.get_latest_materialization_event(key) is not None
        return known and self._tables.table_exists(".".join(key.path))


def _name(status: Any) -> str | None:
    return None if status is None else status.name

"""Bronze: the raw files as tables, with Arrow."""

import functools

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from examples.columns import describe_columns
from examples.raw_data import load_raw

NEW_YORK_DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2014-01-01", timezone="America/New_York")
ALL_DAYS_IN_ONE_RUN = dg.BackfillPolicy.single_run()
# A day is small, so files are partitioned by month. This does not affect the Dagster partitions.
DAYS_IN_FILES_BY_MONTH = {"partition_expr": "time_hour", "iceberg/partition_spec": ["month(time_hour)"]}


class LoadConfig(dg.Config):
    """Configuration of a load."""

    note: str | None = Field(default=None, description="Stored with the rows, in a separate column.")
    cut_off_after: int | None = Field(
        default=None, description="Load only this many rows, as from a file whose transfer was interrupted."
    )


@dg.asset(
    key_prefix="bronze",
    group_name="bronze",
    partitions_def=NEW_YORK_DAYS,
    backfill_policy=ALL_DAYS_IN_ONE_RUN,
    metadata={
        **DAYS_IN_FILES_BY_MONTH,
        **describe_columns(
            "time_hour carrier flight tailnum origin dest year month day hour minute dep_time sched_dep_time "
            "dep_delay arr_time sched_arr_time arr_delay air_time distance"
        ),
    },
    io_manager_key="iceberg_io_manager",
)
def flights(context: dg.AssetExecutionContext, config: LoadConfig) -> pa.Table:
    """Flights by scheduled departure day in New York's time zone, where two days have 23 and 25 hours."""
    rows = _within(load_raw("flights"), context.partition_time_window).slice(0, config.cut_off_after)
    return rows if config.note is None else rows.append_column("note", pa.array([config.note] * rows.num_rows))


@dg.asset(
    key_prefix="bronze",
    group_name="bronze",
    partitions_def=NEW_YORK_DAYS,
    backfill_policy=ALL_DAYS_IN_ONE_RUN,
    metadata={
        **DAYS_IN_FILES_BY_MONTH,
        **describe_columns(
            "origin time_hour year month day hour temp dewp humid wind_dir wind_speed wind_gust precip pressure visib"
        ),
    },
    io_manager_key="iceberg_io_manager",
)
def weather(context: dg.AssetExecutionContext) -> pa.Table:
    """Hourly weather at the three airports."""
    return _within(load_raw("weather"), context.partition_time_window)


@dg.asset(
    key_prefix="bronze",
    group_name="bronze",
    metadata={
        "iceberg/write_mode": "overwrite",
        **describe_columns("tailnum year type manufacturer model engines seats speed engine"),
    },
    io_manager_key="iceberg_io_manager",
)
def planes() -> pa.Table:
    """All planes."""
    return load_raw("planes")


@dg.asset(
    key_prefix="bronze",
    group_name="bronze",
    metadata={"iceberg/write_mode": "overwrite", **describe_columns("carrier name")},
    io_manager_key="iceberg_io_manager",
)
def airlines() -> pa.Table:
    """Carrier codes and names."""
    return load_raw("airlines")


@dg.asset(
    key_prefix="bronze",
    group_name="bronze",
    metadata={"iceberg/write_mode": "overwrite", **describe_columns("faa name lat lon alt tz dst tzone")},
    io_manager_key="iceberg_io_manager",
)
def airports() -> pa.Table:
    """Airport codes and names."""
    return load_raw("airports")


def _within(rows: pa.Table, window: dg.TimeWindow) -> pa.Table:
    start, end = (pa.scalar(bound, rows.schema.field("time_hour").type) for bound in window)
    hour = rows.column("time_hour")
    return rows.filter(pc.and_(pc.greater_equal(hour, start), pc.less(hour, end)))


@dg.asset_check(asset=flights)
def flights_are_in_their_day(flights: pa.Table) -> dg.AssetCheckResult:
    """Every flight is in the day that its raw file names, in New York's time zone, also when clocks change."""
    wrong = count_in_another_day(flights)
    return dg.AssetCheckResult(passed=wrong == 0, metadata={"wrong": wrong, "rows": flights.num_rows})


def count_in_another_day(flights: pa.Table) -> int:
    """The number of flights whose timestamp, which determines the partition, is not in the day of the raw file."""
    local = in_new_york(flights.column("time_hour"))
    named = (pc.equal(part(local), flights.column(part.__name__)) for part in (pc.year, pc.month, pc.day))
    same = functools.reduce(pc.and_, named)
    return int(flights.num_rows - (pc.sum(same).as_py() or 0))


def in_new_york(hours: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps as New York's clocks show them."""
    return pc.local_timestamp(hours.cast(pa.timestamp("us", NEW_YORK_DAYS.timezone)))

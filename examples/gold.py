"""Gold: reports on punctuality, weather and planes."""

from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from examples.bars import draw_bars
from examples.bronze import ALL_DAYS_IN_ONE_RUN, NEW_YORK_DAYS, in_new_york
from examples.columns import describe_columns
from examples.silver import ON_SPARK, departures
from floe_dagster_iceberg import iceberg_settings

LATE_MINUTES = 15
FOG_MILES, HAZE_MILES = 1, 5
REVIEWED = "reviewed"
DAYS_READ, FLIGHTS_READ = "days read", "flights read"
# The first day has no previous day.
WITH_THE_DAY_BEFORE = dg.TimeWindowPartitionMapping(start_offset=-1, allow_nonexistent_upstream_partitions=True)


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={
        "flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK),
        "airlines": dg.AssetIn(["bronze", "airlines"], input_manager_key=ON_SPARK),
    },
    metadata={
        "iceberg/write_mode": "overwrite",
        **describe_columns("carrier name flights late_share average_delay cancelled", cancelled="cancelled_flights"),
    },
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def carrier_punctuality(context: dg.AssetExecutionContext, flown: Any, airlines: Any) -> Any:
    """The share of late arrivals per carrier, with a chart."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    late = f.avg((f.col("arrival_delay") > LATE_MINUTES).cast("double"))
    result = (
        flown.join(f.broadcast(airlines), "carrier")
        .groupBy("carrier", "name")
        .agg(
            f.count("*").alias("flights"),
            f.round(late, 4).alias("late_share"),
            f.round(f.avg("arrival_delay"), 1).alias("average_delay"),
            f.sum(f.col("cancelled").cast("int")).alias("cancelled"),
        )
    )
    shares = {row["name"]: row["late_share"] or 0.0 for row in result.orderBy(f.desc("late_share")).collect()}
    context.add_output_metadata({"late by carrier": dg.MetadataValue.md(draw_bars(shares))})
    return result


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={
        "flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK),
        "airports": dg.AssetIn(["bronze", "airports"], input_manager_key=ON_SPARK),
    },
    metadata={"iceberg/write_mode": "overwrite", **describe_columns("dest origin flights late_share destination")},
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def route_punctuality(flown: Any, airports: Any) -> Any:
    """The share of late arrivals per route."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    late = f.avg((f.col("arrival_delay") > LATE_MINUTES).cast("double"))
    places = airports.select(f.col("faa").alias("dest"), f.col("name").alias("destination"))
    return (
        flown.groupBy("origin", "dest")
        .agg(f.count("*").alias("flights"), f.round(late, 4).alias("late_share"))
        .join(f.broadcast(places), "dest", "left")
    )


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={"flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK)},
    metadata={
        "iceberg/write_mode": "overwrite",
        **describe_columns("sight flights average_delay cancelled_share", average_delay="delay"),
    },
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def weather_effect(flown: Any) -> Any:
    """Delays by visibility."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    sight = f.col("visibility")
    band = (
        f.when(sight < FOG_MILES, "fog")
        .when(sight < HAZE_MILES, "haze")
        .when(sight.isNotNull(), "clear")
        .otherwise("unknown")
    )
    return (
        flown.groupBy(band.alias("sight"))
        .agg(
            f.count("*").alias("flights"),
            f.round(f.avg("departure_delay"), 1).alias("average_delay"),
            f.round(f.avg(f.col("cancelled").cast("double")), 4).alias("cancelled_share"),
        )
        .orderBy("sight")
    )


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={
        "flights": dg.AssetIn(
            ["bronze", "flights"], metadata=iceberg_settings(changes="partitions", columns=["time_hour"])
        )
    },
    metadata={**iceberg_settings(upsert_keys=["time_hour"]), **describe_columns("time_hour flights")},
    io_manager_key="iceberg_io_manager",
)
def flights_per_hour(context: dg.AssetExecutionContext, flights: pa.Table) -> pa.Table:
    """Scheduled departures per hour. Incremental: a run reads only the days of files that have changed."""
    days = pc.count_distinct(pc.floor_temporal(in_new_york(flights.column("time_hour")), unit="day"))
    context.add_output_metadata({DAYS_READ: days.as_py(), FLIGHTS_READ: flights.num_rows})
    return flights.group_by("time_hour").aggregate([([], "count_all")]).rename_columns(["time_hour", "flights"])


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={"flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK)},
    metadata={
        "iceberg/write_mode": "upsert",
        "iceberg/upsert_keys": ["tailnum"],
        **describe_columns("tailnum manufacturer flights miles last_seen", miles="total_miles"),
    },
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def aircraft(flown: Any) -> Any:
    """Each plane with its flights so far; existing planes are updated."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    return (
        flown.where(f.col("tailnum").isNotNull() & ~f.col("cancelled"))
        .groupBy("tailnum")
        .agg(
            f.first("manufacturer", ignorenulls=True).alias("manufacturer"),
            f.count("*").alias("flights"),
            f.sum("miles").alias("miles"),
            f.max("scheduled_hour").alias("last_seen"),
        )
    )


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    partitions_def=NEW_YORK_DAYS,
    backfill_policy=ALL_DAYS_IN_ONE_RUN,
    ins={"flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK, partition_mapping=WITH_THE_DAY_BEFORE)},
    metadata={
        "partition_expr": "day",
        "iceberg/partition_spec": ["month(day)"],
        **describe_columns("day flights delay delay_before", day="date"),
    },
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def day_over_day(context: dg.AssetExecutionContext, flown: Any) -> Any:
    """Flights and delays per day, with the delay of the previous day."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    first, end = context.partition_time_window
    local = f.from_utc_timestamp("scheduled_hour", NEW_YORK_DAYS.timezone)
    days = flown.groupBy(f.to_date(local).alias("day")).agg(
        f.count("*").alias("flights"), f.round(f.avg("departure_delay"), 2).alias("delay")
    )
    before = days.select(f.date_add("day", 1).alias("day"), f.col("delay").alias("delay_before"))
    asked = (f.col("day") >= f.lit(first.date())) & (f.col("day") < f.lit(end.date()))
    return days.where(asked).join(before, "day", "left")


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={
        "flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK, metadata={"iceberg/tag": REVIEWED}),
    },
    metadata={"iceberg/write_mode": "overwrite", **describe_columns("origin dest flights")},
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def reviewed_routes(flown: Any) -> Any:
    """The busiest routes at the time of the review: the input is pinned to a tag."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    return flown.groupBy("origin", "dest").agg(f.count("*").alias("flights")).orderBy(f.desc("flights")).limit(20)


@dg.asset_check(asset=carrier_punctuality)
def shares_are_shares(carrier_punctuality: pa.Table) -> dg.AssetCheckResult:
    """Every share is between 0 and 1."""
    shares = carrier_punctuality.column("late_share").drop_null().to_pylist()
    carriers = carrier_punctuality.num_rows
    return dg.AssetCheckResult(passed=all(0 <= share <= 1 for share in shares), metadata={"carriers": carriers})


@dg.asset_check(asset=day_over_day)
def days_are_complete(day_over_day: pa.Table) -> dg.AssetCheckResult:
    """Every day has flights and exactly one row."""
    days, flights = day_over_day.column("day").unique(), day_over_day.column("flights").to_pylist()
    complete = len(days) == day_over_day.num_rows and all(flights)
    return dg.AssetCheckResult(passed=complete, metadata={"days": len(days), "flights": sum(flights)})

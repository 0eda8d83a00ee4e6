"""Gold: what one wants to know. Who is punctual, what the weather does, which planes fly."""

from typing import Any

import dagster as dg
import pyarrow as pa

from examples.bars import draw_bars
from examples.bronze import NEW_YORK_DAYS
from examples.silver import ON_SPARK, departures

LATE_MINUTES = 15
FOG_MILES, HAZE_MILES = 1, 5
REVIEWED = "reviewed"


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={
        "flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK),
        "airlines": dg.AssetIn(["bronze", "airlines"], input_manager_key=ON_SPARK),
    },
    metadata={"iceberg/write_mode": "overwrite"},
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def carrier_punctuality(context: dg.AssetExecutionContext, flown: Any, airlines: Any) -> Any:
    """How many of a carrier's flights arrive late, with a chart."""
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
    ins={"flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK)},
    metadata={"iceberg/write_mode": "overwrite"},
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def weather_effect(flown: Any) -> Any:
    """Delays by how far one could see."""
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
    ins={"flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK)},
    metadata={"iceberg/write_mode": "upsert", "iceberg/upsert_keys": ["tailnum"]},
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def aircraft(flown: Any) -> Any:
    """Each plane with its flights so far; planes that are there already are updated."""
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
    ins={
        "two_days": dg.AssetIn(
            departures.key,
            input_manager_key=ON_SPARK,
            partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1),
        ),
    },
    metadata={"partition_expr": "day"},
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def day_over_day(context: dg.AssetExecutionContext, two_days: Any) -> Any:
    """How much worse or better a day was than the one before, which is read along with it."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    is_today = f.col("scheduled_hour") >= f.lit(context.partition_time_window.start)
    return two_days.agg(
        f.round(f.avg(f.when(is_today, f.col("departure_delay"))), 2).alias("delay"),
        f.round(f.avg(f.when(~is_today, f.col("departure_delay"))), 2).alias("delay_before"),
        f.count(f.when(is_today, 1)).alias("flights"),
    ).withColumn("day", f.lit(context.partition_key).cast("date"))


@dg.asset(
    key_prefix="gold",
    group_name="gold",
    ins={
        "flown": dg.AssetIn(departures.key, input_manager_key=ON_SPARK, metadata={"iceberg/tag": REVIEWED}),
    },
    metadata={"iceberg/write_mode": "overwrite"},
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def reviewed_routes(flown: Any) -> Any:
    """The busiest routes as they were when somebody reviewed them: the input is pinned to a tag."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    return flown.groupBy("origin", "dest").agg(f.count("*").alias("flights")).orderBy(f.desc("flights")).limit(20)


@dg.asset_check(asset=carrier_punctuality, description="Every carrier has flights, and shares are shares.")
def shares_are_shares(carrier_punctuality: pa.Table) -> dg.AssetCheckResult:
    """Check the answer before somebody shows it around."""
    shares = carrier_punctuality.column("late_share").drop_null().to_pylist()
    carriers = carrier_punctuality.num_rows
    return dg.AssetCheckResult(passed=all(0 <= share <= 1 for share in shares), metadata={"carriers": carriers})

"""Silver: flights joined with weather and planes, deduplicated and typed, on Spark, and audited.

PySpark is imported inside the assets, so that the code location loads quickly and without Java.
The inputs are DataFrames because the Spark IO manager loads them.
"""

from typing import Any

import dagster as dg
import pyarrow.compute as pc

from examples.bronze import ALL_DAYS_IN_ONE_RUN, NEW_YORK_DAYS, in_new_york
from examples.columns import describe_columns
from floe_dagster_iceberg import AuditedTable, audited_asset, not_null, unique

ON_SPARK = "iceberg_spark_io_manager"
IDENTIFYING = ("scheduled_hour", "carrier", "flight", "origin", "dest")
FEWEST_FLIGHTS = 500


# The checks of the audit read with Arrow what Spark wrote, before anyone else can read it.
def cancelled_flights_have_no_delay(departures: AuditedTable) -> dg.AssetCheckResult:
    """Cancelled flights have no delay."""
    rows = departures.scan(["cancelled", "departure_delay"])
    delayed = rows.column("departure_delay").is_valid()
    wrong = pc.sum(pc.and_(rows.column("cancelled"), delayed)).as_py() or 0
    return dg.AssetCheckResult(passed=wrong == 0, metadata={"wrong": wrong, "rows": rows.num_rows})


def every_day_is_complete(departures: AuditedTable) -> dg.AssetCheckResult:
    """Every day has at least 500 flights; a file that was cut off has fewer."""
    hours = in_new_york(departures.scan(["scheduled_hour"]).column("scheduled_hour"))
    flights = pc.value_counts(pc.floor_temporal(hours, unit="day")).field("counts")
    fewest = pc.min(flights).as_py() or 0
    return dg.AssetCheckResult(
        passed=fewest >= FEWEST_FLIGHTS, metadata={"days": len(flights), "fewest flights of a day": fewest}
    )


@audited_asset(
    checks=[
        not_null(*IDENTIFYING, name="no_null_in_keys"),
        unique(*IDENTIFYING, name="departures_are_unique"),
        cancelled_flights_have_no_delay,
        every_day_is_complete,
    ],
    key_prefix="silver",
    group_name="silver",
    partitions_def=NEW_YORK_DAYS,
    backfill_policy=ALL_DAYS_IN_ONE_RUN,
    ins={
        "raw": dg.AssetIn(["bronze", "flights"], input_manager_key=ON_SPARK),
        "weather": dg.AssetIn(["bronze", "weather"], input_manager_key=ON_SPARK),
        "planes": dg.AssetIn(["bronze", "planes"], input_manager_key=ON_SPARK),
    },
    metadata={
        "partition_expr": "scheduled_hour",
        "iceberg/partition_spec": ["month(scheduled_hour)"],
        "iceberg/sort_by": ["carrier"],
        **describe_columns(
            "scheduled_hour carrier flight origin dest tailnum departure_delay arrival_delay cancelled miles plane_age "
            "manufacturer seats wind_speed visibility rain"
        ),
    },
    io_manager_key=ON_SPARK,
    kinds={"spark"},
)
def departures(raw: Any, weather: Any, planes: Any) -> Any:
    """Scheduled departures, with the weather at that hour and the age of the plane."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - loading the code location must not load Spark

    sky = weather.select("origin", "time_hour", "wind_speed", "visib", "precip").dropDuplicates(["origin", "time_hour"])
    fleet = planes.select("tailnum", f.col("year").cast("int").alias("built"), "manufacturer", "seats")
    # Once bronze has the column, this table has it, too.
    notes = [name for name in ("note",) if name in raw.columns]
    return (
        raw.dropDuplicates(["time_hour", *IDENTIFYING[1:]])
        .join(sky, ["origin", "time_hour"], "left")
        .join(f.broadcast(fleet), "tailnum", "left")
        .select(
            f.col("time_hour").alias("scheduled_hour"),
            "carrier",
            f.col("flight").cast("int").alias("flight"),
            "origin",
            "dest",
            "tailnum",
            f.col("dep_delay").cast("int").alias("departure_delay"),
            f.col("arr_delay").cast("int").alias("arrival_delay"),
            f.col("dep_time").isNull().alias("cancelled"),
            f.col("distance").cast("int").alias("miles"),
            (f.col("year") - f.col("built")).cast("int").alias("plane_age"),
            "manufacturer",
            "seats",
            f.col("wind_speed").cast("double").alias("wind_speed"),
            f.col("visib").cast("double").alias("visibility"),
            f.col("precip").cast("double").alias("rain"),
            *notes,
        )
    )

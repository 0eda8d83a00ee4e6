"""The jobs: load a new day into all layers, and build the reports over all days."""

import dagster as dg

from examples import bronze, gold, silver

reference_data = dg.define_asset_job("reference_data", selection=[bronze.airlines, bronze.airports, bronze.planes])
new_day = dg.define_asset_job(
    "new_day",
    selection=[bronze.flights, bronze.weather, silver.departures, gold.day_over_day],
    partitions_def=bronze.NEW_YORK_DAYS,
    description="Load one day, or a range of days in a single run, from the raw files to gold.",
)
answers = dg.define_asset_job(
    "answers",
    selection=[
        gold.carrier_punctuality,
        gold.route_punctuality,
        gold.weather_effect,
        gold.aircraft,
        gold.flights_per_hour,
        gold.reviewed_routes,
    ],
)
JOBS = [reference_data, new_day, answers]

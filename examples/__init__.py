"""A lakehouse of real flights: raw files in bronze, joined in silver, reports in gold. No storage code in assets."""

import warnings

from dagster import BetaWarning

# Backfill policies are beta in Dagster, which warns for each asset that has one.
warnings.filterwarnings("ignore", category=BetaWarning)

"""A lakehouse of real flights: raw files into bronze, joined in silver, answers in gold. No asset knows storage."""

import warnings

from dagster import BetaWarning

# Dagster calls backfill policies beta, and says so for each asset that has one.
warnings.filterwarnings("ignore", category=BetaWarning)

"""The demo of `make demo`: load a year of flights, run maintenance, and print a report."""

import argparse
import logging
import os
import time
from pathlib import Path

# The folders of `make ui`, so that it shows the same tables and runs. The demo uses its own DAGSTER_HOME, next
# to the tables, so that its runs do not end up in the user's.
FLOE_HOME = Path(os.environ.get("FLOE_HOME", ".floe")).absolute()
os.environ["FLOE_HOME"] = str(FLOE_HOME)
DAGSTER_HOME = FLOE_HOME.with_name(".dagster_home")
os.environ["DAGSTER_HOME"] = str(DAGSTER_HOME)

import dagster as dg  # noqa: E402 - reads the variables above
from rich.console import Console  # noqa: E402

from definitions import iceberg  # noqa: E402
from examples.calendar import Calendar  # noqa: E402
from examples.care import Care  # noqa: E402
from examples.pipeline import Pipeline  # noqa: E402
from examples.progress import Progress  # noqa: E402
from examples.report import Report  # noqa: E402


def main() -> None:
    """Build what is missing, run maintenance, and print a report."""
    options = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    options.add_argument("--since", default="2013-01-01", help="skip earlier days, for a faster run")
    calendar = Calendar.since(options.parse_args().since)
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    _prepare_folders()
    console.print(f"[bold]All flights from New York in 2013[/], from {calendar.first} to {calendar.last}")
    # The resources stay open, so that all runs share one Spark session.
    with dg.DagsterInstance.get() as instance, dg.build_resources(dict(iceberg)) as resources:
        progress = Progress(console, log=FLOE_HOME / "demo.log")
        pipeline = Pipeline(instance, resources.pyspark, progress, calendar)
        pipeline.build()
        changes = Care(instance, progress).maintain()
        Report(console, calendar, instance).show(changes)
    seconds = time.perf_counter() - started
    built = f"{pipeline.runs} runs" if pipeline.runs else "Everything was up to date"
    console.print(f"\n[bold]Done in {seconds:.0f} s.[/] {built}. Next:")
    console.print("  [bold]make ui[/]    the same in Dagster: lineage, partitions, plots, checks, maintenance")
    console.print("  [bold]make demo[/]  again: existing data is kept")
    console.print("  examples/   the assets, without storage code")


def _prepare_folders() -> None:
    FLOE_HOME.mkdir(parents=True, exist_ok=True)
    DAGSTER_HOME.mkdir(exist_ok=True)
    settings = DAGSTER_HOME / "dagster.yaml"
    if not settings.exists():
        settings.write_text("telemetry:\n  enabled: false\n")
    # Messages of Spark and other libraries go to a log file.
    handler = logging.FileHandler(FLOE_HOME / "demo.log")
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(asctime)s %(name)s %(message)s")


if __name__ == "__main__":
    main()

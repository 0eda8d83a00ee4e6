"""What `make demo` runs: a year of flights through the lakehouse, its maintenance, and a report."""

import argparse
import logging
import os
import time
from pathlib import Path

# Where `make ui` looks, so that it shows the same tables and the same runs. Dagster's own folder is beside
# that of the tables, whatever DAGSTER_HOME a person works with: the demo's runs have no business there.
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
    """Build what is not there yet, look after it, and say what came out."""
    options = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    options.add_argument("--since", default="2013-01-01", help="leave out the days before, for a quicker look")
    calendar = Calendar.since(options.parse_args().since)
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    _prepare_folders()
    console.print(f"[bold]Every flight that left New York in 2013[/], from {calendar.first} to {calendar.last}")
    # The resources stay open, so that all runs share one Spark.
    with dg.DagsterInstance.get() as instance, dg.build_resources(dict(iceberg)) as resources:
        progress = Progress(console, log=FLOE_HOME / "demo.log")
        pipeline = Pipeline(instance, resources.pyspark, progress, calendar)
        pipeline.build()
        changes = Care(instance, progress).look_after()
        Report(console, calendar).show(changes)
    seconds = time.perf_counter() - started
    built = f"{pipeline.runs} runs built it" if pipeline.runs else "Nothing had to be built"
    console.print(f"\n[bold]Done in {seconds:.0f} s.[/] {built}. Next:")
    console.print("  [bold]make ui[/]    the same in Dagster: lineage, partitions, plots, checks, maintenance")
    console.print("  [bold]make demo[/]  once more: what is there is left alone")
    console.print("  examples/   the assets; none of them knows where its rows are stored")


def _prepare_folders() -> None:
    FLOE_HOME.mkdir(parents=True, exist_ok=True)
    DAGSTER_HOME.mkdir(exist_ok=True)
    settings = DAGSTER_HOME / "dagster.yaml"
    if not settings.exists():
        settings.write_text("telemetry:\n  enabled: false\n")
    # What Spark and the libraries have to say is for those who look for it.
    handler = logging.FileHandler(FLOE_HOME / "demo.log")
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(asctime)s %(name)s %(message)s")


if __name__ == "__main__":
    main()

"""Run all benchmarks, or the given ones.

Each writes results/<name>.json; the report and the plots are regenerated from all of these.
"""

import argparse
import importlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import machine_facts
from benchmarks.measure import say
from benchmarks.plots import draw, draw_headline
from benchmarks.report import write_report
from benchmarks.results import Result
from benchmarks.session import Session, open_crew, open_session

HOME = Path(__file__).parent
NAMES = (
    "write_partition",
    "read_partition",
    "backfill",
    "upsert",
    "merges",
    "stream",
    "spark_write",
    "changes",
    "compaction",
    "upkeep",
    "import_time",
    "writers",
    "telemetry",
    "object_store",
    "object_store_fleet",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks of the command line."""
    options = _parse(arguments)
    into = options.into or (Path(tempfile.mkdtemp(prefix="floe-bench-quick-")) if options.quick else HOME)
    names = () if options.redraw else options.names or NAMES
    # Each benchmark gets new processes, so that caches of another one do not count. Quick runs share them.
    for crewed in [names] if options.quick else [[name] for name in names]:
        with open_crew() as crew:
            for name in crewed:
                with open_session(crew, quick=options.quick, has_peer=not options.without_peer) as session:
                    run_one(name, session).save(into / "results")
    results = [Result.load(into / "results" / f"{name}.json") for name in NAMES if _exists(into, name)]
    write_report(results, into / "results.md")
    for result in results:
        draw(result, into / "plots")
        if result.name == "write_partition":
            draw_headline(result, into / "plots")
    say(f"results: {into / 'results.md'}")


def run_one(name: str, session: Session) -> Result:
    """Run a benchmark and return its result."""
    benchmark = importlib.import_module(f"benchmarks.bench_{name}")
    say(f"{name}: {(benchmark.__doc__ or '').partition('.')[0]}")
    before, started = machine_facts(), time.monotonic()
    curves = benchmark.run(session)
    return Result(
        name=name,
        about=benchmark.__doc__ or "",
        curves=curves,
        targets=benchmark.judge(curves),
        machine={**before, "load_average_after": machine_facts()["load_average"]},
        quick=session.quick,
        seconds=round(time.monotonic() - started, 1),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--redraw", action="store_true", help="measure nothing: report and plots of stored results")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: a smoke test only")
    parser.add_argument("--without-peer", action="store_true", help="skip the peer, which has to be installed")
    parser.add_argument(
        "--into", type=Path, help="folder of the results; default: benchmarks/, or a temporary one with --quick"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"unknown benchmark {', '.join(unknown)}; known: {', '.join(NAMES)}")
    return options


def _exists(into: Path, name: str) -> bool:
    return (into / "results" / f"{name}.json").is_file()


if __name__ == "__main__":
    main()

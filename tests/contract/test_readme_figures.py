"""The README's figures are those that were measured."""

import re
from pathlib import Path

import pytest

from benchmarks.plots import draw, draw_headline
from benchmarks.report import format_number
from benchmarks.results import Result

ROOT = Path(__file__).parents[2]
OURS, NEW, PEER, SPARK = "ours", "ours, new process", "peer", "Spark by hand"
RAW, RAW_NEW = "raw PyIceberg", "raw PyIceberg, new process"
# By the beginning of the row: which benchmark, curve, unit and size; which contender is in which column.
ROWS = {
    "Replace a day (1,000 rows)": ("write_partition", "1,000 rows", "s", 10, (NEW, RAW, PEER, None)),
    "The same, with 2,000 days": ("write_partition", "1,000 rows", "s", 2000, (NEW, RAW, PEER, None)),
    "Backfill 365 days": ("backfill", "1,000 rows a day", "s", 365, (f"{OURS}, one run", None, PEER, None)),
    "Upsert 100,000 keys": ("upsert", "100,000 keys", "s", 5_000_000, (OURS, RAW, None, SPARK)),
    "Compact 1,000 files": ("compaction", "files of 1 MB", "s", 1000, (f"{OURS}, PyIceberg engine", None, None, SPARK)),
    "Load a day of 3,650": ("read_partition", "all 30 columns", "s", 3650, (NEW, RAW_NEW, PEER, None)),
    "On S3 with a REST catalog, 25 ms a request: replace": (
        *("object_store", "replace a day, 200 commits", "s", 25),
        (NEW, RAW, PEER, None),
    ),
    "On S3 with a REST catalog, 25 ms a request: load": (
        *("object_store", "load a day, 200 commits", "s", 25),
        (NEW, RAW, PEER, None),
    ),
    "16 writers at once": ("writers", "10 appends each", "writes committed", 16, (OURS, RAW, PEER, None)),
}


def result_of(benchmark: str) -> Result:
    return Result.load(ROOT / "benchmarks" / "results" / f"{benchmark}.json")


def test_every_row_of_the_table_is_known() -> None:
    table = re.search(r"## Performance\n.*?\|---.*?\n(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL)
    assert table is not None
    rows = table.group(1).splitlines()
    assert len(rows) == len(ROWS)
    assert all(any(row.startswith(f"| {beginning}") for beginning in ROWS) for row in rows)


@pytest.mark.parametrize("beginning", ROWS)
def test_a_row_says_what_was_measured(beginning: str) -> None:
    benchmark, title, unit, size, contenders = ROWS[beginning]
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"| {beginning}"))
    curve = next(c for c in result_of(benchmark).curves if (c.title, c.unit) == (title, unit))
    measured = ["" if name is None else format_number(curve.median(size, name) or 0) for name in contenders]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == measured


def test_none_of_it_comes_from_a_quick_run() -> None:
    assert not any(result_of(benchmark).quick for benchmark, *_ in ROWS.values())


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda file: file.stem)
def test_a_plot_says_what_is_measured_and_names_the_contenders(file: Path, tmp_path: Path) -> None:
    result = Result.load(file)

    draw(result, tmp_path)

    drawn = (tmp_path / f"{result.name}.svg").read_text()
    assert result.about.strip().partition("\n")[0].removesuffix(".") in drawn
    assert not re.search(r">\s*(peer|ours)\b", drawn)
    assert _without_ids((ROOT / "benchmarks" / "plots" / f"{result.name}.svg").read_text()) == _without_ids(drawn)


def _without_ids(drawn: str) -> str:
    # Matplotlib's ids are hashes of coordinates, whose last digits differ from processor to processor.
    return re.sub(r"\b[mp][0-9a-f]{10}\b", "", drawn)


def test_one_size_is_drawn_as_bars_and_the_readme_shows_one_chart(tmp_path: Path) -> None:
    draw(result_of("import_time"), tmp_path)
    draw_headline(result_of("write_partition"), tmp_path)

    # Bars have their names below them and their values above, and no axis of sizes.
    bars = (tmp_path / "import_time.svg").read_text()
    assert "(no size)" not in bars
    assert f">{format_number(round(result_of('import_time').curves[0].median(1, OURS) or 0, 2))}<" in bars
    assert "Time to replace one day" in (tmp_path / "fast.svg").read_text()
    assert "](benchmarks/plots/fast.svg)" in (ROOT / "README.md").read_text()

"""The README's figures are those that were measured."""

import re
from pathlib import Path

import pytest

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

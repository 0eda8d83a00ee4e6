"""Every benchmark runs at its tiniest size; how fast is not asked here."""

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES, main
from benchmarks.lake import Lake, RowsDifferError
from benchmarks.measure import Effort, median, spread, take_turns
from benchmarks.results import Curve, Point, Target
from benchmarks.workers import tables

# The others start Spark or many processes, or repeat what this one shows of the runner.
LIGHT = ("write_partition",)
HEAVY = tuple(name for name in NAMES if name not in LIGHT)


def check(folder: Path, name: str) -> None:
    result = json.loads((folder / "results" / f"{name}.json").read_text())
    assert result["quick"]
    assert all(samples for curve in result["curves"] for p in curve["points"] for samples in p["samples"].values())
    assert result["targets"]
    assert f"\n## {name}\n" in (folder / "results.md").read_text()
    assert "<svg" in (folder / "plots" / f"{name}.svg").read_text()


@pytest.mark.slow
def test_light_benchmarks_run_and_write_their_results(tmp_path: Path) -> None:
    main([*LIGHT, "--quick", "--without-peer", "--into", str(tmp_path)])

    for name in LIGHT:
        check(tmp_path, name)


@pytest.mark.slow
def test_heavy_benchmarks_run_and_write_their_results(tmp_path: Path) -> None:
    main([*HEAVY, "--quick", "--without-peer", "--into", str(tmp_path)])

    for name in HEAVY:
        check(tmp_path, name)


def test_contenders_take_turns_and_none_is_always_first() -> None:
    order: list[str] = []

    def turn(name: str) -> dict[str, float]:
        order.append(name)
        return {"seconds": 1.0}

    turns = {name: partial(turn, name) for name in ("a", "b")}
    samples = take_turns("nothing", turns, Effort(rounds=3, warm_ups=1))

    assert "".join(order) == "baabbaab"
    assert {name: len(each) for name, each in samples.items()} == {"a": 3, "b": 3}


def test_slow_contenders_get_fewer_rounds_and_never_fewer_than_the_least() -> None:
    samples = take_turns("nothing", {"a": lambda: {"seconds": 1.0}}, Effort(rounds=9, least=2, seconds=0, warm_ups=0))

    assert len(samples["a"]) == 2


def test_the_median_and_the_distance_of_the_quartiles() -> None:
    assert median([3, 1, 2, 100]) == 2.5
    assert spread([1, 2, 3, 4, 5]) == 2
    assert spread([1, 2]) is None


def test_a_target_is_met_when_the_ratio_of_medians_stays_below_it() -> None:
    curve = Curve("writes", "rows", "s", [Point(10, {"ours": [1, 2, 9], "raw": [4, 4, 4]})])

    assert Target("", curve.ratio(10, "ours", to="raw"), 0.5).met
    assert not Target("", curve.ratio(10, "ours", to="raw"), 0.4).met
    assert Target("", curve.ratio(20, "ours", to="raw"), 0.5).met is None


def test_contenders_that_end_with_different_rows_are_reported_apart(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for table, days in (("left", 3), ("right", 4)):
        tables.create(lake.settings, table)
        tables.age(lake.settings, table, 0, days, 10)

    with pytest.raises(RowsDifferError, match="'right' does not hold the rows of 'left'"):
        lake.check_equal_rows("left", "right")
    lake.close()


def test_a_frozen_table_comes_back_with_files_that_were_deleted(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    tables.create(lake.settings, "orders")
    tables.age(lake.settings, "orders", 0, 3, 10)
    frozen, before = lake.freeze("orders"), lake.digest("orders")
    tables.age(lake.settings, "orders", 3, 5, 10)
    for file in lake.warehouse.rglob("*.parquet"):
        file.unlink()

    frozen.thaw("orders")

    assert lake.digest("orders") == before
    lake.close()

"""Which tests run on a lake of real servers, and what the closing lines say about those that did and did not run."""

import os
from typing import NamedTuple, NoReturn

import pytest
from support.servers.running import ServerMissing

LAKE = pytest.StashKey[str]()
"""The lake of this run."""
FIGURES = "figures"
"""Property of a test that the closing lines show."""
SERVED = ("rest", "gateway")


class LeftOut(NamedTuple):
    """Tests that do not run on some lakes: the beginning of their ids, the lakes, and why."""

    beginning: str
    lakes: tuple[str, ...]
    reason: str


_MANAGER = "tests/integration/manager/test_manager_"
_WRITTEN_BY_SERVER = "the server writes that file, out of reach of the fault"
_FORGED = "it forges history, with times that the server does not take"
LEFT_OUT = (
    LeftOut(
        f"{_MANAGER}catalog.py::test_a_corrupt_metadata_file",
        SERVED,
        "the server reads the file itself, twenty times over minutes, before it responds",
    ),
    LeftOut(
        f"{_MANAGER}faults.py::test_a_full_disk_leaves_the_table_and_the_warehouse_as_they_were[metadata-",
        SERVED,
        _WRITTEN_BY_SERVER,
    ),
    LeftOut(f"{_MANAGER}faults.py::test_a_table_whose_metadata_cannot_be_written", SERVED, _WRITTEN_BY_SERVER),
    LeftOut(f"{_MANAGER}faults.py::test_a_full_disk_is_not_tried_again", SERVED, _WRITTEN_BY_SERVER),
    LeftOut(f"{_MANAGER}snapshots.py::test_the_order_is_that_of_commits_whatever_clocks_say", SERVED, _FORGED),
    LeftOut(f"{_MANAGER}snapshots.py::test_any_of_a_hundred_snapshots", SERVED, _FORGED),
    LeftOut(f"{_MANAGER}snapshots.py::test_a_rollback_in_time_finds_what_main_was_then", SERVED, _FORGED),
)


def runs_on(lake: str, item: pytest.Item) -> bool:
    """Whether a test has something to say about a lake."""
    if lake == "sqlite":
        return True
    left_out = any(item.nodeid.startswith(case.beginning) for case in LEFT_OUT if lake in case.lakes)
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("lakes") is not None and "place" in fixtures and not left_out


def print_what_did_not_run(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Nothing is left out silently."""
    lake = config.stash[LAKE]
    if lake != "sqlite":
        reporter.section(f"on the lake '{lake}'")
        reporter.line("Only the tests marked `lakes`: those of what a catalog or a store can change.")
        for case in LEFT_OUT:
            if lake in case.lakes:
                reporter.line(f"Not {case.beginning}: {case.reason}.")
    else:
        reporter.line("On SQLite and files. `make test-lakes` holds the same promises on PostgreSQL, REST and S3.")


def print_figures(reporter: pytest.TerminalReporter) -> None:
    """What tests that count something have counted; under xdist they cannot print it themselves."""
    lines = [
        f"{report.nodeid.partition('::test_')[2].partition('_whose')[0]}: {figures}"
        for report in reporter.getreports("passed")
        for name, figures in report.user_properties
        if name == FIGURES
    ]
    if lines:
        reporter.section("figures")
    for line in lines:
        reporter.line(line)


def skip_unless_ci(missing: ServerMissing) -> NoReturn:
    """Skip where a server is missing, with a note in the closing lines; continuous integration must have all."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        raise missing
    pytest.skip(str(missing))

"""The requirement marks on our tests match the rows of the requirements."""

import gc
from pathlib import Path

import pytest

from scripts import requirement_rows

IDS = requirement_rows.read_ids(requirement_rows.IDS)
UNPROVEN = requirement_rows.read_ids(requirement_rows.UNPROVEN)


@pytest.fixture(scope="module")
def named() -> list[requirement_rows.Naming]:
    # Python 3.11 fails to parse when a finalizer of another test's garbage happens to run meanwhile.
    gc.collect()
    return list(requirement_rows.namings())


def test_every_row_that_a_test_names_exists(named: list[requirement_rows.Naming]) -> None:
    unknown = requirement_rows.unknown_rows(named, IDS)

    assert not unknown, "\n".join(unknown)


@pytest.mark.requirement("S1-T102-107")
def test_a_row_that_no_test_names_is_on_the_open_list(named: list[requirement_rows.Naming]) -> None:
    lost = set(requirement_rows.promises(IDS)) - {naming.row for naming in named} - set(UNPROVEN)

    assert not lost, f"No test names {sorted(lost)}. A proof went missing; the open list only shrinks."


def test_the_open_list_holds_no_row_that_a_test_names(named: list[requirement_rows.Naming]) -> None:
    proven = set(UNPROVEN) & {naming.row for naming in named}

    assert not proven, f"{sorted(proven)} have a test now. Run `make rows` to take them off the open list."


def test_the_lists_hold_each_row_once_and_no_other() -> None:
    assert len(IDS) == len(set(IDS))
    assert len(UNPROVEN) == len(set(UNPROVEN))
    assert set(UNPROVEN) <= set(requirement_rows.promises(IDS))


def test_our_copy_of_the_ids_is_that_of_the_requirements() -> None:
    # Only a workplace that has the requirements beside the checkout can compare; a lone clone trusts its copy.
    source = requirement_rows.SOURCE

    assert not source.exists() or requirement_rows.ids_in(source.read_text()) == IDS


def test_an_id_is_the_first_word_of_a_tables_first_column() -> None:
    table = (
        "| id | must work |\n|---|---|\n| S1-T018/19 | a |\n| S4-append / overwrite | b |\n| D1 | c |\n| X12 | d |\n"
        "Text about S2-FR-001 | that is no row |\n"
    )

    assert requirement_rows.ids_in(table) == ["S1-T018/19", "S4-append", "D1", "X12"]
    assert requirement_rows.promises(["D1", "X12"]) == ["D1"]


def test_marks_are_found_on_functions_modules_and_parameters(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_some.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.requirement('D1')\n"
        "@pytest.mark.requirement('D2', 'D3')\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.requirement('D4'))])\n"
        "def test_x(x): ...\n"
    )

    assert {naming.row for naming in requirement_rows.namings(tests)} == {"D1", "D2", "D3", "D4"}
    assert "tests/test_some.py:3" in {naming.place for naming in requirement_rows.namings(tests)}


def test_an_unknown_row_is_reported_with_its_place_and_similar_ids() -> None:
    named = [requirement_rows.Naming("S2-FR-0016", "tests/test_some.py:3")]

    assert requirement_rows.unknown_rows(named, ["S2-FR-016", "D1"]) == [
        "tests/test_some.py:3 names 'S2-FR-0016', which is not a requirement. Similar ids: S2-FR-016."
    ]

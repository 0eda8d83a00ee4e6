"""`make demo` once more, on what it built before."""

import pytest
from demo_folder import DemoFolder


@pytest.mark.requirement("S2-SC-001")
def test_a_second_run_of_the_demo_commits_nothing(demo: DemoFolder) -> None:
    before = demo.pointers("bronze", "silver", "gold")

    printed = demo.build()

    assert len(before) == 13
    assert demo.pointers("bronze", "silver", "gold") == before
    assert "Everything was up to date." in printed

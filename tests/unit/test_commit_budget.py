"""How long a commit keeps trying against other writers."""

import pytest
from hypothesis import given, strategies as st

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.commit.commit import CommitBudget, new_snapshot_id

RETRIES = st.integers(1, 10)
DELAYS = st.floats(0.1, 30)


@pytest.mark.requirement("S0-W2", "S1-T009", "S1-T058a/62")
def test_the_default_is_three_retries_and_the_delays_of_one_two_and_four_seconds() -> None:
    budget = CommitBudget.from_config(IcebergTableManagerConfig())

    assert (budget.retries, budget.base_delay_seconds, budget.total_seconds) == (3, 1.0, 7.0)


@pytest.mark.requirement("S2-FR-029", "S1-T009")
@given(RETRIES, DELAYS, st.floats(0, 1e6))
def test_the_retries_that_were_promised_are_always_made(retries: int, delay: float, waited: float) -> None:
    budget = CommitBudget(retries, delay)

    assert all(budget.allows(attempts, waited) for attempts in range(1, retries + 1))


@pytest.mark.requirement("S2-FR-029")
@given(RETRIES, DELAYS)
def test_there_are_more_until_the_delays_have_been_waited_and_then_no_more(retries: int, delay: float) -> None:
    budget = CommitBudget(retries, delay)

    assert budget.allows(retries + 50, budget.total_seconds * 0.99)
    assert not budget.allows(retries + 1, budget.total_seconds)


@pytest.mark.requirement("S2-FR-029", "S1-T058a/62")
@given(RETRIES, DELAYS, st.integers(1, 100_000))
def test_a_wait_is_never_longer_than_the_base_delay_however_many_there_were(
    retries: int, delay: float, attempts: int
) -> None:
    assert 0 < CommitBudget(retries, delay).wait_seconds(attempts) <= delay


@pytest.mark.requirement("S2-FR-029", "S1-T058a/62")
def test_waits_grow_until_they_reach_the_base_delay() -> None:
    budget = CommitBudget(3, 1.0)
    longest = [max(budget.wait_seconds(attempts) for _ in range(300)) for attempts in (1, 3, 5, 9)]

    assert longest == sorted(longest)
    assert longest[0] <= 0.04
    assert longest[-1] > 0.8


def test_snapshot_ids_are_positive_and_differ() -> None:
    ids = {new_snapshot_id() for _ in range(1000)}

    assert len(ids) == 1000
    assert all(0 < snapshot_id < 2**63 for snapshot_id in ids)

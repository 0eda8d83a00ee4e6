"""A lake that others write, and a Dagster instance of its own for each test."""

from collections.abc import Iterator

import dagster as dg
import pytest
from support.lake import Lake
from support.observed_lake import ObservedLake


@pytest.fixture
def observed(lake: Lake) -> Iterator[ObservedLake]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield ObservedLake(lake, instance)

"""A second process writes a table with raw PyIceberg or raw Spark while it is observed."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import pytest
from support.foreign_process import OPERATIONS, TABLE, foreign_process
from support.lake import Lake
from support.observed_lake import ObservedLake

ENGINES = ["pyiceberg", pytest.param("spark", marks=pytest.mark.slow)]
CHANGE_ROWS = {"append", "overwrite", "rollback", "recreate"}


def without_repeats(versions: Iterable[str]) -> list[str]:
    return [version for version, _ in groupby(versions)]


def is_subsequence(part: Iterable[str], of: Iterable[str]) -> bool:
    whole: Iterator[str] = iter(of)
    return all(each in whole for each in part)


@pytest.mark.parametrize("engine", ENGINES)
def test_data_versions_change_exactly_when_rows_do(observed: ObservedLake, lake: Lake, engine: str) -> None:
    with foreign_process(engine, lake.warehouse.parent) as process:
        before = process.do("recreate")
        assert observed.version() == before
        expected = [before]
        for operation in OPERATIONS:
            expected.append(process.do(operation))
            assert observed.version() == expected[-1], operation
            assert (expected[-1] != expected[-2]) is (operation in CHANGE_ROWS), operation

    stored = [version for _, version in observed.materialized()]
    assert without_repeats([before, *stored]) == without_repeats(expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_observation_while_the_other_process_writes_sees_only_versions_that_were(
    observed: ObservedLake, lake: Lake, engine: str
) -> None:
    job = observed.definitions().resolve_job_def("iceberg_observations_job")
    with foreign_process(engine, lake.warehouse.parent) as process, ThreadPoolExecutor(1) as thread:
        versions = [process.do("append")]
        operations = OPERATIONS * 3
        process.begin(operations)
        waiting = thread.submit(lambda: [process.next_version() for _ in operations])
        while not waiting.done():
            result = job.execute_in_process(instance=observed.instance, raise_on_error=False)
            if not result.success:
                # It looked between the drop and the creation.
                (failure,) = [event for event in result.all_node_events if event.is_step_failure]
                assert f"Table '{TABLE}' was not observed" in str(failure.event_specific_data)
        versions += waiting.result()
    assert observed.version() == versions[-1]

    stored = [version for _, version in observed.materialized()]
    assert stored == without_repeats(stored)
    assert is_subsequence(stored, without_repeats(versions))

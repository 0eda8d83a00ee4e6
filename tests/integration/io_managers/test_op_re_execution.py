"""A run that is executed again from its failure reads the outputs that its parent stored, in one process or several."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, ReexecutionOptions, build_reconstructable_job, execute_job
from support.op_pipeline import break_clean, received

pytestmark = pytest.mark.requirement("S2-FR-022", "S4-load_input")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        yield instance


@pytest.mark.parametrize(
    ("engine", "executor"),
    [
        ("arrow", "in_process"),
        ("spark", "in_process"),
        pytest.param("arrow", "multiprocess", marks=pytest.mark.slow),
    ],
)
def test_a_re_execution_reads_the_outputs_of_the_run_that_failed(
    tmp_path: Path, instance: DagsterInstance, engine: str, executor: str
) -> None:
    job = build_reconstructable_job("support.op_pipeline", "build_job", (str(tmp_path), engine, executor))
    break_clean(tmp_path, broken=True)
    with execute_job(job, instance, raise_on_error=False) as failed:
        assert not failed.success
    break_clean(tmp_path, broken=False)
    # Another run comes between, and replaces the rows in the tables.
    with execute_job(job, instance) as between:
        assert between.success

    again = ReexecutionOptions.from_failure(failed.run_id, instance)
    with execute_job(job, instance, reexecution_options=again) as result:
        assert result.success

    # The run between fetched anew; the re-execution used what the first run had fetched.
    assert received(tmp_path) == [[2], [1]]

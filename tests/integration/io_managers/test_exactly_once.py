"""A piece of work is written once, whatever breaks and however it is retried: never two copies, never none."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    JobExecutionResult,
    ReexecutionOptions,
    build_output_context,
    build_reconstructable_job,
    execute_job,
)
from support import io_pipeline
from support.io_pipeline import Fault, add_row, plan_breakdowns, plan_faults
from support.processes import running, wait_until

from floe_dagster_iceberg.run_identity import RunIdentity, build_idempotency_key

pytestmark = pytest.mark.requirement("S2-FR-022", "S2-FR-026", "S2-FR-029", "S2-US5.4")

RETRY = {"dagster/retry_number": "1"}


@dataclass
class Runs:
    """Runs of a job of the pipeline on an instance on disk."""

    instance: DagsterInstance
    job: str = "pipeline"

    def start(self, **options: Any) -> JobExecutionResult:
        job = build_reconstructable_job("support.io_pipeline", "build_pipeline", (str(io_pipeline.lake()), self.job))
        with execute_job(job, self.instance, **options) as result:
            return result

    def start_process(self) -> int:
        """Run the job in a process of its own; the exit code, negative for a signal."""
        command = [sys.executable, io_pipeline.__file__, self.job]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, check=False, env=environment).returncode

    def close_killed_run(self) -> str:
        """Do what Dagster's run monitoring does when a process is gone."""
        (run,) = self.instance.get_runs(limit=1)
        assert run.status is DagsterRunStatus.STARTED
        self.instance.report_run_failed(run)
        return run.run_id

    def from_failure(self, run_id: str, **options: Any) -> JobExecutionResult:
        again = ReexecutionOptions.from_failure(run_id, self.instance)
        return self.start(reexecution_options=again, **options)

    def of_all_steps(self, run_id: str, **options: Any) -> JobExecutionResult:
        return self.start(reexecution_options=ReexecutionOptions(parent_run_id=run_id), **options)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterInstance]:
    with DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as instance:
        yield instance


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance) -> Runs:
    monkeypatch.setenv(io_pipeline.LAKE, str(tmp_path))
    monkeypatch.setenv(io_pipeline.HOME, instance.root_directory)
    return Runs(instance)


def rows(table: str) -> list[int]:
    """Which computations the rows of a table come from."""
    with closing(io_pipeline.open_catalog()) as catalog:
        found = catalog.load_table(f"public.{table}").scan().to_arrow()
    return sorted(found.column(0).to_pylist())


def shown(result: JobExecutionResult, table: str) -> dict[str, Any]:
    """The metadata of the last materialization of a table."""
    events = [event for event in result.all_events if event.is_step_materialization]
    found = [event for event in events if event.asset_key is not None and event.asset_key.path == [table]]
    return {key: entry.value for key, entry in found[-1].materialization.metadata.items()}


def test_an_asset_is_the_same_work_whichever_step_makes_it() -> None:
    """Of a multi-asset, a retry from the failed assets may be cut into other steps than the first run."""
    output = build_output_context(asset_key="orders")
    steps = [RunIdentity(run_id="second", work_id="first", step_key=key) for key in ("both", "both_2")]

    assert len({build_idempotency_key(output, run, ["2024-01-01"]) for run in steps}) == 1
    assert build_idempotency_key(output, steps[0], ["2024-01-02"]) != build_idempotency_key(output, steps[0], [])


def test_a_step_that_asks_for_a_retry_after_a_commit(runs: Runs) -> None:
    plan_breakdowns("retry", "retry")

    result = runs.start()

    assert result.success
    assert (rows("left"), rows("right")) == ([1], [3])
    assert shown(result, "left")["iceberg/deduplicated"] is True
    assert "iceberg/commit_attempts" not in shown(result, "left")
    assert "iceberg/deduplicated" not in shown(result, "right")


def test_a_run_that_dagster_retries(runs: Runs) -> None:
    plan_breakdowns("fail")
    failed = runs.start()

    again = runs.of_all_steps(failed.run_id, tags=RETRY)

    assert not failed.success
    assert (rows("left"), rows("right"), rows("report")) == ([1], [2], [1])
    assert shown(again, "left")["iceberg/deduplicated"] is True


def test_a_retry_of_a_retry(runs: Runs) -> None:
    plan_breakdowns("fail", "fail")
    first = runs.start()
    second = runs.of_all_steps(first.run_id, tags=RETRY)

    runs.of_all_steps(second.run_id, tags={"dagster/retry_number": "2"})

    assert (rows("left"), rows("right")) == ([1], [3])


def test_a_run_that_is_executed_again_from_its_failure(runs: Runs) -> None:
    plan_breakdowns("fail", "fail")
    first = runs.start()
    second = runs.from_failure(first.run_id)

    third = runs.from_failure(second.run_id, tags={"dagster/is_resume_retry": "true"})

    assert third.success
    assert (rows("left"), rows("right")) == ([1], [3])
    assert shown(third, "left")["iceberg/deduplicated"] is True


def test_executing_all_steps_again_is_new_work(runs: Runs) -> None:
    first = runs.start()
    second = runs.of_all_steps(first.run_id)

    assert second.success
    assert (rows("left"), rows("right"), rows("report")) == ([1, 2], [1, 2], [1, 2])


def test_a_retry_of_new_work_does_not_count_as_the_old_work(runs: Runs) -> None:
    first = runs.start()
    plan_breakdowns("fail")
    second = runs.of_all_steps(first.run_id)

    runs.from_failure(second.run_id, tags={"dagster/is_resume_retry": "true"})

    assert (rows("left"), rows("right")) == ([1, 2], [1, 3])


def test_executing_all_steps_of_a_retried_run_again_is_new_work(runs: Runs) -> None:
    plan_breakdowns("fail")
    first = runs.start()
    second = runs.of_all_steps(first.run_id, tags=RETRY)

    # Dagster copies some tags of the run that is executed again.
    runs.of_all_steps(second.run_id, tags={"dagster/is_asset_resume_retry": "true"})

    assert (rows("left"), rows("right")) == ([1, 3], [2, 3])


@pytest.mark.parametrize(
    ("existing", "fault", "expected"),
    [
        pytest.param(False, "die after", [1], id="after creating the table"),
        pytest.param(False, "die before", [2], id="before creating the table", marks=pytest.mark.slow),
        pytest.param(True, "die after", [1, 2], id="after appending", marks=pytest.mark.slow),
        pytest.param(True, "die before", [1, 3], id="before appending", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_is_killed(runs: Runs, *, existing: bool, fault: Fault, expected: list[int]) -> None:
    if existing:
        runs.start()
    plan_faults(fault)
    assert runs.start_process() == -signal.SIGKILL

    again = runs.from_failure(runs.close_killed_run())

    assert again.success
    assert rows("left") == expected
    assert ("iceberg/deduplicated" in shown(again, "left")) is (fault == "die after")


def test_commits_whose_responses_are_lost(runs: Runs) -> None:
    """Of one commit that landed and one that did not, both of a new table and then of one that is there."""
    for _ in range(2):
        plan_faults("lost after", "lost before")
        result = runs.start()

    assert (rows("left"), rows("right")) == ([1, 2], [1, 2])
    assert shown(result, "right")["iceberg/commit_attempts"] == 2


@pytest.mark.parametrize(
    "existing", [pytest.param(False, id="new table"), pytest.param(True, id="existing table", marks=pytest.mark.slow)]
)
def test_commits_after_which_the_catalog_is_gone(runs: Runs, *, existing: bool) -> None:
    if existing:
        runs.start()
    plan_faults("gone after")
    first = runs.start()
    plan_faults("gone before")
    second = runs.from_failure(first.run_id)

    third = runs.from_failure(second.run_id)

    assert [run.success for run in (first, second, third)] == [False, False, True]
    assert len(rows("left")) == len(rows("right")) == 1 + existing
    assert shown(third, "left")["iceberg/deduplicated"] is True


def test_responses_that_keep_getting_lost(runs: Runs) -> None:
    plan_faults("lost before", "lost before", "lost after")

    result = runs.start()

    assert rows("left") == [1]
    assert shown(result, "left")["iceberg/commit_attempts"] == 3


def test_an_unknown_outcome_says_what_to_do_next(runs: Runs) -> None:
    plan_faults("gone after")

    result = runs.start()

    (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None
    assert "It is unknown whether the commit to 'public.left' succeeded" in str(failure.user_failure_data.description)
    assert "if it is there, the commit is complete; if not, run it again" in str(failure.user_failure_data.description)
    assert failure.user_failure_data.metadata["iceberg/retryable"].value is True


@pytest.fixture
def follow(runs: Runs) -> Runs:
    """Runs of the asset that reads what was added to `left`, which has a row already."""
    with closing(io_pipeline.open_catalog()) as catalog:
        catalog.create_namespace("public")
        catalog.create_table("public.left", pa.schema([("computed", pa.int64())]))
    add_row(0)
    return replace(runs, job="follow")


def test_a_re_execution_reads_the_changes_that_the_failed_run_read(follow: Runs) -> None:
    follow.start()
    add_row(1)
    plan_breakdowns("fail")
    failed = follow.start()
    # Without the failure, this row would have been the next run's.
    add_row(2)

    again = follow.from_failure(failed.run_id)

    assert (failed.success, again.success) == (False, True)
    assert rows("copy") == [0, 1]
    assert shown(again, "copy")["iceberg/changes_behind"] == 1
    follow.start()
    assert rows("copy") == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_changes_are_read_once_although_their_reader_is_killed_at_random(follow: Runs, seed: int) -> None:
    chance, numbers = random.Random(seed), iter(range(1, 100))  # noqa: S311 - not for secrets
    for _ in range(4):
        add_row(next(numbers))
        plan_faults(fault := chance.choice(["die before", "die after"]))
        assert follow.start_process() == -signal.SIGKILL, fault
        killed = follow.close_killed_run()
        for _ in range(chance.randrange(2)):
            add_row(next(numbers))
        # A retry repeats the killed run; a run of a schedule knows nothing of it.
        assert (follow.from_failure(killed) if chance.random() < 0.5 else follow.start()).success

    follow.start()
    assert rows("copy") == rows("left")
    assert len(rows("copy")) == next(numbers)


def follow_until_killed(first: int, log: Path, chance: random.Random) -> None:
    """Add rows and copy them with Spark, in a process that is killed with its JVM or leaves that behind."""
    command = [sys.executable, io_pipeline.__file__, "follow_spark", str(first)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with running(command, log, environment) as process:
        # The first run is slow. What is left of the second one takes less than a second: read, write, commit, events.
        wait_until(lambda: log.read_text().count(io_pipeline.READING) > 1, seconds=180, what="The second run")
        time.sleep(chance.uniform(0, 0.8))
        program = psutil.Process(process.pid)
        jvm = program.children(recursive=True) if chance.random() < 0.5 else []
        for each in [program, *jvm]:
            each.kill()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_changes_are_read_once_although_their_reader_on_spark_is_killed_at_random(follow: Runs, tmp_path: Path) -> None:
    chance, on_spark, interrupted = random.Random(7), replace(follow, job="follow_spark"), 0  # noqa: S311 - repeatable
    for first in (100, 200, 300):
        follow_until_killed(first, tmp_path / f"killed-at-{first}.log", chance)
        (last,) = follow.instance.get_runs(limit=1)
        is_started = last.status is DagsterRunStatus.STARTED
        interrupted += is_started
        # There is nothing to repeat of a step that is done.
        steps_done = follow.instance.all_logs(last.run_id, of_type=DagsterEventType.STEP_SUCCESS)
        if is_started and not steps_done and chance.random() < 0.7:
            again = on_spark.from_failure(on_spark.close_killed_run())
        else:
            again = on_spark.start()
        assert again.success
        assert rows("copy") == rows("left")

    assert interrupted, "each process was killed between two runs"
    with closing(io_pipeline.open_catalog()) as catalog:
        source, copied = (catalog.load_table(f"public.{name}") for name in ("left", "copy"))
    cursor = f"{source.metadata.table_uuid}/{source.metadata.current_snapshot_id}"
    assert copied.current_snapshot().summary["floe.cursor.public.left"] == cursor


def refs_of_audited(table: str = "audited") -> set[str]:
    with closing(io_pipeline.open_catalog()) as catalog:
        return set(catalog.load_table(f"public.{table}").metadata.refs)


@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize(
    ("faults", "breakdowns"),
    [
        (["die before"], []),
        (["die after"], []),
        ([], ["die"]),
        (["none", "die before"], []),
        (["none", "die after"], []),
    ],
    ids=["before the audit", "audit written", "check running", "before publication", "after publication"],
)
@pytest.mark.slow
def test_an_audit_that_is_killed_publishes_once_when_it_is_retried(
    runs: Runs,
    faults: list[Fault],
    breakdowns: list[str],
    has_rows: bool,  # noqa: FBT001
) -> None:
    audits = replace(runs, job="audit")
    earlier = [1] if has_rows else []
    if has_rows:
        assert audits.start().success
    plan_faults(*faults)
    plan_breakdowns(*breakdowns)

    assert audits.start_process() == -signal.SIGKILL
    killed = audits.close_killed_run()
    again = audits.from_failure(killed)

    # The first commit that landed is the one that counts.
    written = len(earlier) + (2 if faults == ["die before"] else 1)
    assert (again.success, rows("audited")) == (True, [*earlier, written])
    assert refs_of_audited() == {"main"}


def test_an_audit_whose_check_asks_for_a_retry_writes_its_rows_once(runs: Runs) -> None:
    plan_breakdowns("retry")

    result = replace(runs, job="audit").start()

    assert (result.success, rows("audited"), refs_of_audited()) == (True, [1], {"main"})


@pytest.mark.slow
def test_an_audit_in_a_process_of_its_own(runs: Runs) -> None:
    plan_breakdowns("retry")

    result = replace(runs, job="audit_apart").start()

    assert (result.success, rows("audited"), refs_of_audited()) == (True, [1], {"main"})


def test_rejected_rows_are_not_published_by_a_re_execution(runs: Runs) -> None:
    audits = replace(runs, job="audit")
    assert audits.start().success
    plan_breakdowns("refuse")
    refused = audits.start(raise_on_error=False)

    again = audits.from_failure(refused.run_id)

    assert (refused.success, again.success) == (False, True)
    assert rows("audited") == [1, 3]
    (kept,) = refs_of_audited() - {"main"}
    assert kept.startswith("floe-rejected-")


@pytest.mark.parametrize("fault", ["lost before", "lost after"])
def test_a_lost_response_to_a_publication_publishes_once(runs: Runs, fault: Fault) -> None:
    plan_faults("none", fault)

    result = replace(runs, job="audit").start()

    assert (result.success, rows("audited"), refs_of_audited()) == (True, [1], {"main"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "breakdowns"),
    # The first commit that is not Spark's creates the branch.
    [([], ["die"]), (["none", "die after"], [])],
    ids=["check running", "after publication"],
)
def test_an_audit_on_spark_that_is_killed_publishes_once_when_it_is_retried(
    runs: Runs, faults: list[Fault], breakdowns: list[str]
) -> None:
    audits = replace(runs, job="audit_spark")
    assert audits.start().success
    plan_faults(*faults)
    plan_breakdowns(*breakdowns)

    assert audits.start_process() == -signal.SIGKILL
    again = audits.from_failure(audits.close_killed_run())

    assert (again.success, rows("audited"), refs_of_audited()) == (True, [1, 2], {"main"})


def assert_both_tables_have(*computed: int) -> None:
    assert (rows("orders"), rows("lines")) == (list(computed), list(computed))
    assert (refs_of_audited("orders"), refs_of_audited("lines")) == ({"main"}, {"main"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "faults", "computed"),
    [
        # Rows of two attempts do not belong together, so that those of the first are written again.
        pytest.param("audit_together", ["die after"], 2, id="one audit written"),
        pytest.param("audit_together", ["none", "none", "die before"], 1, id="before publication"),
        pytest.param("audit_together", ["none", "none", "die after"], 1, id="after publication"),
        pytest.param("audit_one_by_one", ["none", "none", "die after"], 1, id="between two publications"),
    ],
)
def test_tables_of_one_step_that_is_killed_show_the_rows_of_one_attempt(
    runs: Runs, job: str, faults: list[Fault], computed: int
) -> None:
    audits = replace(runs, job=job)
    plan_faults(*faults)

    assert audits.start_process() == -signal.SIGKILL
    again = audits.from_failure(audits.close_killed_run())

    assert again.success
    assert_both_tables_have(computed)
    at_once = job == "audit_together"
    assert [shown(again, table)["iceberg/published_at_once"] for table in ("orders", "lines")] == [at_once] * 2


@pytest.mark.parametrize("job", ["audit_together", "audit_one_by_one"])
@pytest.mark.parametrize("fault", ["lost before", "lost after", "gone after"])
def test_a_lost_response_to_a_publication_of_two_tables_publishes_both_once(runs: Runs, job: str, fault: Fault) -> None:
    audits = replace(runs, job=job)
    plan_faults("none", "none", fault)

    result = audits.start()
    if not result.success:
        result = audits.from_failure(result.run_id)

    assert result.success
    assert_both_tables_have(1)

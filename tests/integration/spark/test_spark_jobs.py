"""Spark's own UI, event log and history name the asset behind a job, and traces show what Spark did."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.span_tree import SpanRecorder
from support.spark_lake import SparkLake, keyed

from floe_dagster_iceberg.telemetry import Telemetry, attributes as attrs


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    return SparkLake.open(tmp_path)


def jobs_with_tag(session: SparkSession, tag: str) -> Iterator[Any]:
    jobs = session.sparkContext._jsc.sc().statusStore().jobsList(None)
    for number in range(jobs.size()):
        job = jobs.apply(number)
        if job.jobTags().contains(tag):
            yield job


@pytest.mark.requirement("S2-US7.1")
@pytest.mark.parametrize("before", [None, ""], ids=["no description before", "an empty description before"])
def test_jobs_are_tagged_with_trace_and_run_and_described_in_words(lake: SparkLake, before: str | None) -> None:
    recorder, run_id = SpanRecorder(), "6d0cf0a5"
    frame = lake.frame({"id": [1, 2]})
    lake.session.sparkContext.setLocalProperty("spark.job.description", before)

    with Telemetry(recorder.tracer).operation("handle_output", {attrs.RUN_ID: run_id}):
        lake.write(frame)

    (trace_id,) = recorder.trace_ids()
    jobs = [*jobs_with_tag(lake.session, f"floe.trace-id={trace_id}")]
    assert jobs
    assert all(job.jobTags().contains(f"dagster.run-id={run_id}") for job in jobs)
    assert {job.description().get() for job in jobs} == {f"iceberg.overwrite public.events for Dagster run {run_id}"}
    assert len(lake.session.sparkContext.getJobTags()) == 0
    lake.session.sparkContext.setLocalProperty("spark.job.description", None)


@pytest.mark.requirement("S2-FR-041")
def test_rows_that_are_replaced_on_a_branch_leave_all_their_spans(lake: SparkLake) -> None:
    rows = pa.table({"region": ["eu", "us"], "id": [1, 2]})
    lake.create(rows.schema, rows)
    recorder = SpanRecorder()

    with Telemetry(recorder.tracer).operation("handle_output"):
        lake.write(lake.frame({"region": ["eu"], "id": [3]}), rows=keyed("region", "eu"))

    (tree,) = recorder.trees()
    assert [(child.name, child.attributes.get("engine", "pyiceberg")) for child in tree.children] == [
        ("iceberg.commit", "pyiceberg"),
        ("iceberg.commit", "pyiceberg"),
        ("iceberg.delete", "spark"),
        ("iceberg.append", "spark"),
        ("iceberg.commit", "pyiceberg"),
    ]
    _, *ours = lake.table().metadata.snapshots
    assert {snapshot.summary["floe.trace-id"] for snapshot in ours} == recorder.trace_ids()
    assert len(ours) == 2


def test_a_description_of_the_user_stays(lake: SparkLake) -> None:
    recorder, context = SpanRecorder(), lake.session.sparkContext
    frame = lake.frame({"id": [1, 2]})
    context.setJobDescription("my nightly job")
    try:
        with Telemetry(recorder.tracer).operation("handle_output"):
            lake.write(frame)
    finally:
        context.setLocalProperty("spark.job.description", None)

    (trace_id,) = recorder.trace_ids()
    jobs = jobs_with_tag(lake.session, f"floe.trace-id={trace_id}")
    assert {job.description().get() for job in jobs} == {"my nightly job"}


def test_rows_in_memory_are_checked_by_the_job_and_not_while_it_is_planned(lake: SparkLake) -> None:
    frame = lake.session.createDataFrame(pa.table({"region": ["eu"] * 3, "id": [1, 2, 3]}))
    assert frame.isLocal()

    lake.write(frame, rows=keyed("region", "eu"))

    assert "raise_error" in written_plan(lake.session)
    assert lake.table().scan().to_arrow().num_rows == 3


def written_plan(session: SparkSession) -> str:
    """What Spark did for the last frame that was written."""
    executions = session._jsparkSession.sharedState().statusStore().executionsList()
    plans = [executions.apply(number).physicalPlanDescription() for number in range(executions.size())]
    return next(plan for plan in reversed(plans) if "AppendData" in plan or "OverwriteByExpression" in plan)

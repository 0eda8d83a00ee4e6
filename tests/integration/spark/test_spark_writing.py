"""What Spark's writes promise beyond the behaviour suite: one pass, required columns, nothing left by a failure."""

import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
)
from support.processes import wait_until
from support.spark_lake import EVENTS, SparkLake, keyed

from floe_dagster_iceberg.errors import (
    IncompatibleSchemaChangeError,
    RowsOutsidePartitionError,
    SchemaEvolutionError,
    ValidationError,
    WriteError,
)
from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.models.writing import EvolutionMode, MergeRules
from floe_dagster_iceberg.table.maintenance.orphan_files import find_orphans
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout

CANARY = "canary-77ab-value"
BY_REGION = PartitionLayout.from_strings(["region"])


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    return SparkLake.open(tmp_path)


@pytest.mark.requirement("D7", "S2-FR-022")
def test_the_counts_are_those_of_the_commit(lake: SparkLake) -> None:
    frame = lake.frame({"region": ["eu", "eu", "us"], "id": [1, 2, 3]})

    first = lake.write(frame, layout=BY_REGION, mode=WriteMode.APPEND)
    again = lake.write(frame.where("region = 'eu'"), rows=keyed("region", "eu"))

    assert (first.created, first.rows, first.attempts) == (True, 3, 1)
    assert (again.created, again.rows) == (False, 2)
    assert again.snapshot.summary is not None
    assert again.snapshot.summary["total-records"] == "3"
    assert [snapshot.summary.operation.value for snapshot in lake.table().metadata.snapshots] == ["append", "overwrite"]


@pytest.mark.requirement("D7")
@pytest.mark.parametrize("rows_outside", ["error", "drop", "allow"])
def test_a_frame_is_computed_once(lake: SparkLake, rows_outside: str) -> None:
    frame, eu = lake.frame({"region": ["eu"], "id": [1]}), keyed("region", "eu")
    lake.write(frame, rows=eu)
    context = lake.session.sparkContext

    context.setJobGroup(rows_outside, "")
    try:
        lake.write(frame, rows=eu, rows_outside=rows_outside)
    finally:
        for left in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(left, None)

    assert len(context.statusTracker().getJobIdsForGroup(rows_outside)) == 1


def test_rows_that_a_join_takes_away_are_not_outside(lake: SparkLake) -> None:
    everything = lake.frame({"region": ["eu", "us"], "id": [1, 2]})
    wanted = lake.frame({"id": [1]})

    lake.write(everything.join(wanted, "id"), rows=keyed("region", "eu"))

    assert lake.rows("id", "region") == [(1, "eu")]


@pytest.mark.requirement("S2-US5.4", "S2-FR-026")
def test_a_row_outside_fails_the_write_before_it_is_committed(lake: SparkLake) -> None:
    frame = lake.frame({"region": ["eu", "us", None], "id": [1, 2, 3]})

    with pytest.raises(RowsOutsidePartitionError) as caught:
        lake.write(frame, rows=keyed("region", "eu"))

    assert (caught.value.rows, caught.value.null_rows, caught.value.columns) == (2, 1, ("region",))
    assert not lake.manager.table_exists(EVENTS)
    assert lake.files() == set()


@pytest.mark.parametrize(("rows_outside", "stored"), [("drop", 1), ("allow", 3)])
def test_rows_outside_are_counted_as_they_pass(lake: SparkLake, rows_outside: str, stored: int) -> None:
    frame = lake.frame({"region": ["eu", "us", None], "id": [1, 2, 3]})

    written = lake.write(frame, rows=keyed("region", "eu"), rows_outside=rows_outside, layout=BY_REGION)

    assert (written.rows, written.rows_outside, written.rows_dropped) == (stored, 2, 3 - stored)
    assert len(lake.rows()) == stored


def test_rows_that_are_all_dropped_are_counted_too(lake: SparkLake) -> None:
    frame = lake.frame({"region": ["us", "us"], "id": [1, 2]})

    written = lake.write(frame, rows=keyed("region", "eu"), rows_outside="drop", layout=BY_REGION)

    assert (written.rows, written.rows_dropped) == (0, 2)


def test_a_refused_frame_leaves_no_column(lake: SparkLake) -> None:
    lake.write(lake.frame({"region": ["eu"]}), rows=keyed("region", "eu"))

    with pytest.raises(RowsOutsidePartitionError):
        lake.write(lake.frame({"region": ["us"], "id": [1]}), rows=keyed("region", "eu"), properties={"a": "b"})

    assert lake.table().schema().column_names == ["region"]
    assert "a" not in lake.table().properties


@pytest.mark.requirement("S2-E2", "S2-FR-044")
def test_a_frame_that_cannot_be_computed_leaves_nothing_and_shows_no_value(lake: SparkLake) -> None:
    frame = lake.frame({"id": [CANARY] * 100}).repartition(2).select(F.col("id").cast("int"))

    with pytest.raises(
        WriteError, match=r"could not write the rows of 'public\.events' \(CAST_INVALID_INPUT\)"
    ) as caught:
        lake.write(frame)

    assert CANARY not in str(caught.value)
    assert not lake.manager.table_exists(EVENTS)
    assert lake.files() == set()


def half_done(lake: SparkLake) -> DataFrame:
    """A frame whose first half is written when the second one fails."""
    late = (
        "if(id = 999, raise_error(if(spark_partition_id() = 1, reflect('java.lang.Thread', 'sleep', 2000L), '')), id)"
    )
    return lake.session.range(0, 1000, numPartitions=2).select(F.expr(late).alias("id"))


def test_a_first_write_that_fails_half_way_leaves_no_file(lake: SparkLake) -> None:
    with pytest.raises(WriteError):
        lake.write(half_done(lake))

    assert not lake.manager.table_exists(EVENTS)
    assert [path for path in (lake.folder / "warehouse").rglob("*") if path.is_file()] == []


def test_a_first_write_that_fails_leaves_the_files_of_other_tables_in_its_place(lake: SparkLake) -> None:
    """Renaming does not move a table, so that the next one of its old name gets the same location."""
    lake.write(lake.frame({"id": [0]}))
    lake.iceberg.catalog.rename_table(EVENTS.as_tuple, ("public", "renamed"))

    def write_meanwhile() -> None:
        wait_until(lambda: lake.manager.table_exists(EVENTS), seconds=30, what="the new table")
        lake.manager.append("public.renamed", pa.table({"id": [1]}))

    with ThreadPoolExecutor() as threads:
        rival = threads.submit(write_meanwhile)
        with pytest.raises(WriteError):
            lake.write(half_done(lake))
        rival.result()

    assert not lake.manager.table_exists(EVENTS)
    assert sorted(row.id for row in lake.session.table("floe.public.renamed").collect()) == [0, 1]


@pytest.mark.requirement("S2-E2")
def test_files_of_a_later_write_that_fails_half_way_are_orphans(lake: SparkLake) -> None:
    lake.write(lake.frame({"id": [0]}))
    before = lake.files()

    with pytest.raises(WriteError):
        lake.write(half_done(lake), mode=WriteMode.APPEND)

    soon = datetime.now(UTC) + timedelta(days=30)
    found = find_orphans(lake.table(), now=soon, older_than=timedelta(days=7), grace=timedelta(days=7))
    assert lake.rows() == [(0,)]
    assert {Path(file.location).name for file in found.orphans.files} >= lake.files() - before != set()


class Interrupted(BaseException):
    """What a run raises in its own thread when it is terminated."""


@pytest.mark.requirement("S2-E2")
def test_a_write_that_is_interrupted_is_cancelled(lake: SparkLake) -> None:
    lake.write(lake.frame({"id": [0]}))
    slow = "if(reflect('java.lang.Thread', 'sleep', 5000L) IS NULL, id, id)"
    rows = lake.session.range(0, 4, numPartitions=4).select(F.expr(slow).alias("id"))

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        with pytest.raises(Interrupted):
            lake.write(rows, mode=WriteMode.APPEND)
    finally:
        signal.signal(signal.SIGALRM, before)

    tracker = lake.session.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds(), seconds=30, what="The end of the job")
    assert lake.rows() == [(0,)]


REQUIRED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.date32(), nullable=False)])


@pytest.mark.requirement("S3-4")
def test_a_required_column_takes_a_frame_that_might_hold_null(lake: SparkLake) -> None:
    lake.create(REQUIRED)

    lake.write(lake.frame({"id": [1], "day": [date(2024, 1, 1)]}))

    assert lake.rows() == [(1, date(2024, 1, 1))]
    assert all(field.required for field in lake.table().schema().fields)


@pytest.mark.requirement("S3-4")
def test_a_required_column_becomes_optional_when_null_comes(lake: SparkLake) -> None:
    lake.create(REQUIRED)
    frame = lake.frame(
        {"id": [1, None], "day": [date(2024, 1, 1)] * 2}, pa.schema([("id", pa.int64()), ("day", pa.date32())])
    )

    written = lake.write(frame)

    assert written.schema_changes == ("make id optional",)
    assert lake.rows("id") == [(1,), (None,)]
    assert lake.table().schema().find_field("day").required


@pytest.mark.requirement("S2-E3")
def test_null_is_refused_where_the_schema_must_not_change(lake: SparkLake) -> None:
    lake.create(REQUIRED)
    frame = lake.frame({"id": pa.array([None], pa.int64()), "day": [date(2024, 1, 1)]})

    with pytest.raises(SchemaEvolutionError, match=r"'id' of 'public\.events' is required and the rows hold NULL"):
        lake.write(frame, evolution=EvolutionMode.ADD)

    assert lake.rows() == []


def test_a_frame_without_a_required_column_is_refused(lake: SparkLake) -> None:
    lake.create(REQUIRED)

    with pytest.raises(SchemaEvolutionError, match="lack column 'day'"):
        lake.write(lake.frame({"id": [1]}))


@pytest.mark.requirement("S3-4", "S2-FR-018")
def test_nested_fields_come_and_widen_and_stay_away(lake: SparkLake) -> None:
    first = pa.table(
        {"place": [{"x": 1, "y": 2}]}, pa.schema([("place", pa.struct([("x", pa.int32()), ("y", pa.int32())]))])
    )
    wider = pa.table({"place": [{"x": 2**40, "z": "new"}, None]})

    lake.write(lake.frame(first), mode=WriteMode.APPEND)
    written = lake.write(lake.frame(wider), mode=WriteMode.APPEND)

    assert set(written.schema_changes) == {"add place.z string", "widen place.x int to long"}
    assert lake.rows() == [
        (None,),
        ({"x": 1, "y": 2, "z": None},),
        ({"x": 2**40, "y": None, "z": "new"},),
    ]


def test_a_type_that_does_not_fit_is_refused(lake: SparkLake) -> None:
    lake.create(pa.schema([("id", pa.int64())]))

    with pytest.raises(IncompatibleSchemaChangeError, match="it is long and the rows have string"):
        lake.write(lake.frame({"id": ["1"]}))


def test_a_type_that_iceberg_does_not_have_is_named(lake: SparkLake) -> None:
    with pytest.raises(ValidationError, match="Column 'gap' is of Spark's type interval"):
        lake.write(lake.session.sql("SELECT INTERVAL '1' DAY AS gap"))


def test_columns_that_differ_only_in_case_are_refused(lake: SparkLake) -> None:
    frame = lake.session.sql("SELECT 1 AS a, 2 AS A")

    with pytest.raises(ValidationError, match="Columns appear more than once: A, a"):
        lake.write(frame)


@pytest.mark.requirement("S2-C6")
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"id": [1, 1]}, r"1 row for 'public\.events' repeats a key of \(id\)"),
        ({"id": [1, None]}, r"1 row for 'public\.events' has NULL in join column 'id'"),
    ],
)
def test_keys_that_identify_nothing_are_refused(lake: SparkLake, keys: dict[str, list[Any]], message: str) -> None:
    lake.write(lake.frame({"id": [7], "note": ["kept"]}))

    with pytest.raises(ValidationError, match=message):
        lake.write(lake.frame(keys, pa.schema([("id", pa.int64())])), mode=WriteMode.UPSERT, merge=MergeRules(("id",)))

    assert lake.rows() == [(7, "kept")]


@pytest.mark.requirement("S2-C6")
def test_an_upsert_touches_its_slice_and_the_columns_it_has(lake: SparkLake) -> None:
    lake.write(lake.frame({"region": ["eu", "us"], "id": [1, 1], "note": ["a", "b"], "size": [1, 2]}), layout=BY_REGION)
    changed = lake.frame({"region": ["eu", "eu"], "id": [1, 2], "note": ["A", "C"]})

    lake.write(changed, rows=keyed("region", "eu"), mode=WriteMode.UPSERT, merge=MergeRules(("id",)))

    assert lake.rows("region", "id", "note", "size") == [
        ("eu", 1, "A", 1),
        ("eu", 2, "C", None),
        ("us", 1, "b", 2),
    ]


def test_a_frame_may_come_from_the_table_it_goes_to(lake: SparkLake) -> None:
    lake.write(lake.frame({"region": ["eu", "us"], "id": [1, 2]}), layout=BY_REGION)
    doubled = lake.session.table("floe.public.events").where("region = 'eu'").withColumn("id", F.col("id") * 10)

    lake.write(doubled, rows=keyed("region", "eu"))
    lake.write(doubled, rows=keyed("region", "eu"), mode=WriteMode.UPSERT, merge=MergeRules(keys=("region",)))

    assert lake.rows("region", "id") == [("eu", 100), ("us", 2)]


@pytest.mark.parametrize("mode", ["none", "hash", "range"])
def test_files_are_in_order_whatever_the_distribution(lake: SparkLake, mode: str) -> None:
    numbers = lake.session.range(0, 400, numPartitions=4).select(
        F.col("id"), (F.col("id") % 2).cast("string").alias("region")
    )
    shuffled = numbers.withColumn("id", (F.col("id") * 7919) % 1000)

    lake.write(shuffled, layout=BY_REGION, sort_by=["id"], properties={"write.distribution-mode": mode})

    files = list((lake.folder / "warehouse").rglob("*.parquet"))
    assert len(files) == (8 if mode == "none" else 2)
    for file in files:
        ids = pq.read_table(file)["id"].to_pylist()
        assert ids == sorted(ids)


def test_every_transform_can_be_sorted_within(lake: SparkLake) -> None:
    layout = PartitionLayout.from_strings(["bucket(2, id)", "truncate(1, name)", "hour(at)"])
    frame = lake.session.sql("SELECT id, concat('n', id) AS name, TIMESTAMP'2024-01-01 10:00:00' AS at FROM range(20)")

    lake.write(frame, layout=layout, sort_by=["name"])

    assert len(lake.rows()) == 20
    assert len(lake.files()) == 2

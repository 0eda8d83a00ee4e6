"""Files that hold rows of several slices: a slice is replaced on a staging branch, and shown by one move of main."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from support.spark_lake import EVENTS, SparkLake, keyed

from floe_dagster_iceberg.errors import CommitConflictError, RowsOutsidePartitionError
from floe_dagster_iceberg.models.partition_slice import PartitionSlice, TimeRange
from floe_dagster_iceberg.spark import staging_branch as staging
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout

pytestmark = pytest.mark.requirement("S2-US5.2", "S2-FR-026")

MIDNIGHT = datetime(2024, 3, 11, 4, tzinfo=UTC)  # in New York, where the day has begun four hours earlier in UTC


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    """One file with rows of two regions."""
    opened = SparkLake.open(tmp_path)
    opened.write(opened.frame({"region": ["eu", "us"], "id": [1, 2]}), idempotency_key="first")
    return opened


def test_the_other_rows_of_the_file_stay(lake: SparkLake) -> None:
    written = lake.write(lake.frame({"region": ["eu", "eu"], "id": [10, 11]}), rows=keyed("region", "eu"))

    assert lake.rows("region", "id") == [("eu", 10), ("eu", 11), ("us", 2)]
    assert written.rows == 2
    assert written.snapshot.snapshot_id == lake.table().metadata.current_snapshot_id


def test_the_staging_branch_is_gone_and_main_moved_once(lake: SparkLake) -> None:
    before = len(lake.table().metadata.snapshot_log)

    lake.write(lake.frame({"region": ["eu"], "id": [10]}), rows=keyed("region", "eu"), idempotency_key="second")

    metadata = lake.table().metadata
    assert list(metadata.refs) == ["main"]
    assert len(metadata.snapshot_log) == before + 1
    assert [snapshot.summary.get("floe.idempotency-key") for snapshot in metadata.snapshots if snapshot.summary] == [
        "first",
        None,
        "second",
    ]


def test_doing_it_again_finds_it_done(lake: SparkLake) -> None:
    frame = lake.frame({"region": ["eu"], "id": [10]})

    lake.write(frame, rows=keyed("region", "eu"), idempotency_key="second")
    again = lake.write(frame, rows=keyed("region", "eu"), idempotency_key="second")

    assert again.deduplicated


def test_an_empty_slice_takes_its_rows_out_of_the_file(lake: SparkLake) -> None:
    lake.write(lake.frame({"region": ["eu"], "id": [1]}).limit(0), rows=keyed("region", "eu"))

    assert lake.rows("region", "id") == [("us", 2)]


def test_a_failure_leaves_main_as_it_was_and_no_branch(lake: SparkLake) -> None:
    before = lake.table().metadata.current_snapshot_id

    with pytest.raises(RowsOutsidePartitionError):
        lake.write(lake.frame({"region": ["eu", "asia"], "id": [10, 11]}), rows=keyed("region", "eu"))

    metadata = lake.table().metadata
    assert (metadata.current_snapshot_id, list(metadata.refs)) == (before, ["main"])
    assert lake.rows("region", "id") == [("eu", 1), ("us", 2)]


def let_another_append(lake: SparkLake, monkeypatch: pytest.MonkeyPatch, *rows: dict[str, list[Any]]) -> None:
    """When the staged rows are about to be published, another writer is faster, once for each of these."""
    waiting, publish = list(rows), staging.publish

    def after_another(*args: Any, **kwargs: Any) -> None:
        if waiting:
            lake.manager.append(EVENTS, pa.table(waiting.pop()))
        publish(*args, **kwargs)

    monkeypatch.setattr(staging, "publish", after_another)


def test_a_faster_writer_of_other_rows_makes_it_start_again(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    let_another_append(lake, monkeypatch, {"region": ["asia"], "id": [3]})

    written = lake.write(lake.frame({"region": ["eu"], "id": [10]}), rows=keyed("region", "eu"))

    assert written.attempts == 2
    assert lake.rows("region", "id") == [("asia", 3), ("eu", 10), ("us", 2)]
    assert list(lake.table().metadata.refs) == ["main"]


def test_a_faster_writer_of_the_same_rows_is_a_conflict(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    let_another_append(lake, monkeypatch, {"region": ["eu"], "id": [3]})

    with pytest.raises(CommitConflictError, match="another writer changed the rows being replaced"):
        lake.write(lake.frame({"region": ["eu"], "id": [10]}), rows=keyed("region", "eu"))

    assert lake.rows("region", "id") == [("eu", 1), ("eu", 3), ("us", 2)]
    assert list(lake.table().metadata.refs) == ["main"]


def test_a_writer_that_is_always_faster_wins(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    let_another_append(lake, monkeypatch, *[{"region": ["asia"], "id": [3]}] * 9)

    with pytest.raises(CommitConflictError, match="other writers were faster"):
        lake.write(lake.frame({"region": ["eu"], "id": [10]}), rows=keyed("region", "eu"))

    assert list(lake.table().metadata.refs) == ["main"]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_local_days_in_files_of_utc_days_are_replaced_exactly(tmp_path: Path, zone: str) -> None:
    lake = SparkLake.open(tmp_path)
    lake.session.conf.set("spark.sql.session.timeZone", zone)
    hours = [MIDNIGHT + timedelta(hours=hour) for hour in range(-2, 3)]
    frame = lake.frame({"at": hours})
    lake.write(frame.coalesce(1), layout=PartitionLayout.from_strings(["day(at)"]))
    day = PartitionSlice(
        any_of=(
            (TimeRange(column="at", start=MIDNIGHT, end=MIDNIGHT + timedelta(days=1), timezone="America/New_York"),),
        )
    )

    lake.write(frame.where(F.col("at") == F.lit(hours[3])), rows=day)

    assert lake.rows() == [(hours[0],), (hours[1],), (hours[3],)]


def test_a_branch_is_replaced_like_main(lake: SparkLake) -> None:
    lake.write(lake.frame({"region": ["eu"], "id": [10]}), rows=keyed("region", "eu"), branch="audit")

    assert lake.rows("region", "id") == [("eu", 1), ("us", 2)]
    assert sorted(lake.manager.scan(EVENTS, ["id"], ref="audit")["id"].to_pylist()) == [2, 10]
    assert sorted(lake.table().metadata.refs) == ["audit", "main"]

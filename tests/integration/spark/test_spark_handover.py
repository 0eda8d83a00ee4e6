"""Arrow rows that PyIceberg cannot read or write are handed to Spark, if there is one; and no others."""

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.foreign_writers import delete_by_equality
from support.io_results import failure_of, shown
from support.spark_lake import EVENTS, SparkLake

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager
from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.models.writing import MergeRules
from floe_dagster_iceberg.spark.handover import SparkHandover
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.handover import HandoverProvider
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

NAME = "floe.public.events"
ROWS = pa.table({"id": [1, 2, 3], "region": ["eu", "us", "eu"]})


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    return SparkLake.open(tmp_path)


def with_equality_deletes(lake: SparkLake, **table: Any) -> None:
    """Three rows in one file, the second of which Flink has deleted."""
    lake.create(ROWS.schema, ROWS, **table)
    delete_by_equality(lake.session, lake.table(), "id", 2)


def with_avro_files(lake: SparkLake) -> None:
    """Two rows in an Avro file."""
    lake.create(ROWS.schema, properties={"write.format.default": "avro"})
    lake.frame(ROWS.filter(pa.array([True, False, True]))).coalesce(1).writeTo(NAME).append()


UNREADABLE: dict[str, Callable[[SparkLake], None]] = {
    "equality deletes": with_equality_deletes,
    "AVRO files": with_avro_files,
}


@pytest.fixture(params=UNREADABLE)
def unreadable(request: pytest.FixtureRequest, lake: SparkLake) -> str:
    """What PyIceberg cannot read about the events; they have the rows 1 and 3."""
    UNREADABLE[request.param](lake)
    return str(request.param)


def spark_rows(lake: SparkLake) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in lake.session.sql(f"SELECT * FROM {NAME}").collect())  # noqa: S608


def run(
    lake: SparkLake, assets: list[dg.AssetsDefinition], *, spark: bool = True, **kwargs: Any
) -> dg.ExecuteInProcessResult:
    settings = {"pyspark": lake.pyspark} if spark else {}
    io_manager = IcebergIOManager(iceberg=lake.iceberg, **settings)  # type: ignore[arg-type]
    return dg.materialize(assets, resources={"io_manager": io_manager}, raise_on_error=False, **kwargs)


def regional(*frames: Any) -> dg.AssetsDefinition:
    left = iter(frames)

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["eu", "us"]),
        metadata=iceberg_settings(partition_expr="region"),
    )
    def events() -> Any:
        return next(left)

    return events


def test_a_partition_is_replaced_by_spark_where_a_file_has_to_be_read(lake: SparkLake, unreadable: str) -> None:
    events = regional(*[pa.table({"id": [10], "region": ["us"]})] * 2)

    refused = run(lake, [events], spark=False, partition_key="us")
    done = run(lake, [events], partition_key="us")

    assert unreadable in failure_of(refused, "events")
    assert shown(done, "events")["iceberg/engine"] == f"spark, because it has {unreadable}, which only Spark can read"
    assert spark_rows(lake) == [(1, "eu"), (3, "eu"), (10, "us")]
    assert list(lake.table().metadata.refs) == ["main"]


def write_again(lake: SparkLake, rows: pa.Table, handover: HandoverProvider | None, *, key: str) -> TableWriteResult:
    """An upsert as an asset makes it, of the same work for the same key."""
    upsert = TableWrite(EVENTS, WriteMode.UPSERT, merge=MergeRules(("id",)), idempotency_key=key, format_version=3)
    budget = CommitBudget.from_config(lake.manager.config)
    return write_once(lake.manager.catalog, ArrowRows(rows), upsert, budget, handover)


def test_a_retry_finds_the_write_that_was_handed_over(lake: SparkLake) -> None:
    first, retry = (write_again(lake, ROWS, lambda: SparkHandover(lambda: lake.session), key="k") for _ in range(2))

    assert (first.created, first.deduplicated, retry.deduplicated) == (True, False, True)
    assert retry.snapshot.snapshot_id == first.snapshot.snapshot_id
    assert len(lake.table().metadata.snapshots) == 1


def test_a_retry_finds_a_write_of_arrow_although_spark_would_be_needed_now(lake: SparkLake) -> None:
    """Rows were deleted by equality between the two attempts; there need not be a Spark."""
    lake.create(ROWS.schema, ROWS)
    first = write_again(lake, pa.table({"id": [9], "region": ["us"]}), None, key="k")
    delete_by_equality(lake.session, lake.table(), "id", 2)

    retry = write_again(lake, pa.table({"id": [9], "region": ["us"]}), None, key="k")
    with pytest.raises(EngineCapabilityError, match="equality deletes"):
        write_again(lake, pa.table({"id": [9], "region": ["us"]}), None, key="other")

    assert (retry.deduplicated, retry.snapshot.snapshot_id) == (True, first.snapshot.snapshot_id)
    assert spark_rows(lake) == [(1, "eu"), (3, "eu"), (9, "us")]


@pytest.mark.usefixtures("unreadable")
def test_spark_reads_an_earlier_version_in_the_current_columns_for_arrow(lake: SparkLake) -> None:
    version = lake.table().current_snapshot().snapshot_id
    with lake.table().update_schema() as update:
        update.rename_column("region", "area")

    rows = lake.pyspark.table_manager.scan(
        EVENTS, ["area"], "area = 'eu' and id < 3", snapshot_id=version, current_columns=True
    )

    assert rows.to_pylist() == [{"area": "eu"}]


def test_a_stream_that_was_read_is_not_handed_over(lake: SparkLake) -> None:
    """PyIceberg finds that it cannot read a file only after it has written the rows of the stream."""
    with_avro_files(lake)
    before = lake.table().metadata_location

    result = run(lake, [regional(pa.table({"id": [10], "region": ["us"]}).to_reader())], partition_key="us")

    assert "AVRO files" in failure_of(result, "events")
    assert lake.table().metadata_location == before


def test_arrow_writes_where_no_such_file_is_read(lake: SparkLake) -> None:
    """Appends, and partitions with files of their own."""
    with_equality_deletes(lake)

    appended = shown(run(lake, [regional(ROWS.slice(0, 0))], partition_key="us"), "events")
    lake.manager.append(EVENTS, pa.table({"id": [9], "region": ["us"]}))

    assert "iceberg/engine" in appended
    assert spark_rows(lake) == [(1, "eu"), (3, "eu"), (9, "us")]


def test_the_table_manager_with_spark_upserts_overwrites_and_deletes(lake: SparkLake, unreadable: str) -> None:
    manager = lake.pyspark.table_manager
    rows = pa.table({"id": [1, 2], "region": ["EU", "us"]})
    for refused in (
        lambda: lake.manager.upsert(EVENTS, rows, ["id"]),
        lambda: lake.manager.overwrite(EVENTS, rows, overwrite_filter="id = 1"),
        lambda: lake.manager.delete(EVENTS, "id = 1"),
    ):
        with pytest.raises(EngineCapabilityError, match=unreadable):
            refused()

    manager.upsert(EVENTS, rows, ["id"])
    assert spark_rows(lake) == [(1, "EU"), (2, "us"), (3, "eu")]
    manager.overwrite(EVENTS, pa.table({"id": [4], "region": ["us"]}), overwrite_filter="id = 2")
    assert manager.delete(EVENTS, "id = 1") is not None
    assert spark_rows(lake) == [(3, "eu"), (4, "us")]

    changes = pa.table({"id": [3, 4, 5], "region": ["EU", "us", "eu"], "gone": [False, True, False]})
    manager.merge(EVENTS, changes, ["id"], delete_when="gone")
    assert spark_rows(lake) == [(3, "EU"), (5, "eu")]


def test_inputs_are_read_by_spark(lake: SparkLake, unreadable: str, caplog: pytest.LogCaptureFixture) -> None:
    loaded: dict[str, Any] = {}
    events = dg.AssetSpec("events")

    @dg.asset
    def as_arrow(events: pa.Table) -> None:
        loaded["arrow"] = sorted(events["id"].to_pylist())

    @dg.asset
    def as_stream(events: pa.RecordBatchReader) -> None:
        loaded["stream"] = sorted(events.read_all()["id"].to_pylist())

    @dg.asset
    def as_pandas(events: pd.DataFrame) -> None:
        loaded["pandas"] = sorted(events["id"])

    @dg.asset(ins={"events": dg.AssetIn(metadata={"columns": ["region"], "iceberg/row_filter": "id > 1"})})
    def as_polars(events: pl.DataFrame) -> None:
        loaded["polars"] = events.to_dicts()

    with caplog.at_level(logging.INFO, logger="floe_dagster_iceberg"):
        result = run(lake, [events, as_arrow, as_stream, as_pandas, as_polars])  # type: ignore[list-item]
    refused = run(lake, [events, as_arrow], spark=False)  # type: ignore[list-item]

    assert result.success
    assert loaded == {"arrow": [1, 3], "stream": [1, 3], "pandas": [1, 3], "polars": [{"region": "eu"}]}
    assert f"Spark reads 'public.events', because it has {unreadable}, which only Spark can read." in caplog.messages
    assert not refused.success


def test_earlier_versions_are_read_by_spark(lake: SparkLake) -> None:
    with_equality_deletes(lake)
    manager = lake.pyspark.table_manager
    first, deleted = (snapshot.snapshot_id for snapshot in lake.table().metadata.snapshots)
    manager.create_tag(EVENTS, "deleted", deleted)

    assert manager.scan(EVENTS, ref="deleted", limit=1).num_rows == 1
    assert sorted(manager.scan(EVENTS, snapshot_id=deleted)["id"].to_pylist()) == [1, 3]
    # Before the deletes, Arrow reads it itself.
    assert sorted(lake.manager.scan(EVENTS, snapshot_id=first)["id"].to_pylist()) == [1, 2, 3]


EVERY_TYPE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"doc": "it's the id"}),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("amount", pa.decimal128(38, 2)),
        pa.field("ok", pa.bool_()),
        pa.field("small", pa.int32()),
        pa.field("ratio", pa.float32()),
        pa.field("text", pa.large_string()),
        pa.field("blob", pa.large_binary()),
        pa.field("key", pa.uuid()),
        pa.field("hash", pa.binary(4)),
        pa.field("tags", pa.large_list(pa.field("element", pa.large_string()))),
        pa.field("keys", pa.list_(pa.field("element", pa.uuid()))),
        pa.field("place", pa.struct([pa.field("x", pa.int64()), pa.field("who", pa.uuid())])),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
KEY = UUID(int=7)
VALUES: dict[str, Any] = {
    "id": 1,
    "at": datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=UTC),
    "local": datetime(1582, 10, 14, 2, 30),  # noqa: DTZ001 - it has none
    "day": date(1, 1, 1),
    "amount": Decimal("123456789012345678901234567890123456.78"),
    "ok": True,
    "small": -5,
    "ratio": 1.5,
    "text": "it's \U0001f600",
    "blob": b"\x00\xff",
    "key": KEY.bytes,
    "hash": b"abcd",
    "tags": ["a", None],
    "keys": [KEY.bytes, None],
    "place": {"x": 1, "who": KEY.bytes},
    "counts": [("a", 1), ("b", None)],
}


def in_bytes(kind: pa.DataType) -> pa.DataType:
    """A type with UUIDs as bytes: Arrow makes no nested UUIDs of Python values."""
    if isinstance(kind, pa.UuidType):
        return pa.binary(16)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(in_bytes(field.type)) for field in kind])
    return pa.list_(in_bytes(kind.value_type)) if pa.types.is_list(kind) else kind


def to_rows(*rows: dict[str, Any]) -> pa.Table:
    plain = pa.schema([field.with_type(in_bytes(field.type)) for field in EVERY_TYPE])
    return pa.Table.from_pylist(list(rows), schema=plain).cast(EVERY_TYPE)


def comparable(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.select(EVERY_TYPE.names).to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_of_every_type_arrive_and_return_as_they_were(lake: SparkLake, zone: str) -> None:
    """In an existing table with the types that Spark does not have, and read back by Spark and by PyIceberg."""
    lake.session.conf.set("spark.sql.session.timeZone", zone)
    nothing = dict.fromkeys(EVERY_TYPE.names) | {"id": 2}
    rows = to_rows(VALUES, nothing)
    lake.create(EVERY_TYPE, rows.slice(1))
    delete_by_equality(lake.session, lake.table(), "id", 99)
    manager = lake.pyspark.table_manager

    manager.upsert(EVENTS, rows.slice(0, 1), ["id"])

    by_spark = manager.scan(EVENTS)
    assert comparable(by_spark) == comparable(rows)
    lake.session.sql(f"CALL floe.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))")
    assert comparable(lake.table().scan(row_filter="id > 0", snapshot_id=None).to_arrow()) == comparable(rows)


def test_a_type_that_spark_does_not_have_is_refused_by_its_column(lake: SparkLake) -> None:
    manager = lake.pyspark.table_manager
    manager.create_namespace("public")

    with pytest.raises(EngineCapabilityError, match="Spark cannot read or write columns of type time"):
        manager.create_table(EVENTS, pa.schema([("at", pa.time64("us"))]), properties={"format-version": "3"})
    with pytest.raises(ValidationError, match="is '4'"):
        manager.create_table(EVENTS, ROWS.schema, properties={"format-version": "4"})
    assert not manager.table_exists(EVENTS)


def test_spark_is_not_started_for_what_pyiceberg_can_do(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(type(lake.pyspark), "spark_session", property(never))
    manager: IcebergTableManager = lake.pyspark.table_manager
    manager.create_namespace("public")
    manager.create_table(EVENTS, ROWS.schema)
    manager.append(EVENTS, ROWS)
    manager.upsert(EVENTS, ROWS, ["id"])
    manager.delete(EVENTS, "id = 1")
    manager.create_tag(EVENTS, "v1")

    assert manager.scan(EVENTS).num_rows == 2

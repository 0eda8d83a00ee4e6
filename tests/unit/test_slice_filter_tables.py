"""Slices and derived specs on real tables: files are split, pruned and replaced by slice."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from floe_dagster_iceberg.partitions import build_slice, derive_layout
from floe_dagster_iceberg.table.filter.partition_slice import to_expression
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout

DAILY = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
DAILY_NY = dg.DailyPartitionsDefinition("2024-03-01", end_date="2024-04-01", timezone="America/New_York")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("bronze")
    yield catalog
    catalog.close()


def create(catalog: SqlCatalog, rows: pa.Table, layout: PartitionLayout) -> Table:
    """A table with these rows, laid out as an IO manager would."""
    schema = catalog.create_table("bronze.probe", rows.schema).schema()
    table = catalog.create_table("bronze.events", schema, partition_spec=layout.to_pyiceberg_spec(schema))
    table.append(rows)
    return table


def rows_by(column: str, values: list[Any], arrow_type: pa.DataType) -> pa.Table:
    return pa.table({column: pa.array(values, arrow_type), "n": pa.array(range(len(values)), pa.int64())})


def utc_days(count: int, step: timedelta = timedelta(days=1)) -> list[datetime]:
    return [datetime(2024, 1, 1, tzinfo=UTC) + number * step for number in range(count)]


@pytest.mark.requirement("S2-FR-034", "S2-FR-036", "S3-3c")
@pytest.mark.parametrize("arrow_type", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
def test_a_days_slice_reads_one_file_of_many(catalog: SqlCatalog, arrow_type: pa.DataType) -> None:
    days: list[Any] = [
        day if arrow_type == pa.timestamp("us", "UTC") else day.replace(tzinfo=None) for day in utc_days(10)
    ]
    table = create(catalog, rows_by("c", days, arrow_type), derive_layout(DAILY, partition_expr="c"))

    scan = table.scan(row_filter=to_expression(build_slice(DAILY, ["2024-01-04"], partition_expr="c"), table.schema()))

    assert table.spec().fields[0].name == "c_day"
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow()["n"].to_pylist() == [3]


@pytest.mark.requirement("S2-FR-040")
def test_replacing_a_new_york_day_leaves_the_adjacent_days_alone(catalog: SqlCatalog) -> None:
    hours = [datetime(2024, 3, 9, tzinfo=UTC) + timedelta(hours=hour) for hour in range(72)]
    table = create(catalog, rows_by("c", hours, pa.timestamp("us", "UTC")), derive_layout(DAILY_NY, partition_expr="c"))
    rows = build_slice(DAILY_NY, ["2024-03-10"], partition_expr="c")

    table.delete(to_expression(rows, table.schema()))

    left = {timestamp.as_py() for timestamp in table.scan().to_arrow()["c"]}
    start = datetime(2024, 3, 10, 5, tzinfo=UTC)
    assert set(hours) - left == {start + timedelta(hours=hour) for hour in range(23)}


@pytest.mark.requirement("S2-FR-036")
def test_a_set_of_many_keys_still_prunes_files(catalog: SqlCatalog) -> None:
    names = [f"{number:04}" for number in range(1000)]
    customers = dg.StaticPartitionsDefinition(names)
    table = create(catalog, rows_by("c", names[:500:100], pa.string()), PartitionLayout())
    table.append(rows_by("c", names[500::100], pa.string()))
    rows = build_slice(customers, names[:450], partition_expr="c")

    scan = table.scan(row_filter=to_expression(rows, table.schema()))

    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow()["c"].to_pylist() == ["0000", "0100", "0200", "0300", "0400"]


@pytest.mark.requirement("S2-FR-034", "S3-3c")
def test_a_multi_partition_has_several_fields_and_replaces_one_cell(catalog: SqlCatalog) -> None:
    both = dg.MultiPartitionsDefinition({"day": DAILY, "region": dg.StaticPartitionsDefinition(["eu", "us"])})
    expr = {"day": "ts", "region": "region"}
    cells = [(day, region) for day in utc_days(3) for region in ("eu", "us")]
    data = pa.table(
        {
            "ts": pa.array([day for day, _ in cells], pa.timestamp("us", "UTC")),
            "region": [region for _, region in cells],
        }
    )
    table = create(catalog, data, derive_layout(both, partition_expr=expr))

    table.delete(to_expression(build_slice(both, ["2024-01-02|us"], partition_expr=expr), table.schema()))

    assert [field.name for field in table.spec().fields] == ["ts_day", "region"]
    left = table.scan().to_arrow().to_pylist()
    assert {(row["ts"], row["region"]) for row in left} == set(cells) - {(utc_days(2)[1], "us")}


@pytest.mark.requirement("S2-FR-033")
@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("id", "id"),
        ("year(ts)", "ts_year"),
        ("month(ts)", "ts_month"),
        ("day(ts)", "ts_day"),
        ("hour(ts)", "ts_hour"),
        ("bucket(4, id)", "id_bucket_4"),
        ("truncate(10, id)", "id_trunc_10"),
    ],
)
def test_any_layout_keeps_slices_exact(catalog: SqlCatalog, field: str, name: str) -> None:
    hours = utc_days(60, timedelta(hours=12))
    rows = pa.table({"ts": pa.array(hours, pa.timestamp("us", "UTC")), "id": pa.array(range(60), pa.int64())})
    table = create(catalog, rows, PartitionLayout.from_strings([field]))

    kept = table.scan(row_filter=to_expression(build_slice(DAILY, ["2024-01-05"], partition_expr="ts"), table.schema()))

    assert [field.name for field in table.spec().fields] == [name]
    assert sorted(kept.to_arrow()["id"].to_pylist()) == [8, 9]


@pytest.mark.requirement("D4")
@pytest.mark.parametrize(
    ("column", "values", "arrow_type", "key"),
    [
        ("o'brien é", ["o'brien", 'é "x"', "plain"], pa.string(), "o'brien"),
        ("a.b", ["x.y", "%", "_"], pa.string(), "%"),
        ("flag", [True, False, None], pa.bool_(), "true"),
        ("amount", [Decimal("1.50"), Decimal("2.50"), None], pa.decimal128(10, 2), "1.5"),
        ("number", [7, 8, None], pa.int32(), "007"),
        ("day", [date(2024, 1, 5), date(2024, 1, 6), None], pa.date32(), "2024-01-05"),
    ],
)
def test_keys_of_all_types_replace_their_own_rows_only(
    catalog: SqlCatalog, column: str, values: list[Any], arrow_type: pa.DataType, key: str
) -> None:
    keys = dg.StaticPartitionsDefinition([key])
    table = create(catalog, rows_by(column, values, arrow_type), derive_layout(keys, partition_expr=column))

    table.delete(to_expression(build_slice(keys, [key], partition_expr=column), table.schema()))

    expected = [1, 2] if key != "%" else [0, 2]
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == expected

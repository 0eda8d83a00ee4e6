"""`evolve_partition_spec` on a real catalog: new files get the new split, old ones stay readable."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from support.lake import Lake
from support.racing_catalog import racing_manager

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.table.manager import IcebergTableManager

T = "bronze.events"
EVENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("region", pa.string()),
        ("place", pa.struct([("city", pa.string())])),
        ("marks", pa.list_(pa.string())),
    ]
)


def events(*ids: int) -> pa.Table:
    rows = [
        {"id": n, "ts": datetime(2024, 1, n, n, tzinfo=UTC), "region": f"r{n % 2}", "place": {"city": f"c{n}"}}
        for n in ids
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


@pytest.fixture
def table(manager: IcebergTableManager) -> Table:
    return manager.create_table(T, EVENTS)


def spec_of(lake: Lake) -> list[tuple[str, str]]:
    return [(field.name, str(field.transform)) for field in lake.table(T).spec().fields]


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-033", "S2-FR-035")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("text", "name", "transform"),
    [
        ("region", "region", "identity"),
        ("year(ts)", "ts_year", "year"),
        ("month(ts)", "ts_month", "month"),
        ("day(ts)", "ts_day", "day"),
        ("hour(ts)", "ts_hour", "hour"),
        ("bucket(16, id)", "id_bucket_16", "bucket[16]"),
        ("truncate(4, region)", "region_trunc_4", "truncate[4]"),
        ("place.city", "place.city", "identity"),
    ],
)
def test_each_transform_is_added_under_icebergs_own_name(
    manager: IcebergTableManager, lake: Lake, text: str, name: str, transform: str
) -> None:
    manager.evolve_partition_spec(T, add=[text])
    manager.append(T, events(1, 2, 3))

    assert spec_of(lake) == [(name, transform)]
    assert {task.file.spec_id for task in lake.table(T).scan().plan_files()} == {1}
    assert sorted(row[0] for row in lake.rows(T)) == [1, 2, 3]


@pytest.mark.requirement("S2-US6.4", "S2-FR-035")
def test_old_files_stay_readable_beside_files_of_the_new_spec(
    manager: IcebergTableManager, lake: Lake, table: Table
) -> None:
    manager.append(T, events(1, 2))
    old = lake.data_files()

    evolved = manager.evolve_partition_spec(table, add=["day(ts)"])
    manager.append(T, events(3, 4))

    assert evolved.spec() == lake.table(T).spec()
    assert old < lake.data_files()
    files = [task.file for task in lake.table(T).scan().plan_files()]
    assert sorted(file.spec_id for file in files) == [0, 1, 1]
    assert sorted(row[0] for row in lake.rows(T)) == [1, 2, 3, 4]
    found = lake.table(T).scan(row_filter="ts >= '2024-01-04T00:00:00+00:00'")
    assert found.to_arrow()["id"].to_pylist() == [4]
    assert len(list(found.plan_files())) == 1


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-035")
@pytest.mark.usefixtures("table")
def test_a_field_is_replaced_by_a_finer_one_in_one_commit(manager: IcebergTableManager, lake: Lake) -> None:
    manager.evolve_partition_spec(T, add=["day(ts)", "region"])
    manager.append(T, events(1))
    versions = lake.metadata_versions(T)

    manager.evolve_partition_spec(T, add=["hour(ts)"], remove=["ts_day"], rename={"region": "market"})
    manager.append(T, events(2))

    assert spec_of(lake) == [("market", "identity"), ("ts_hour", "hour")]
    assert lake.metadata_versions(T) == versions + 2
    assert sorted(row[0] for row in lake.rows(T)) == [1, 2]


@pytest.mark.lakes
@pytest.mark.usefixtures("table")
def test_a_table_can_become_unpartitioned_and_take_a_field_again(manager: IcebergTableManager, lake: Lake) -> None:
    manager.evolve_partition_spec(T, add=["region"])
    field_id = lake.table(T).spec().fields[0].field_id
    manager.evolve_partition_spec(T, remove=["region"])
    assert lake.table(T).spec().spec_id == 0

    manager.evolve_partition_spec(T, add=["region"])

    assert lake.table(T).spec().fields[0].field_id == field_id
    assert sorted(lake.table(T).specs()) == [0, 1]


@pytest.mark.usefixtures("table")
def test_a_field_may_have_a_name_of_its_own(manager: IcebergTableManager, lake: Lake) -> None:
    manager.evolve_partition_spec(T, add={"by_day": "day(ts)"})

    assert spec_of(lake) == [("by_day", "day")]


@pytest.mark.usefixtures("table")
def test_rows_of_replaced_slices_are_found_across_specs(manager: IcebergTableManager, lake: Lake) -> None:
    manager.append(T, events(1, 2))
    manager.evolve_partition_spec(T, add=["day(ts)"])
    manager.append(T, events(2, 3))

    manager.overwrite(T, events(2), overwrite_filter="id = 2")

    assert sorted(row[0] for row in lake.rows(T)) == [1, 2, 3]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "Name fields to add"),
    "a text": ({"add": "region"}, r"takes a list: \['region'\]"),
    "unknown transform": ({"add": ["week(ts)"]}, "'week' is unknown"),
    "bucket without number": ({"add": ["bucket(id)"]}, "bucket needs a number"),
    "truncate without number": ({"add": ["truncate(region)"]}, "truncate needs a number"),
    "day with number": ({"add": ["day(3, ts)"]}, "day takes no number"),
    "unknown column": ({"add": ["day(nope)"]}, "no column 'nope' to partition by"),
    "column in a list": ({"add": ["marks.element"]}, "is inside a list or map"),
    "struct": ({"add": ["place"]}, "is struct<"),
    "wrong type": ({"add": ["day(region)"]}, "is string, which day does not support"),
    "there already": ({"add": ["bucket(4, id)"]}, "already partitioned by bucket\\(4, id\\), as 'id_bucket_4'"),
    "added twice": ({"add": ["day(ts)", "day(ts)"]}, "Already added"),
    "redundant": ({"add": ["day(ts)", "hour(ts)"]}, "ts_hour conflicts with ts_day"),
    "name of a column": ({"add": {"region": "day(ts)"}}, "exists in schema: region"),
    "unknown field removed": ({"remove": ["ts_day"]}, "no partition field 'ts_day'. It has: id_bucket_4"),
    "unknown field renamed": ({"rename": {"ts_day": "d"}}, "no partition field 'ts_day'"),
    "removed and renamed": ({"remove": ["id_bucket_4"], "rename": {"id_bucket_4": "b"}}, "Name it only once"),
    "same name twice": ({"add": {"b": "day(ts)"}, "rename": {"id_bucket_4": "b"}}, "would be named 'b'"),
}


@pytest.mark.requirement("S2-FR-035", "S2-FR-033")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("case", REFUSED)
def test_a_spec_that_is_invalid_is_refused(manager: IcebergTableManager, lake: Lake, case: str) -> None:
    arguments, fact = REFUSED[case]
    manager.evolve_partition_spec(T, add=["bucket(4, id)"])

    with pytest.raises(ValidationError, match=fact):
        manager.evolve_partition_spec(T, **arguments)

    assert lake.metadata_versions(T) == 2
    assert spec_of(lake) == [("id_bucket_4", "bucket[4]")]


@pytest.mark.lakes
@pytest.mark.usefixtures("table")
def test_a_field_added_meanwhile_stays(manager: IcebergTableManager, lake: Lake) -> None:
    second = racing_manager(lake.place, lambda: manager.evolve_partition_spec(T, add=["day(ts)"]))

    second.evolve_partition_spec(T, add=["region"])

    assert spec_of(lake) == [("ts_day", "day"), ("region", "identity")]
    assert [field.field_id for field in lake.table(T).spec().fields] == [1000, 1001]


@pytest.mark.lakes
@pytest.mark.usefixtures("table")
def test_the_same_field_added_meanwhile_is_there_already(manager: IcebergTableManager, lake: Lake) -> None:
    second = racing_manager(lake.place, lambda: manager.evolve_partition_spec(T, add=["day(ts)"]))

    with pytest.raises(ValidationError, match="already partitioned by day\\(ts\\), as 'ts_day'"):
        second.evolve_partition_spec(T, add=["day(ts)"])


@pytest.mark.requirement("S2-US6.4")
def test_dates_are_split_by_month_from_now_on(manager: IcebergTableManager, lake: Lake, orders: pa.Schema) -> None:
    manager.create_table("bronze.orders", orders)

    def order(number: int, day: date) -> pa.Table:
        return pa.Table.from_pylist([{"id": number, "day": day}], schema=orders)

    manager.append("bronze.orders", order(1, date(2024, 1, 5)))
    manager.evolve_partition_spec("bronze.orders", add=["month(day)"])
    manager.append("bronze.orders", order(2, date(2024, 2, 5)))

    spec = lake.table("bronze.orders").spec()
    assert [(field.name, field.transform) for field in spec.fields] == [("day_month", parse_transform("month"))]
    assert [row[0] for row in lake.rows("bronze.orders")] == [1, 2]

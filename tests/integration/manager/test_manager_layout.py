"""Where rows lie: files by partition, whatever the types and names of the columns, and the same rows back."""

import datetime as dt
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from support.lake import Lake
from support.table_facts import live_files, reachable_files, to_path

from floe_dagster_iceberg.table.manager import IcebergTableManager

TIMESTAMPS = [dt.datetime(2024, 2, 29, 23, 59, 59, 999_999), dt.datetime(1960, 1, 2, 3, 4, 5, 6), None]  # noqa: DTZ001


def partitioned_by(*fields: tuple[int, Transform[Any, Any], str]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(source_id=source, field_id=1000 + position, transform=transform, name=name)
            for position, (source, transform, name) in enumerate(fields)
        )
    )


TRANSFORMS: list[tuple[str, int, Transform[Any, Any], list[object]]] = [
    ("identity", 3, IdentityTransform(), ["EU", "US", None]),
    ("year", 2, YearTransform(), [54, -10, None]),
    ("month", 2, MonthTransform(), [649, -120, None]),
    ("day", 2, DayTransform(), [19782, -3652, None]),
    ("hour", 2, HourTransform(), [474_791, -87_645, None]),
    ("bucket", 1, BucketTransform(2), [0, 0, 1]),
    ("truncate", 3, TruncateTransform(1), ["E", "U", None]),
]


@pytest.mark.requirement("S2-US6.2", "S2-FR-033", "S2-FR-034")
@pytest.mark.parametrize(
    ("source", "transform", "expected"), [case[1:] for case in TRANSFORMS], ids=[c[0] for c in TRANSFORMS]
)
@pytest.mark.parametrize("streamed", [False, True], ids=["table", "reader"])
def test_files_are_laid_out_by_partition(
    lake: Lake,
    manager: IcebergTableManager,
    *,
    source: int,
    transform: Transform[Any, Any],
    expected: list[object],
    streamed: bool,
) -> None:
    rows = pa.table({"id": [1, 2, 3], "at": pa.array(TIMESTAMPS, pa.timestamp("us")), "region": ["EU", "US", None]})
    manager.create_table("bronze.events", rows.schema, partitioned_by((source, transform, "part")))

    manager.append("bronze.events", rows.to_reader() if streamed else rows)

    found = live_files(lake.table("bronze.events")).values()
    assert {file.partition[0] for file in found} == set(expected)
    assert sum(file.record_count for file in found) == 3
    assert all(f"/part={'null' if file.partition[0] is None else ''}" in file.file_path for file in found)
    assert sorted(lake.rows("bronze.events"), key=repr) == sorted(
        map(tuple, (row.values() for row in rows.to_pylist())), key=repr
    )


def test_two_partition_fields_may_come_from_one_column_and_one_from_inside_a_struct(
    lake: Lake, manager: IcebergTableManager
) -> None:
    rows = pa.table({"at": [dt.date(2024, 5, 6), None], "who": [{"city": "Rome"}, None]})
    spec = partitioned_by((1, DayTransform(), "d"), (1, MonthTransform(), "m"), (3, IdentityTransform(), "city"))
    manager.create_table("bronze.events", rows.schema, spec)

    manager.append("bronze.events", rows)

    found = live_files(lake.table("bronze.events")).values()
    assert {tuple(file.partition) for file in found} == {(19849, 652, "Rome"), (None, None, None)}
    assert lake.table("bronze.events").scan(row_filter="who.city = 'Rome'").to_arrow().num_rows == 1


ODD_VALUES: dict[str, pa.Array] = {
    "decimal": pa.array([decimal.Decimal("-12345678901234.56"), None], pa.decimal128(16, 2)),
    "uuid": pa.array([uuid.UUID(int=7).bytes, None], pa.uuid()),
    "fixed": pa.array([b"\x00\xff", None], pa.binary(2)),
    "binary": pa.array([b"\x00/=", None], pa.binary()),
    "time": pa.array([dt.time(23, 59, 59, 999_999), None], pa.time64("us")),
    "timestamptz": pa.array([TIMESTAMPS[0], None], pa.timestamp("us", "UTC")),
    "boolean": pa.array([True, None]),
    "float": pa.array([-0.0, None], pa.float32()),
    "unicode": pa.array(["a/b=ü 😀'\"", None]),
}


@pytest.mark.requirement("S2-FR-012", "S2-FR-034")
@pytest.mark.parametrize("values", ODD_VALUES.values(), ids=ODD_VALUES)
@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4)], ids=["identity", "bucket"])
def test_every_type_comes_back_equal_from_a_table_partitioned_by_it(
    manager: IcebergTableManager, values: pa.Array, transform: Transform[Any, Any]
) -> None:
    rows = pa.table({"id": [1, 2], "value": values})
    if isinstance(transform, BucketTransform) and (
        pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
    ):
        transform = IdentityTransform()
    manager.create_table("bronze.values", rows.schema, partitioned_by((2, transform, "part")))

    manager.append("bronze.values", rows)

    assert manager.scan("bronze.values").sort_by("id").column("value").to_pylist() == values.to_pylist()
    assert (
        manager.scan_batches("bronze.values").read_all().sort_by("id").column("value").to_pylist() == values.to_pylist()
    )


@pytest.mark.requirement("S2-FR-012")
def test_nested_values_come_back_equal_and_null_is_not_empty(lake: Lake, manager: IcebergTableManager) -> None:
    item = pa.struct([("name", pa.string()), ("sizes", pa.list_(pa.int32()))])
    rows = pa.table(
        {
            "id": [1, 2, 3, 4],
            "items": pa.array([[{"name": "a", "sizes": [1, None]}], None, [], [None]], pa.list_(item)),
            "by_name": pa.array([[("k", {"name": "b", "sizes": None})], None, [], None], pa.map_(pa.string(), item)),
            "inner": pa.array([{"name": None, "sizes": []}, None, {"name": "", "sizes": [2]}, None], item),
        }
    )
    manager.create_table("bronze.nested", rows.schema)

    manager.append("bronze.nested", rows)
    manager.append("bronze.nested", rows.slice(1, 2))

    assert manager.scan("bronze.nested").sort_by("id").to_pylist() == rows.take([0, 1, 1, 2, 2, 3]).to_pylist()
    assert lake.table("bronze.nested").scan().to_arrow().num_rows == 6


@pytest.mark.lakes
@pytest.mark.parametrize("name", ["sp ace", "do.t", "quo'te", 'quo"te', "über", "1st", "select", "a=b", "😀"])
def test_columns_of_any_name_can_be_written_partitioned_and_read(manager: IcebergTableManager, name: str) -> None:
    rows = pa.table({"id": [1, 2], name: ["x", "y"]})
    manager.create_table("bronze.odd", rows.schema, partitioned_by((2, IdentityTransform(), name)))

    manager.append("bronze.odd", rows)
    manager.append("bronze.odd", rows.append_column(f"{name} too", pa.array([1, 2])))

    assert manager.scan("bronze.odd").sort_by("id").column(name).to_pylist() == ["x", "x", "y", "y"]
    assert manager.scan("bronze.odd", columns=[f"{name} too"]).column(0).null_count == 2


PLACES = {
    "object storage": {"write.object-storage.enabled": "true"},
    "data path": {"write.data.path": "{warehouse}/elsewhere"},
    "metadata path": {"write.metadata.path": "{warehouse}/else_metadata"},
    "no statistics": {"write.metadata.metrics.default": "none"},
    "counts only": {"write.metadata.metrics.default": "counts"},
    "gzip": {"write.parquet.compression-codec": "gzip"},
    "a file a row": {"write.target-file-size-bytes": "1"},
}


@pytest.mark.lakes
@pytest.mark.parametrize("properties", PLACES.values(), ids=PLACES)
def test_tables_may_say_where_and_how_their_files_are_written(
    lake: Lake, manager: IcebergTableManager, properties: dict[str, str]
) -> None:
    rows = pa.table({"id": [1, 2, 3], "region": ["EU", "US", None]})
    given = {key: value.format(warehouse=lake.place.warehouse_uri) for key, value in properties.items()}
    manager.create_table("bronze.placed", rows.schema, partitioned_by((2, IdentityTransform(), "region")), given)

    manager.append("bronze.placed", rows)
    manager.overwrite("bronze.placed", rows.slice(0, 1), overwrite_filter="id < 2")
    manager.upsert("bronze.placed", pa.table({"id": [3], "region": ["EU"]}), ["id"])
    manager.delete("bronze.placed", "id = 2")

    assert lake.rows("bronze.placed") == [(1, "EU"), (3, "EU")]
    assert lake.files() == reachable_files(lake.table("bronze.placed"))


def test_only_columns_whose_values_come_again_have_a_dictionary(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table(
        {
            "id": range(30_000),
            "region": ["eu", "us", "as"] * 10_000,
            "tags": [["a", "b"]] * 30_000,
            "place": [{"id": number} for number in range(30_000)],
        }
    )
    manager.create_table("bronze.t", rows.schema)
    manager.append("bronze.t", rows)
    manager.append("bronze.t", rows.slice(0, 100))

    large, small = sorted(live_files(lake.table("bronze.t")).values(), key=lambda file: -file.record_count)
    assert columns_with_a_dictionary(large) == {"region", "tags.list.element", "place.id"}
    assert columns_with_a_dictionary(small) == {"id", "region", "tags.list.element", "place.id"}
    assert lake.table("bronze.t").scan(row_filter="id = 29999").to_arrow().to_pylist() == rows.slice(29_999).to_pylist()


def columns_with_a_dictionary(file: DataFile) -> set[str]:
    group = pq.read_metadata(to_path(file.file_path)).row_group(0)
    columns = map(group.column, range(group.num_columns))
    return {column.path_in_schema for column in columns if column.has_dictionary_page}

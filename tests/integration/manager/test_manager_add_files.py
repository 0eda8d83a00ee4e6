"""Existing Parquet files become part of a table in one commit, or are refused with the reason."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyiceberg.table import Table
from support.lake import Lake
from support.racing_catalog import racing_manager
from support.spark_lake import SparkLake

from floe_dagster_iceberg.errors import EngineCapabilityError, NoSuchTableError, ValidationError
from floe_dagster_iceberg.models import FieldType, SchemaChange, SchemaChangeType, SchemaEvolution
from floe_dagster_iceberg.table.manager import IcebergTableManager

T = "bronze.t"
ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})


def write(path: Path, rows: pa.Table = ROWS, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **settings)
    return path


def refusal(manager: IcebergTableManager, path: Path, **settings: Any) -> str:
    """The reason; the table is as it was, and the plan says the same."""
    before = manager.load_table(T).metadata if manager.table_exists(T) else None
    with pytest.raises(ValidationError) as planned:
        manager.plan_add_files(T, [path], **settings)
    with pytest.raises(ValidationError) as error:
        manager.add_files(T, [path], **settings)
    assert str(error.value) == str(planned.value)
    assert (manager.load_table(T).metadata if manager.table_exists(T) else None) == before
    return str(error.value)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of another owner, outside of the warehouse."""
    return tmp_path / "landing"


@pytest.fixture
def table(manager: IcebergTableManager) -> Table:
    return manager.create_table(T, ROWS.schema)


@pytest.mark.lakes
def test_files_become_part_of_a_table_in_one_commit(
    manager: IcebergTableManager, lake: Lake, table: Table, source: Path
) -> None:
    paths = [write(source / "a.parquet"), write(source / "deep" / "b.parquet")]
    before = {path: path.read_bytes() for path in paths}
    (source / "_SUCCESS").write_text("")
    (source / ".hidden.parquet").write_text("")
    versions = lake.metadata_versions(T)
    snapshot = manager.add_files(T, [source], snapshot_properties={"reason": "migration"})

    assert snapshot is not None
    assert (snapshot.summary["added-records"], snapshot.summary["reason"]) == ("4", "migration")
    assert lake.metadata_versions(T) == versions + 1
    assert lake.rows(T) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]
    assert {path: path.read_bytes() for path in paths} == before
    assert sorted(table.refresh().inspect.files()["file_path"].to_pylist()) == [f"file://{path}" for path in paths]


def test_statistics_are_those_of_a_written_file(manager: IcebergTableManager, table: Table, source: Path) -> None:
    manager.add_files(T, [write(source / "a.parquet")])
    manager.append(T, ROWS)
    columns = ["record_count", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds"]
    first, second = table.refresh().inspect.files().select(columns).to_pylist()

    assert first == second


def test_a_missing_table_is_created_with_the_columns_of_all_files(
    manager: IcebergTableManager, lake: Lake, source: Path
) -> None:
    write(source / "region=EU" / "a.parquet", pa.table({"id": pa.array([1], pa.int32())}))
    write(source / "region=U%20S" / "b.parquet", pa.table({"id": pa.array([2], pa.int64()), "note": ["x"]}))
    write(source / "region=__HIVE_DEFAULT_PARTITION__" / "c.parquet", pa.table({"id": pa.array([3], pa.int64())}))
    plan = manager.plan_add_files("new.t", [source], create=True, partition_by=["region"])
    assert not manager.namespace_exists("new")
    assert (plan.created, plan.rows, len(plan.files), plan.sets_name_mapping) == (True, 3, 3, True)
    assert plan.partitions == {"region=EU": 1, "region=U+S": 1, "region=null": 1}
    manager.add_files("new.t", [source], create=True, partition_by=["region"])

    assert lake.rows("new.t") == [(1, None, "EU"), (2, "x", "U S"), (3, None, None)]
    assert lake.table("new.t").scan(row_filter="region = 'EU'").to_arrow()["id"].to_pylist() == [1]
    assert manager.scan("new.t", row_filter="region = 'U S'")["id"].to_pylist() == [2]
    assert len(lake.table("new.t").metadata.snapshots) == 1


@pytest.mark.parametrize(
    ("partition_by", "value", "partition"),
    [
        ("day(at)", datetime(2024, 1, 2, 3, tzinfo=UTC), "at_day=2024-01-02"),
        ("month(at)", datetime(2024, 1, 2, 3, tzinfo=UTC), "at_month=2024-01"),
        ("at", date(2024, 1, 2), "at=2024-01-02"),
        ("truncate(2, at)", "abc", "at_trunc_2=ab"),
        ("bucket(4, at)", 7, "at_bucket_4=3"),
        ("at", Decimal("1.50"), "at=1.50"),
        ("at", None, "at=null"),
    ],
)
def test_partition_values_come_from_statistics(
    manager: IcebergTableManager, source: Path, partition_by: str, value: object, partition: str
) -> None:
    kind = pa.string() if value is None else None
    rows = pa.table({"id": [1, 2], "at": pa.array([value, value], kind)})
    if isinstance(value, datetime):
        rows = rows.set_column(1, "at", rows["at"].cast(pa.timestamp("us", "UTC")))
    path = write(source / "a.parquet", rows)
    assert list(manager.plan_add_files(T, [path], create=True, partition_by=[partition_by]).partitions) == [partition]
    manager.add_files(T, [path], create=True, partition_by=[partition_by])
    manager.append(T, rows)
    first, second = (file["partition"] for file in manager.load_table(T).inspect.files().to_pylist())

    assert first == second


def test_a_file_with_rows_of_several_partitions_is_refused(manager: IcebergTableManager, source: Path) -> None:
    two = write(source / "two.parquet", pa.table({"at": ["a", "b"]}))
    some_null = write(source / "null.parquet", pa.table({"at": ["a", None]}))
    unknown = write(source / "unknown.parquet", pa.table({"at": ["a", "a"]}), write_statistics=False)
    floats = write(source / "floats.parquet", pa.table({"at": [1.0, 1.0]}))
    absent = write(source / "absent.parquet", pa.table({"id": [1]}))
    for path, partition_by, reason in (
        (two, "at", "belong to several partitions by 'at'"),
        (two, "bucket(1, at)", "belong to several partitions"),
        (some_null, "at", "belong to several partitions"),
        (unknown, "at", "no statistics of column 'at'"),
        (floats, "at", "do not count NaN"),
        (absent, "at", "'at'"),
    ):
        assert reason in refusal(manager, path, create=True, partition_by=[partition_by])
        assert not manager.table_exists(T)


def test_paths_and_rows_must_agree(manager: IcebergTableManager, source: Path) -> None:
    at = pa.table({"id": [1], "region": ["EU"]})
    wrong = write(source / "region=US" / "a.parquet", at)
    right = write(source / "region=EU" / "a.parquet", at)

    assert "not the one in its path" in refusal(manager, wrong, create=True, partition_by=["region"])
    manager.add_files(T, [right], create=True, partition_by=["region"])
    only_in_path = write(source / "kind=x" / "region=EU" / "b.parquet", at)
    kind = SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="kind", new_type=FieldType.STRING)
    manager.evolve_schema(T, SchemaEvolution(changes=[kind]))
    assert "column 'kind' is only in its path" in refusal(manager, only_in_path)


def test_a_column_that_is_only_in_paths_is_not_lost_silently(manager: IcebergTableManager, source: Path) -> None:
    path = write(source / "region=EU" / "a.parquet")

    assert "Column 'region' is only in the paths" in refusal(manager, path, create=True)


def test_a_value_in_a_path_has_the_type_of_its_column(manager: IcebergTableManager, source: Path) -> None:
    write(source / "day=2024-01-01" / "a.parquet")
    manager.add_files(T, [source], create=True, partition_by=["day"])
    other = write(source / "day=soon" / "b.parquet")

    assert manager.scan(T)["day"].to_pylist() == [date(2024, 1, 1)] * 2
    assert "the value of 'day' in its path is not of type date" in refusal(manager, other)


def ids(*numbers: int) -> pa.Table:
    fields = zip(ROWS.schema, numbers, strict=True)
    schema = pa.schema([field.with_metadata({"PARQUET:field_id": str(number)}) for field, number in fields])
    return ROWS.cast(schema)


@pytest.mark.usefixtures("table")
def test_files_with_the_field_ids_of_the_table_need_no_name_mapping(
    manager: IcebergTableManager, lake: Lake, source: Path
) -> None:
    manager.add_files(T, [write(source / "a.parquet", ids(1, 2))])

    assert "schema.name-mapping.default" not in lake.table(T).properties
    assert lake.rows(T) == [(1, "a"), (2, "b")]
    assert "was written for another table" in refusal(manager, write(source / "b.parquet", ids(2, 1)))
    assert "was written for another table" in refusal(manager, write(source / "c.parquet", ids(1, 7)))
    partly = ROWS.cast(pa.schema([ids(1, 2).schema.field(0), ROWS.schema.field(1)]))
    assert "others have none" in refusal(manager, write(source / "d.parquet", partly))


WRONG: Mapping[str, tuple[pa.Table, str]] = {
    "type": (pa.table({"id": ["1"], "name": ["a"]}), "its column 'id' is string, and that of the table is long"),
    "narrower": (pa.table({"id": [1], "name": [b"a"]}), "its column 'name' is binary"),
    "more columns": (ROWS.append_column("more", pa.array([1, 2])), "the table has no column 'more'"),
    "unsigned": (pa.table({"id": pa.array([1], pa.uint32())}), "column 'id' holds unsigned integers"),
    "nanoseconds": (pa.table({"id": pa.array([1], pa.timestamp("ns"))}), "timestamps as INT96"),
    "milliseconds": (pa.table({"id": pa.array([1], pa.timestamp("ms"))}), "or in milliseconds"),
    "nested": (pa.table({"id": [{"a": 1}]}), "nested fields or types"),
}


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("name", WRONG)
def test_files_with_other_columns_are_refused(manager: IcebergTableManager, source: Path, name: str) -> None:
    rows, reason = WRONG[name]

    assert reason in refusal(manager, write(source / "a.parquet", rows, version="2.6"))


def test_int96_timestamps_are_refused(manager: IcebergTableManager, source: Path) -> None:
    rows = pa.table({"at": pa.array([0], pa.timestamp("us"))})
    path = write(source / "a.parquet", rows, use_deprecated_int96_timestamps=True)

    assert "timestamps as INT96" in refusal(manager, path, create=True)


def test_narrower_numbers_are_widened_when_they_are_read(
    manager: IcebergTableManager, lake: Lake, source: Path
) -> None:
    manager.create_table(T, pa.schema([("id", pa.int64()), ("price", pa.float64())]))
    rows = pa.table({"id": pa.array([-3], pa.int32()), "price": pa.array([0.5], pa.float32())})
    manager.add_files(T, [write(source / "a.parquet", rows)])

    assert lake.rows(T) == [(-3, 0.5)]
    assert len(manager.scan(T, row_filter="id = -3 and price = 0.5")) == 1


def test_required_columns_must_be_complete(manager: IcebergTableManager, source: Path) -> None:
    manager.create_table(T, pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())]))
    complete = write(source / "a.parquet", pa.table({"id": [1]}))
    manager.add_files(T, [complete])

    assert manager.scan(T).to_pylist() == [{"id": 1, "name": None}]
    missing = write(source / "b.parquet", pa.table({"name": ["a"]}))
    assert "required column 'id' is missing" in refusal(manager, missing)
    holes = write(source / "c.parquet", pa.table({"id": pa.array([1, None], pa.int64())}))
    assert "'id' is required, and the file has NULLs in it" in refusal(manager, holes)
    unknown = write(source / "d.parquet", pa.table({"id": [1]}), write_statistics=False)
    assert "no statistics about them" in refusal(manager, unknown)


def corrupt(path: Path) -> Path:
    content = write(path).read_bytes()
    path.write_bytes(content[:-40] + b"\xff" * 32 + content[-8:])
    return path


def cut_off(path: Path) -> Path:
    path.write_bytes(write(path).read_bytes()[:-3])
    return path


def encrypted(path: Path, *, plaintext_footer: bool = False) -> Path:
    class Kms(pe.KmsClient):  # type: ignore[misc]
        def __init__(self, _: pe.KmsConnectionConfig) -> None:
            super().__init__()

        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            del master_key_identifier
            return key_bytes

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            del master_key_identifier
            return wrapped_key

    config = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["id"]}, plaintext_footer=plaintext_footer
    )
    properties = pe.CryptoFactory(Kms).file_encryption_properties(pe.KmsConnectionConfig(), config)
    return write(path, encryption_properties=properties)


def text(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("id,name\n1,a\n")
    return path


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (corrupt, "its footer is corrupt"),
        (cut_off, "was not written to its end"),
        (encrypted, "it is encrypted"),
        (lambda path: encrypted(path, plaintext_footer=True), "columns of it are encrypted"),
        (text, "it is not a Parquet file"),
        (lambda path: path, "does not exist or has no files"),
        (lambda path: write(path, ROWS.slice(0, 0)), "have no rows"),
    ],
)
def test_files_that_cannot_be_read_are_refused(
    manager: IcebergTableManager, source: Path, make: Callable[[Path], Path], reason: str
) -> None:
    assert reason in refusal(manager, make(source / "a.parquet"))


@pytest.mark.usefixtures("table")
def test_a_file_is_added_once(manager: IcebergTableManager, lake: Lake, source: Path) -> None:
    first = write(source / "a.parquet")
    manager.add_files(T, [first, f"file://{first}", source])
    assert "has it already" in refusal(manager, source)
    write(source / "b.parquet", ROWS.slice(1))
    assert manager.plan_add_files(T, [source], skip_existing=True).skipped == (f"file://{first}",)
    manager.add_files(T, [source], skip_existing=True)
    versions = lake.metadata_versions(T)

    assert manager.add_files(T, [source], skip_existing=True) is None
    assert lake.metadata_versions(T) == versions
    assert lake.rows(T) == [(1, "a"), (2, "b"), (2, "b")]


def test_a_renamed_column_is_found_in_the_files(manager: IcebergTableManager, lake: Lake, source: Path) -> None:
    manager.add_files(T, [write(source / "a.parquet")], create=True)
    change = SchemaChange(change_type=SchemaChangeType.RENAME_COLUMN, column_name="name", new_name="title")
    manager.evolve_schema(T, SchemaEvolution(changes=[change], allow_incompatible_changes=True))

    assert lake.table(T).scan().to_arrow()["title"].to_pylist() == ["a", "b"]
    assert manager.scan(T)["title"].to_pylist() == ["a", "b"]


@pytest.mark.usefixtures("table")
def test_files_can_be_kept_from_being_deleted(manager: IcebergTableManager, lake: Lake, source: Path) -> None:
    path = write(source / "a.parquet")
    manager.add_files(T, [path], keep_files=True)

    assert lake.table(T).properties["gc.enabled"] == "false"
    with pytest.raises(ValidationError, match=r"gc\.enabled"):
        manager.drop_table(T, purge=True)
    assert path.exists()


def test_a_table_that_is_missing_or_different_is_not_guessed(manager: IcebergTableManager, source: Path) -> None:
    path = write(source / "a.parquet")
    with pytest.raises(NoSuchTableError):
        manager.add_files(T, [path])
    manager.create_table(T, ROWS.schema)

    assert "is not partitioned by [id]" in refusal(manager, path, partition_by=["id"])
    assert "cannot be parsed" in refusal(manager, path, partition_by=["week(id)"])


@pytest.mark.usefixtures("table")
def test_a_branch_gets_the_files_and_main_does_not(manager: IcebergTableManager, lake: Lake, source: Path) -> None:
    manager.add_files(T, [write(source / "a.parquet")], branch="audit")

    assert lake.rows(T) == []
    assert len(manager.scan(T, branch="audit")) == 2


def test_nested_columns_are_read_by_every_engine(lake: Lake, manager: IcebergTableManager, source: Path) -> None:
    kinds = pa.schema(
        [
            ("id", pa.int32()),
            ("at", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())),
            ("who", pa.struct([("name", pa.string()), ("born", pa.date32())])),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("price", pa.decimal128(9, 2)),
        ]
    )
    row = {
        "id": 1,
        "at": datetime(2024, 1, 2, 3, 4, 5, 6000),  # noqa: DTZ001 - a local time
        "tags": ["a", "b"],
        "who": {"name": "x", "born": date(2000, 1, 1)},
        "counts": [("k", 2)],
        "price": Decimal("1.25"),
    }
    write(source / "region=EU" / "a.parquet", pa.Table.from_pylist([row], kinds))
    spark = SparkLake.open(lake.warehouse.parent).session
    spark.range(1).selectExpr("CAST(id AS INT) AS id", "array('z') AS tags").write.parquet(str(source / "region=US"))
    manager.add_files(T, [source], create=True, partition_by=["region"])
    found = spark.sql("SELECT * FROM floe.bronze.t WHERE region = 'EU' AND at > TIMESTAMP'2024-01-01'").collect()

    assert [(each.id, each.at, each.tags, each.who.name, each.counts, each.price) for each in found] == [
        (1, row["at"], ["a", "b"], "x", {"k": 2}, Decimal("1.25"))
    ]
    assert sorted(each.tags[0] for each in spark.table("floe.bronze.t").collect()) == ["a", "z"]
    for rows in (lake.table(T).scan().to_arrow(), manager.scan(T)):
        assert sorted((each["id"], each["tags"][0], each["region"]) for each in rows.to_pylist()) == [
            (0, "z", "US"),
            (1, "a", "EU"),
        ]


def test_a_newer_format_is_refused(manager: IcebergTableManager, lake: Lake, source: Path) -> None:
    spark = SparkLake.open(lake.warehouse.parent).session
    spark.sql("CREATE TABLE floe.bronze.t (id BIGINT, name STRING) TBLPROPERTIES ('format-version' = '3')")

    with pytest.raises(EngineCapabilityError, match="format version 3"):
        manager.add_files(T, [write(source / "a.parquet")])


@pytest.mark.usefixtures("table")
def test_two_imports_of_a_file_at_a_time_add_it_once(manager: IcebergTableManager, lake: Lake, source: Path) -> None:
    write(source / "a.parquet")
    late = racing_manager(lake.place, lambda: manager.add_files(T, [source]))
    with pytest.raises(ValidationError, match="has it already"):
        late.add_files(T, [source])
    write(source / "b.parquet", ROWS.slice(1))
    other = racing_manager(lake.place, lambda: manager.append(T, ROWS.slice(1)))
    other.add_files(T, [source], skip_existing=True)

    assert lake.rows(T) == [(1, "a"), (2, "b"), (2, "b"), (2, "b")]


def test_a_table_that_another_import_creates_meanwhile_is_used(
    manager: IcebergTableManager, lake: Lake, source: Path
) -> None:
    mine, theirs = write(source / "a.parquet"), write(source / "b.parquet", ROWS.slice(1))
    racing_manager(lake.place, lambda: manager.add_files(T, [theirs], create=True)).add_files(T, [mine], create=True)

    assert lake.rows(T) == [(1, "a"), (2, "b"), (2, "b")]


@pytest.mark.usefixtures("table")
def test_files_are_checked_against_the_table_that_they_are_committed_to(
    manager: IcebergTableManager, lake: Lake, source: Path
) -> None:
    path = write(source / "a.parquet")
    drop = SchemaChange(change_type=SchemaChangeType.DELETE_COLUMN, column_name="name")
    evolution = SchemaEvolution(changes=[drop], allow_incompatible_changes=True)
    late = racing_manager(lake.place, lambda: manager.evolve_schema(T, evolution))

    with pytest.raises(ValidationError, match="the table has no column 'name'"):
        late.add_files(T, [path])
    assert lake.rows(T) == []
    assert not lake.files("**/*.avro")

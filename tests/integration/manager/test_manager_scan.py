"""Reading rows: which, which columns, which version, how many at a time."""

import datetime as dt
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, In, Or
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform, IdentityTransform
from support.lake import Lake
from support.rival_writer import rival_writer
from support.table_facts import live_files, lose

from floe_dagster_iceberg.errors import NoSuchTableError, ScanError, SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.table.manager import IcebergTableManager

BY_DAY = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="day"))


def days(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers), "at": [dt.date(2024, 1, number) for number in numbers]})


@pytest.fixture
def visits(manager: IcebergTableManager) -> str:
    """Three days, a file each, the third with a NULL id in a struct beside it."""
    manager.create_table("bronze.visits", days(1).schema, BY_DAY)
    manager.append("bronze.visits", days(1, 2, 3))
    return "bronze.visits"


@pytest.mark.requirement("S4-scan")
def test_columns_filter_and_limit_say_what_is_read(manager: IcebergTableManager, visits: str) -> None:
    assert manager.scan(visits, columns=["id"]).column_names == ["id"]
    assert manager.scan(visits, row_filter="id > 1", columns=["at"]).num_rows == 2
    assert manager.scan(visits, ["id"], EqualTo("at", "2024-01-02")).to_pydict() == {"id": [2]}
    assert [manager.scan(visits, limit=limit).num_rows for limit in (0, 1, 2, 99)] == [0, 1, 2, 3]


@pytest.mark.lakes
@pytest.mark.requirement("S2-US6.3", "S2-FR-036")
def test_a_filter_opens_only_the_files_of_its_partitions(lake: Lake, manager: IcebergTableManager, visits: str) -> None:
    for path, file in live_files(lake.table(visits)).items():
        if file.partition[0] != 19724:
            lose(path)

    assert manager.scan(visits, row_filter="at = '2024-01-02'").column("id").to_pylist() == [2]
    assert len(list(lake.table(visits).scan(row_filter="at >= '2024-01-02' and at < '2024-01-03'").plan_files())) == 1
    with pytest.raises(ScanError, match=r"A file of table 'bronze\.visits' is missing"):
        manager.scan(visits)


@pytest.mark.requirement("S2-E7")
def test_a_filter_too_complex_to_prune_by_finds_the_right_rows(manager: IcebergTableManager, visits: str) -> None:
    words = " or ".join(f"(not (id != {number}) and at is not null)" for number in range(3, 60))
    deep = Or(*(EqualTo("id", number) for number in range(2, 300)))

    assert manager.scan(visits, row_filter=words).column("id").to_pylist() == [3]
    assert sorted(manager.scan(visits, row_filter=deep).column("id").to_pylist()) == [2, 3]
    assert manager.scan(visits, row_filter=In("id", range(3, 20_000))).num_rows == 1


@pytest.mark.requirement("S2-E7")
def test_a_partition_of_null_does_not_get_in_the_way_of_an_or(manager: IcebergTableManager) -> None:
    rows = pa.table({"region": ["EU", None], "n": [1, 2]})
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="region"))
    manager.create_table("bronze.regions", rows.schema, spec)
    manager.append("bronze.regions", rows)

    assert manager.scan("bronze.regions", row_filter="region < 'F' or n > 1").num_rows == 2
    assert manager.scan_batches("bronze.regions", row_filter="region < 'F' or n > 1").read_all().num_rows == 2


@pytest.mark.lakes
@pytest.mark.requirement("S2-US4.2", "S2-FR-023", "S4-scan")
def test_each_snapshot_shows_its_own_rows(manager: IcebergTableManager, visits: str) -> None:
    snapshots = [manager.append(visits, days(4)), manager.delete(visits, "id < 3"), manager.overwrite(visits, days(9))]

    assert [
        sorted(manager.scan(visits, snapshot_id=snapshot.snapshot_id).column("id").to_pylist())
        for snapshot in snapshots
        if snapshot is not None
    ] == [[1, 2, 3, 4], [3, 4], [9]]


@pytest.mark.requirement("S2-FR-023")
def test_a_time_shows_what_was_there_then(manager: IcebergTableManager, visits: str) -> None:
    before = datetime.now(UTC)
    time.sleep(0.01)
    manager.overwrite(visits, days(9))

    assert manager.scan(visits, as_of=before).num_rows == 3
    assert manager.scan(visits, as_of=datetime.now(UTC)).num_rows == 1
    assert manager.scan_batches(visits, as_of=before).read_all().num_rows == 3


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-023")
def test_a_tag_a_branch_and_main_are_read_by_name(manager: IcebergTableManager, visits: str) -> None:
    manager.create_tag(visits, "v1")
    manager.append(visits, days(4), branch="staging")
    manager.overwrite(visits, days(9))

    assert [manager.scan(visits, ref=ref).num_rows for ref in ("v1", "staging", "main")] == [3, 4, 1]


def test_main_of_an_empty_table_is_empty_and_has_the_tables_columns(manager: IcebergTableManager) -> None:
    manager.create_table("bronze.empty", days(1).schema)

    assert manager.scan("bronze.empty", ref="main").column_names == ["id", "at"]
    assert manager.scan("bronze.empty").num_rows == 0
    assert manager.scan_batches("bronze.empty", columns=["at"]).read_all().column_names == ["at"]


def test_an_old_snapshot_has_the_columns_it_had(lake: Lake, manager: IcebergTableManager, visits: str) -> None:
    first = lake.table(visits).current_snapshot().snapshot_id
    with lake.table(visits).update_schema() as update:
        update.rename_column("id", "number")
    manager.append(visits, pa.table({"number": [4], "note": ["x"]}))

    assert manager.scan(visits, snapshot_id=first).column_names == ["id", "at"]
    assert manager.scan(visits, columns=["id"], snapshot_id=first).num_rows == 3
    assert manager.scan(visits).column_names == ["number", "at", "note"]
    with pytest.raises(ValidationError, match="no column 'note'"):
        manager.scan(visits, columns=["note"], snapshot_id=first)


@pytest.mark.requirement("S4-scan")
@pytest.mark.parametrize("scan", ["scan", "scan_batches"])
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"columns": ["nothing"]}, ValidationError, "no column 'nothing'. It has: id, at"),
        ({"columns": "id"}, ValidationError, "as a list of names"),
        ({"row_filter": "nothing = 1"}, ValidationError, "names a column that does not exist"),
        ({"row_filter": "id = = 1"}, ValidationError, "cannot be parsed at character 6, after '>>>': id = >>> = …."),
        ({"row_filter": "id > 4711 adn id < 8"}, ValidationError, "at character 11, after '>>>': id > … >>> … id < …."),
        (
            {"row_filter": 'id > 8 and id == "x"'},
            ValidationError,
            "at character 18, after '>>>': id > … and id == >>> ….",
        ),
        ({"row_filter": 5}, ValidationError, "not int"),
        ({"snapshot_id": 42}, SnapshotNotFoundError, "42"),
        ({"ref": "nothing"}, SnapshotNotFoundError, "nothing"),
        ({"as_of": datetime(2020, 1, 1, tzinfo=UTC)}, SnapshotNotFoundError, "2020"),
        ({"as_of": datetime(2020, 1, 1)}, ValidationError, "time zone"),  # noqa: DTZ001
        ({"ref": "main", "snapshot_id": 42}, ValidationError, "takes one of snapshot_id, ref"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_table(
    manager: IcebergTableManager,
    visits: str,
    *,
    scan: str,
    arguments: dict[str, object],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words) as raised:
        getattr(manager, scan)(visits, **arguments)
    assert visits in str(raised.value)


@pytest.mark.lakes
def test_a_missing_table_and_a_negative_limit_are_errors(manager: IcebergTableManager, visits: str) -> None:
    with pytest.raises(NoSuchTableError):
        manager.scan("bronze.nothing")
    with pytest.raises(ValidationError, match="limited to -1"):
        manager.scan(visits, limit=-1)


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-027")
def test_a_scan_that_was_planned_before_a_commit_returns_the_old_rows(
    lake: Lake, manager: IcebergTableManager, visits: str
) -> None:
    reader = manager.scan_batches(visits)
    handle = manager.load_table(visits)
    with rival_writer(lake) as rival:
        rival.overwrite(visits, days(9))

    assert reader.read_all().num_rows == 3
    assert manager.scan(handle).num_rows == 3
    assert manager.scan(visits).num_rows == 1


@pytest.mark.lakes
@pytest.mark.requirement("S4-scan")
def test_a_stream_opens_one_file_after_the_other(lake: Lake, manager: IcebergTableManager, visits: str) -> None:
    reader = manager.scan_batches(visits)
    first = reader.read_next_batch()
    for path in lake.data_files():
        path.unlink()

    assert first.num_rows == 1
    with pytest.raises(ScanError, match=r"A file of table 'bronze\.visits' is missing"):
        reader.read_all()


def test_a_stream_has_the_same_rows_and_names_as_a_table(manager: IcebergTableManager) -> None:
    rows = pa.table(
        {
            "a.b": ["x", None],
            "tags": [["t"], None],
            "inner": pa.array([{"y": 1, "z": "q"}, None]),
            "at": pa.array([0, None], pa.timestamp("us", "UTC")),
            "key": pa.array([b"0" * 16, None], pa.uuid()),
        }
    )
    manager.create_table("bronze.odd", rows.schema)
    manager.append("bronze.odd", rows)

    streamed = manager.scan_batches("bronze.odd", columns=["inner.y", "a.b", "key", "tags"]).read_all()

    assert streamed.to_pylist() == manager.scan("bronze.odd", columns=["inner.y", "a.b", "key", "tags"]).to_pylist()
    assert manager.scan_batches("bronze.odd").read_all().to_pylist() == rows.to_pylist()

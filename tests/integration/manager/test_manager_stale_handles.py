"""Writers that loaded the table before others changed it: they conflict or land, and never undo in silence."""

import pyarrow as pa
import pytest
from support.lake import Lake
from support.racing_catalog import racing_manager
from support.rival_writer import rival_writer
from support.sales_table import rows
from support.table_facts import reachable_files

from floe_dagster_iceberg.errors import CommitConflictError, NoSuchTableError, ScanError, ValidationError
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes


@pytest.mark.requirement("S2-FR-028")
def test_a_stale_handle_does_not_overwrite_rows_it_never_saw(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale = lake.table(sales)
    with rival_writer(lake) as rival:
        rival.append(sales, rows((5, "EU")))
    theirs = lake.table(sales).metadata

    with pytest.raises(CommitConflictError, match="changed rows that are being replaced"):
        manager.overwrite(stale, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.table(sales).metadata == theirs
    assert lake.files() - reachable_files(lake.table(sales)) == set()


@pytest.mark.requirement("S2-FR-028")
@pytest.mark.parametrize("change", ["deleted", "overwritten"])
def test_a_stale_handle_does_not_bring_back_or_drop_what_others_changed(
    lake: Lake, manager: IcebergTableManager, sales: str, change: str
) -> None:
    stale = lake.table(sales)
    with rival_writer(lake) as rival:
        if change == "deleted":
            rival.delete(sales, "id = 1")
        else:
            rival.overwrite(sales, rows((7, "EU")), overwrite_filter="region = 'EU'")

    with pytest.raises(CommitConflictError):
        manager.overwrite(stale, rows((9, "EU")), overwrite_filter="region = 'EU'")


@pytest.mark.requirement("S2-FR-028", "S2-SC-006")
def test_a_stale_handle_overwrites_what_no_other_writer_touched(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale = lake.table(sales)
    with rival_writer(lake) as rival:
        rival.overwrite(sales, rows((7, "US")), overwrite_filter="region = 'US'")
        rival.append(sales, rows((8, None)))

    manager.overwrite(stale, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.rows(sales) == [(4, None), (7, "US"), (8, None), (9, "EU")]


@pytest.mark.requirement("S2-FR-028")
def test_a_rewrite_of_files_by_others_is_no_conflict(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    manager.append(sales, rows((5, "EU")))
    stale = lake.table(sales)
    with rival_writer(lake) as rival:
        rival.compact_table(sales)

    manager.overwrite(stale, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.rows(sales) == [(3, "US"), (4, None), (9, "EU")]


@pytest.fixture
def isolated(lake: Lake, sales: str) -> str:
    """The sales, with snapshot isolation."""
    with lake.table(sales).transaction() as transaction:
        transaction.set_properties({"write.update.isolation-level": "snapshot"})
    return sales


@pytest.mark.requirement("S2-FR-028")
def test_isolation_by_a_table_property_never_drops_unseen_rows(
    lake: Lake, manager: IcebergTableManager, isolated: str
) -> None:
    stale = lake.table(isolated)
    with rival_writer(lake) as rival:
        rival.append(isolated, rows((5, "EU"), (6, "US")))

    manager.overwrite(stale, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.rows(isolated) == [(3, "US"), (4, None), (5, "EU"), (6, "US"), (9, "EU")]
    assert lake.files() - reachable_files(lake.table(isolated)) == set()


@pytest.mark.requirement("S2-FR-029")
def test_with_snapshot_isolation_rows_that_come_right_before_the_commit_stay(
    lake: Lake, manager: IcebergTableManager, isolated: str
) -> None:
    late = racing_manager(lake.place, lambda: manager.append(isolated, rows((5, "EU"))))

    late.overwrite(isolated, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.rows(isolated) == [(3, "US"), (4, None), (5, "EU"), (9, "EU")]


@pytest.mark.requirement("S2-FR-028")
@pytest.mark.parametrize("change", ["deleted", "overwritten", "compacted with new ones"])
def test_with_snapshot_isolation_rows_that_others_took_away_are_a_conflict(
    lake: Lake, manager: IcebergTableManager, isolated: str, change: str
) -> None:
    stale = lake.table(isolated)
    with rival_writer(lake) as rival:
        match change:
            case "deleted":
                rival.delete(isolated, "id = 1")
            case "overwritten":
                rival.overwrite(isolated, rows((7, "EU")), overwrite_filter="region = 'EU'")
            case _:
                # The new rows are in a file with the old ones now, from which only the old ones could be replaced.
                rival.append(isolated, rows((5, "EU")))
                rival.compact_table(isolated)
    theirs = lake.table(isolated).metadata

    with pytest.raises(CommitConflictError, match="changed rows that are being replaced"):
        manager.overwrite(stale, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.table(isolated).metadata == theirs


@pytest.mark.requirement("S2-FR-028")
@pytest.mark.parametrize("asset", ["orders", "corrections"])
def test_with_snapshot_isolation_two_runs_of_one_asset_do_not_double_its_rows(
    lake: Lake, manager: IcebergTableManager, isolated: str, asset: str
) -> None:
    stale = lake.table(isolated)
    with rival_writer(lake) as rival:
        rival.overwrite(
            isolated,
            rows((8, "ASIA")),
            overwrite_filter="region = 'ASIA'",
            snapshot_properties={"dagster.asset-key": asset},
        )

    def overwrite() -> None:
        manager.overwrite(
            stale,
            rows((9, "ASIA")),
            overwrite_filter="region = 'ASIA'",
            snapshot_properties={"dagster.asset-key": "orders"},
        )

    if asset == "orders":
        with pytest.raises(CommitConflictError):
            overwrite()
    else:
        overwrite()
    found = [row[0] for row in lake.rows(isolated) if row[1] == "ASIA"]
    assert found == ([8] if asset == "orders" else [8, 9])


def test_an_unknown_isolation_level_is_refused(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    with lake.table(sales).transaction() as transaction:
        transaction.set_properties({"write.update.isolation-level": "chaos"})

    with pytest.raises(ValidationError, match=r"isolation-level' is 'chaos'\. Set it to serializable or snapshot"):
        manager.overwrite(sales, rows((9, "EU")))


@pytest.mark.parametrize("level", ["serializable", "snapshot"])
def test_deletes_and_upserts_never_fail_and_include_rows_that_others_added_first(
    lake: Lake, manager: IcebergTableManager, sales: str, level: str
) -> None:
    with lake.table(sales).transaction() as transaction:
        for command in ("delete", "update", "merge"):
            transaction.set_properties({f"write.{command}.isolation-level": level})
    others = (lambda: manager.append(sales, rows((5, "EU"))), lambda: manager.append(sales, rows((6, "US"))))

    racing_manager(lake.place, others[0]).delete(sales, "region = 'EU'")
    racing_manager(lake.place, others[1]).upsert(sales, rows((6, "ASIA")), ["id"])

    assert lake.rows(sales) == [(3, "US"), (4, None), (6, "ASIA")]


def test_a_stale_handle_of_an_empty_table_sees_the_first_rows_of_others(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table("bronze.new", rows().schema)
    stale = lake.table("bronze.new")
    with rival_writer(lake) as rival:
        rival.append("bronze.new", rows((1, "EU")))

    with pytest.raises(CommitConflictError):
        manager.overwrite(stale, rows((9, "EU")))
    assert lake.rows("bronze.new") == [(1, "EU")]


@pytest.mark.requirement("S2-FR-028")
def test_a_stale_handle_appends_on_top_of_what_others_did(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    stale = lake.table(sales)
    with rival_writer(lake) as rival:
        rival.overwrite(sales, rows((7, "EU")))

    snapshot = manager.append(stale, rows((9, "EU")))

    assert lake.rows(sales) == [(7, "EU"), (9, "EU")]
    assert lake.table(sales).current_snapshot().snapshot_id == snapshot.snapshot_id
    assert lake.files() - reachable_files(lake.table(sales)) == set()


@pytest.mark.requirement("S2-FR-028")
def test_a_stale_handle_deletes_and_upserts_on_top_of_what_others_did(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale, staler = lake.table(sales), lake.table(sales)
    with rival_writer(lake) as rival:
        rival.append(sales, rows((5, "EU"), (6, "EU")))

    manager.delete(stale, "id = 5")
    manager.upsert(staler, rows((6, "US")), ["id"])

    assert lake.rows(sales) == [(1, "EU"), (2, "EU"), (3, "US"), (4, None), (6, "US")]


@pytest.mark.requirement("S2-FR-028", "S2-E5")
def test_rows_written_for_an_older_schema_are_written_again_for_the_new_one(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale = lake.table(sales)
    with rival_writer(lake) as rival:
        rival.append(sales, rows((5, "EU")).append_column("theirs", pa.array([1])))

    manager.append(stale, rows((6, "EU")).append_column("ours", pa.array(["x"])))

    assert lake.table(sales).schema().column_names == ["id", "region", "theirs", "ours"]
    assert lake.rows(sales)[-2:] == [(5, "EU", 1, None), (6, "EU", None, "x")]


def partition_otherwise(lake: Lake, sales: str) -> None:
    """What another writer does meanwhile: a new spec, and rows under it."""
    with lake.table(sales).update_spec() as update:
        update.remove_field("region")
    with rival_writer(lake) as rival:
        rival.append(sales, rows((5, "EU")))


@pytest.mark.requirement("S2-FR-028")
def test_a_stream_that_no_longer_fits_the_table_is_a_conflict_and_leaves_nothing(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale = lake.table(sales)
    partition_otherwise(lake, sales)

    with pytest.raises(CommitConflictError, match="schema or partitioning"):
        manager.append(stale, rows((6, "EU")).to_reader())

    assert len(lake.rows(sales)) == 5
    assert lake.files("**/*.parquet") | lake.files("**/*.avro") <= reachable_files(lake.table(sales))


@pytest.mark.requirement("S2-FR-028")
def test_rows_written_for_an_older_partition_spec_are_written_again_for_the_new_one(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale = lake.table(sales)
    partition_otherwise(lake, sales)

    manager.append(stale, rows((6, "EU")))

    table = lake.table(sales)
    assert len(lake.rows(sales)) == 6
    assert {file.file.spec_id for file in table.scan(row_filter="id = 6").plan_files()} == {table.spec().spec_id}


@pytest.mark.requirement("S2-FR-028")
def test_a_handle_of_a_table_that_was_dropped_and_created_again_writes_nothing(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale = lake.table(sales)
    manager.drop_table(sales, purge=True)
    manager.create_table(sales, rows().schema)
    files = lake.files()

    for write in (
        lambda: manager.append(stale, rows((9, "EU"))),
        lambda: manager.overwrite(stale, rows((9, "EU"))),
        lambda: manager.upsert(stale, rows((9, "EU")), ["id"]),
        lambda: manager.delete(stale, "id = 1"),
    ):
        with pytest.raises((CommitConflictError, ScanError)):
            write()
    assert lake.rows(sales) == []
    assert lake.files() == files


def test_a_handle_of_a_table_that_was_dropped_writes_nothing(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    stale = lake.table(sales)
    manager.drop_table(sales)
    files = lake.files()

    for write in (lambda: manager.append(stale, rows((9, "EU"))), lambda: manager.delete(stale, "id = 1")):
        with pytest.raises(NoSuchTableError):
            write()
    assert lake.files() == files

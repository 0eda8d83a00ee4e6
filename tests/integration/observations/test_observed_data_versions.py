"""Data versions of observed tables change exactly when rows do, whoever writes and however."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import StringType
from support.lake import Lake
from support.observed_lake import ObservedLake, rows
from support.spark_lake import SparkLake

from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.requirement("S2-FR-022")
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.catalog.create_table("bronze.t", SCHEMA)


def compact(lake: Lake) -> None:
    IcebergTableManager(lake.connect()).compact_table("bronze.t")
    snapshot = lake.table("bronze.t").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE


def expire_all_but_newest(lake: Lake) -> None:
    IcebergTableManager(lake.connect()).expire_snapshots(
        "bronze.t", older_than=datetime.now(UTC) + timedelta(seconds=1), min_snapshots_to_keep=1
    )


def test_appends_overwrites_and_deletes_change_it(observed: ObservedLake, table: Table) -> None:
    versions = [observed.version()]
    for write in (
        lambda: table.append(rows(1, 2)),
        lambda: table.overwrite(rows(3, 4)),
        lambda: table.delete("id = 3"),
        lambda: table.delete("id = 4"),
    ):
        write()
        versions.append(observed.version())

    assert len(set(versions)) == 5
    assert versions[0] == str(table.metadata.table_uuid)
    assert versions[-1] == str(table.metadata.current_snapshot_id)


def test_looking_twice_does_not(observed: ObservedLake, table: Table) -> None:
    table.append(rows(1))

    assert observed.version() == observed.version()
    assert observed.materialized() == [(None, str(table.metadata.current_snapshot_id))]


def test_an_append_of_no_rows_does_not(observed: ObservedLake, table: Table) -> None:
    table.append(rows(1))
    before = observed.version()
    table.append(rows())

    assert len(table.refresh().metadata.snapshots) == 2
    assert observed.version() == before


def test_properties_and_schema_evolution_do_not(observed: ObservedLake, table: Table) -> None:
    table.append(rows(1))
    before = observed.version()
    with table.update_schema() as schema:
        schema.add_column("note", StringType())
    with table.transaction() as transaction:
        transaction.set_properties({"owner": "someone"})

    assert observed.version() == before


def test_compaction_does_not(observed: ObservedLake, lake: Lake, table: Table) -> None:
    table.append(rows(1))
    table.append(rows(2))
    before = observed.version()
    compact(lake)

    assert str(lake.table("bronze.t").metadata.current_snapshot_id) != before
    assert observed.version() == before


def test_compaction_does_not_if_the_snapshots_before_it_expire(
    observed: ObservedLake, lake: Lake, table: Table
) -> None:
    table.append(rows(1))
    table.append(rows(2))
    before = observed.version()
    updated = observed.metadata()["dagster/last_updated_timestamp"]
    compact(lake)
    observed.observe()
    expire_all_but_newest(lake)

    assert len(lake.table("bronze.t").metadata.snapshots) == 1
    assert observed.version() == before
    assert observed.metadata()["dagster/last_updated_timestamp"] == updated


def test_it_is_stable_if_the_last_change_expired_before_the_first_look(
    observed: ObservedLake, lake: Lake, table: Table
) -> None:
    table.append(rows(1))
    table.append(rows(2))
    compact(lake)
    expire_all_but_newest(lake)
    versions = {observed.version() for _ in range(2)}
    assert "dagster/last_updated_timestamp" not in observed.metadata()
    table.refresh().append(rows(3))
    versions.add(observed.version())

    assert len(versions) == 2


def test_a_change_is_not_missed_if_it_expired_behind_a_compaction(
    observed: ObservedLake, lake: Lake, table: Table
) -> None:
    before = observed.version()
    table.append(rows(1))
    table.append(rows(2))
    compact(lake)
    expire_all_but_newest(lake)

    assert observed.version() != before


def test_a_change_that_expired_unseen_changes_it(observed: ObservedLake, lake: Lake, table: Table) -> None:
    table.append(rows(1))
    before = observed.version()
    for number in (2, 3):
        table.append(rows(number))
    expire_all_but_newest(lake)

    assert observed.version() == str(table.metadata.current_snapshot_id) != before
    assert "has expired" in (observed.last().description or "")


def test_a_rollback_brings_back_the_version_of_its_rows(observed: ObservedLake, lake: Lake, table: Table) -> None:
    table.append(rows(1))
    first = observed.version()
    table.append(rows(2))
    second = observed.version()
    IcebergTableManager(lake.connect()).rollback_to_snapshot("bronze.t", int(first))

    assert observed.version() == first != second
    assert [version for _, version in observed.materialized()] == [first, second, first]


def test_a_table_that_is_created_again_has_another(observed: ObservedLake, lake: Lake, table: Table) -> None:
    table.append(rows(1))
    versions = [observed.version()]
    lake.catalog.drop_table("bronze.t")
    again = lake.catalog.create_table("bronze.t", SCHEMA)
    versions.append(observed.version())
    again.append(rows(1))
    versions.append(observed.version())

    assert len(set(versions)) == 3
    assert versions[1] == str(again.metadata.table_uuid)


def test_a_branch_does_not_change_it_until_it_is_published(observed: ObservedLake, lake: Lake, table: Table) -> None:
    table.append(rows(1))
    before = observed.version()
    manager = IcebergTableManager(lake.connect())
    manager.create_branch("bronze.t", "audit")
    manager.append("bronze.t", rows(2), branch="audit")
    staged = observed.version()
    manager.fast_forward("bronze.t", "main", "audit")

    assert staged == before != observed.version()


def test_what_spark_does_to_rows_changes_it_and_nothing_else(observed: ObservedLake, lake: Lake) -> None:
    spark = SparkLake.open(lake.warehouse.parent).session
    spark.sql("CREATE TABLE floe.bronze.t (id BIGINT, day DATE) TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    versions = [observed.version()]
    for statement, changes_rows in (
        ("INSERT INTO floe.bronze.t VALUES (1, DATE'2024-01-01'), (2, DATE'2024-01-02')", True),
        ("INSERT INTO floe.bronze.t VALUES (3, DATE'2024-01-03')", True),
        ("ALTER TABLE floe.bronze.t ADD COLUMN note STRING", False),
        ("ALTER TABLE floe.bronze.t ADD PARTITION FIELD days(day)", False),
        ("DELETE FROM floe.bronze.t WHERE id = 1", True),
        ("CALL floe.system.rewrite_data_files(table => 'floe.bronze.t', options => map('rewrite-all', 'true'))", False),
        ("CALL floe.system.rewrite_manifests('floe.bronze.t')", False),
        ("INSERT OVERWRITE floe.bronze.t VALUES (9, DATE'2024-01-01', 'x')", True),
        ("DELETE FROM floe.bronze.t WHERE id = 12345", False),
        (
            "MERGE INTO floe.bronze.t t USING (SELECT 9 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET note = ''",
            True,
        ),
    ):
        spark.sql(statement)
        versions.append(observed.version())
        assert (versions[-1] != versions[-2]) is changes_rows, statement

    assert observed.metadata()["iceberg/writer"].startswith("spark ")
    assert observed.metadata()["dagster/row_count"] == 1
    spark.sql("DROP TABLE floe.bronze.t")
    spark.sql("CREATE TABLE floe.bronze.t (id BIGINT)")
    assert observed.version() not in versions

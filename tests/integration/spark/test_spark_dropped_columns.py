"""Tables with files of an old partition spec whose column was dropped, renamed or widened since.

Spark can do all of that to a table. What we then write has to be read by Spark, by PyIceberg and by us.
"""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan, LessThan
from pyiceberg.manifest import write_manifest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from support.maintenance_tables import EAGER, later
from support.spark_lake import EVENTS, SparkLake, keyed

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenanceStatus, WriteMode
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, new_snapshot_id
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite

TABLE = "floe.public.events"
Rows = list[tuple[Any, ...]]


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    opened = SparkLake.open(tmp_path)
    opened.manager.create_namespace("public")
    return opened


def sql(lake: SparkLake, statement: str) -> Rows:
    return sorted(map(tuple, lake.session.sql(statement.replace("EVENTS", TABLE)).collect()), key=repr)


def insert(lake: SparkLake, values: str) -> None:
    """Rows in one file per partition."""
    sql(lake, f"INSERT INTO EVENTS SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")  # noqa: S608 - of this file


def events(*rows: tuple[int, str]) -> pa.Table:
    return pa.table({"id": [number for number, _ in rows], "region": [region for _, region in rows]})


def drop_partition_column(lake: SparkLake, *, version: int) -> None:
    """Four rows of three partitions by a column that is gone, and one of no partition."""
    sql(
        lake,
        "CREATE TABLE EVENTS (id BIGINT, a INT, region STRING) USING iceberg PARTITIONED BY (a) "
        f"TBLPROPERTIES ('format-version'='{version}')",
    )
    for values in ("(1, 1, 'eu'), (10, 1, 'us')", "(2, 2, 'eu')", "(3, 3, 'eu')"):
        insert(lake, values)
    sql(lake, "ALTER TABLE EVENTS DROP PARTITION FIELD a")
    sql(lake, "ALTER TABLE EVENTS DROP COLUMN a")


def let_spark_merge_manifests(lake: SparkLake) -> None:
    """Spark merges those of an old spec with its next commit, and loses the values of the dropped column."""
    sql(lake, "INSERT INTO EVENTS VALUES (4, 'us')")


def assert_reads(lake: SparkLake, *expected: tuple[int, str]) -> None:
    """All rows, and those of a filter, as raw Spark, raw PyIceberg and we read them."""
    rows, where = sorted(expected, key=repr), EqualTo("region", "us")
    american = sorted(row[0] for row in rows if row[1] == "us")

    assert sql(lake, "SELECT id, region FROM EVENTS") == rows
    assert sorted(row[0] for row in sql(lake, "SELECT id FROM EVENTS WHERE region = 'us'")) == american
    assert sorted(row[0] for row in sql(lake, "SELECT sum(record_count) FROM EVENTS.data_files")) == [len(rows)]
    # Also the manifests of files that were removed.
    sql(lake, "SELECT * FROM EVENTS.entries")
    assert lake.rows("id", "region") == rows
    assert sorted(lake.table().scan(where).to_arrow()["id"].to_pylist()) == american
    ours = lake.manager.scan(EVENTS, ["id", "region"])
    assert sorted((tuple(row.values()) for row in ours.to_pylist()), key=repr) == rows
    assert sorted(lake.manager.scan(EVENTS, row_filter=where)["id"].to_pylist()) == american


def live_partitions(lake: SparkLake) -> list[Any]:
    """What the manifests of the first spec say about the dropped column of live files, read by PyIceberg alone."""
    table = lake.table()
    return [
        entry.data_file.partition[0]
        for manifest in table.current_snapshot().manifests(table.io)
        if manifest.partition_spec_id == 0
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


@pytest.mark.parametrize(
    ("version", "merged"),
    [
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(1, False, marks=pytest.mark.slow),
        (2, True),
        pytest.param(2, False, marks=pytest.mark.slow),
    ],
    ids=["1, merged by Spark", "1, as written", "2, merged by Spark", "2, as written"],
)
def test_rows_are_changed_in_every_way(lake: SparkLake, version: int, *, merged: bool) -> None:
    drop_partition_column(lake, version=version)
    manager = lake.manager
    if merged:
        let_spark_merge_manifests(lake)
    else:
        manager.append(EVENTS, events((4, "us")))

    manager.delete(EVENTS, "id = 3")
    assert_reads(lake, (1, "eu"), (2, "eu"), (4, "us"), (10, "us"))
    assert sorted(live_partitions(lake), key=repr) == ([None, None] if merged else [1, 2])

    manager.upsert(EVENTS, events((2, "us"), (5, "us")), ["id"])
    manager.overwrite(EVENTS, events((30, "eu")), overwrite_filter="id = 10")
    assert_reads(lake, (1, "eu"), (2, "us"), (4, "us"), (5, "us"), (30, "eu"))

    replacing = TableWrite(EVENTS, WriteMode.OVERWRITE, RowScope(keyed("region", "us")))
    write_once(manager.catalog, ArrowRows(events((6, "us"))), replacing, CommitBudget.from_config(manager.config))
    manager.append(EVENTS, events((7, "us")), commit_strategy="merge_commit")
    lake.write(lake.frame(events((8, "asia"))), rows=keyed("region", "asia"), sort_by=["id"])
    assert_reads(lake, (1, "eu"), (6, "us"), (7, "us"), (8, "asia"), (30, "eu"))


def maintain(lake: SparkLake, operation: MaintenanceOperation, engine: MaintenanceEngine) -> MaintenanceStatus:
    # So late that every snapshot but the last has expired.
    maintenance = TableMaintenance(lake.manager, spark=lambda: lake.session, clock=lambda: later(timedelta(days=90)))
    result = maintenance.execute(operation, EVENTS, EAGER.model_copy(update={"engine": engine}))
    assert result.error is None
    return result.status


@pytest.mark.parametrize("engine", [MaintenanceEngine.PYICEBERG, MaintenanceEngine.AUTO], ids=str)
@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_files_manifests_and_snapshots_are_maintained(lake: SparkLake, version: int, engine: MaintenanceEngine) -> None:
    drop_partition_column(lake, version=version)
    let_spark_merge_manifests(lake)
    rows = [(1, "eu"), (2, "eu"), (3, "eu"), (4, "us"), (10, "us")]
    for number in range(5, 8):
        lake.manager.append(EVENTS, events((number, "asia")))
        rows.append((number, "asia"))

    assert maintain(lake, MaintenanceOperation.MANIFESTS, engine) is MaintenanceStatus.DONE
    assert_reads(lake, *rows)
    assert maintain(lake, MaintenanceOperation.COMPACTION, engine) is MaintenanceStatus.DONE
    assert live_partitions(lake) == []
    assert maintain(lake, MaintenanceOperation.SNAPSHOT_EXPIRY, engine) is MaintenanceStatus.DONE
    assert_reads(lake, *rows)


def test_a_column_that_no_schema_has_any_more_is_written_as_null(lake: SparkLake) -> None:
    drop_partition_column(lake, version=2)
    # Not by Spark, so that the manifests still have the values of the column.
    lake.manager.append(EVENTS, events((4, "us")))
    sql(
        lake,
        "CALL floe.system.expire_snapshots(table => 'public.events', older_than => TIMESTAMP'2999-01-01', "
        "retain_last => 1, clean_expired_metadata => true)",
    )
    metadata = lake.table().metadata
    assert not any(schema.find_type(2) for schema in metadata.schemas if 2 in schema.field_ids)
    assert sorted(live_partitions(lake)) == [1, 2, 3]

    lake.manager.upsert(EVENTS, events((1, "asia")), ["id"])

    assert_reads(lake, (1, "asia"), (2, "eu"), (3, "eu"), (4, "us"), (10, "us"))


def write_manifest_like_pyiceberg(table: Table) -> None:
    """Rewrite the manifests of the first spec as PyIceberg 0.12 does, which no reader accepts."""
    snapshot_id, transaction = new_snapshot_id(), TableTransaction(table)
    manifests = table.current_snapshot().manifests(table.io)
    output = table.io.new_output(f"{table.location()}/metadata/broken.avro")
    with write_manifest(2, table.specs()[0], table.schema(), output, snapshot_id, "deflate") as writer:
        for manifest in manifests:
            if manifest.partition_spec_id == 0:
                for entry in manifest.fetch_manifest_entry(table.io):
                    writer.existing(entry)
    kept = [manifest for manifest in manifests if manifest.partition_spec_id]
    SnapshotProducer(
        transaction,
        FileChanges(unopened=[writer.to_manifest_file(), *kept]),
        operation=Operation.REPLACE,
        snapshot_id=snapshot_id,
        snapshot_properties={},
        branch="main",
    ).commit()
    transaction.commit_once()


def test_a_manifest_that_pyiceberg_broke_is_read_and_replaced_by_compaction(lake: SparkLake) -> None:
    drop_partition_column(lake, version=2)
    let_spark_merge_manifests(lake)
    write_manifest_like_pyiceberg(lake.table())
    rows = [(1, "eu"), (2, "eu"), (3, "eu"), (4, "us"), (10, "us")]
    with pytest.raises(IndexError):
        lake.rows()
    with pytest.raises(SPARK_ERRORS):
        sql(lake, "SELECT * FROM EVENTS")

    assert sorted(lake.manager.scan(EVENTS)["id"].to_pylist()) == [row[0] for row in rows]
    lake.manager.compact_table(EVENTS)

    assert_reads(lake, *rows)


def test_deleted_rows_stay_deleted_when_spark_loses_the_partition_of_their_file(lake: SparkLake) -> None:
    sql(
        lake,
        "CREATE TABLE EVENTS (id BIGINT, a INT, region STRING) USING iceberg PARTITIONED BY (a) TBLPROPERTIES "
        "('format-version'='2', 'write.delete.mode'='merge-on-read', 'write.delete.granularity'='partition')",
    )
    for values in ("(1, 1, 'eu'), (10, 1, 'us')", "(2, 1, 'eu'), (20, 1, 'us')", "(3, 2, 'eu')"):
        insert(lake, values)
    sql(lake, "DELETE FROM EVENTS WHERE id IN (1, 2)")
    sql(lake, "ALTER TABLE EVENTS DROP PARTITION FIELD a")
    sql(lake, "ALTER TABLE EVENTS DROP COLUMN a")
    let_spark_merge_manifests(lake)
    # The delete file still has its partition, the data files do not. Spark itself no longer finds the deletes.
    assert set(live_partitions(lake)) == {None, 1}
    assert [row[0] for row in sql(lake, "SELECT id FROM EVENTS WHERE id IN (1, 2)")] == [1, 2]

    assert sorted(lake.manager.scan(EVENTS)["id"].to_pylist()) == [3, 4, 10, 20]
    lake.manager.compact_table(EVENTS)

    assert_reads(lake, (3, "eu"), (4, "us"), (10, "us"), (20, "us"))


BIG = 2**40
FILTERS: list[tuple[str, BooleanExpression, list[int]]] = [
    ("c = 2", EqualTo("c", 2), [2]),
    ("c > 2", GreaterThan("c", 2), [3, 4]),
    (f"c = {BIG}", EqualTo("c", BIG), [4]),
    ("day = DATE'2024-01-02'", EqualTo("day", "2024-01-02"), [2, 4]),
    ("c < 4 AND day > DATE'2024-01-01'", And(LessThan("c", 4), GreaterThan("day", "2024-01-01")), [2]),
]


def assert_filters(lake: SparkLake) -> None:
    for text, expression, ids in FILTERS:
        found = sql(lake, f"SELECT id FROM EVENTS WHERE {text}")  # noqa: S608 - of this file
        assert sorted(row[0] for row in found) == ids
        assert sorted(lake.table().scan(expression).to_arrow()["id"].to_pylist()) == ids
        assert sorted(lake.manager.scan(EVENTS, row_filter=expression)["id"].to_pylist()) == ids


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_files_of_four_specs_are_found_after_a_column_was_renamed_widened_and_dropped(
    lake: SparkLake, version: int
) -> None:
    sql(
        lake,
        "CREATE TABLE EVENTS (id BIGINT, a STRING, b INT, day DATE) USING iceberg PARTITIONED BY (a, b) "
        f"TBLPROPERTIES ('format-version'='{version}')",
    )
    sql(lake, "INSERT INTO EVENTS VALUES (1, 'x', 1, DATE'2024-01-01')")
    sql(lake, "ALTER TABLE EVENTS DROP PARTITION FIELD a")
    sql(lake, "INSERT INTO EVENTS VALUES (2, 'x', 2, DATE'2024-01-02')")
    sql(lake, "ALTER TABLE EVENTS ADD PARTITION FIELD truncate(2, b)")
    sql(lake, "INSERT INTO EVENTS VALUES (3, 'x', 3, DATE'2024-01-01')")
    sql(lake, "ALTER TABLE EVENTS DROP COLUMN a")
    sql(lake, "ALTER TABLE EVENTS ALTER COLUMN b TYPE BIGINT")
    sql(lake, "ALTER TABLE EVENTS RENAME COLUMN b TO c")
    sql(lake, "ALTER TABLE EVENTS ADD PARTITION FIELD months(day)")
    lake.manager.append(EVENTS, pa.table({"id": [4], "c": [BIG], "day": [date(2024, 1, 2)]}))
    assert len(lake.table().specs()) == 4
    assert_filters(lake)

    lake.manager.delete(EVENTS, "id = 5")
    lake.manager.overwrite(EVENTS, pa.table({"id": [1], "c": [1], "day": [date(2024, 1, 1)]}), overwrite_filter="c < 2")
    lake.manager.upsert(EVENTS, pa.table({"id": [2], "c": [2], "day": [date(2024, 1, 2)]}), ["id"])
    assert_filters(lake)
    lake.manager.compact_table(EVENTS)
    assert_filters(lake)

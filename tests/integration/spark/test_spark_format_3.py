"""Row ids and deletion vectors of tables of format version 3 survive everything that is done to the tables.

Looked at by raw Spark, which shows `_row_id`, and in the metadata file, whose `next-row-id` only grows.
"""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.foreign_writers import add_column, metadata_json
from support.maintenance_tables import DAY, EAGER, later
from support.spark_lake import EVENTS, SparkLake

from floe_dagster_iceberg.errors import (
    CommitConflictError,
    EngineCapabilityError,
    SnapshotNotFoundError,
    ValidationError,
)
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenanceStatus,
    PartitionField,
    PartitionSpec,
    PartitionTransform,
    PlanReason,
    SchemaChange,
    SchemaChangeType,
    SchemaEvolution,
    WriteMode,
)
from floe_dagster_iceberg.models.writing import MergeRules
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout

NAME = "floe.public.events"


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    return SparkLake.open(tmp_path)


@pytest.fixture
def manager(lake: SparkLake) -> IcebergTableManager:
    """The table manager with Spark."""
    manager = lake.pyspark.table_manager
    manager.create_namespace("public")
    return manager


def make_events(lake: SparkLake, *, files: int = 3) -> None:
    """Files of two rows each, and a deletion vector."""
    lake.session.sql(
        f"CREATE TABLE {NAME} (id BIGINT, p STRING) USING iceberg TBLPROPERTIES "
        "('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )
    for number in range(files):
        rows = pa.table({"id": [10 * number, 10 * number + 1], "p": ["a", "b"]})
        lake.write(lake.frame(rows), mode=WriteMode.APPEND)
    lake.session.sql(f"DELETE FROM {NAME} WHERE id = 1")  # noqa: S608 - a constant


def lineage(lake: SparkLake) -> dict[int, tuple[int, int]]:
    """The row id and the sequence number of the last update, by id."""
    found = lake.session.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {NAME}").collect()  # noqa: S608
    return {row[0]: (row[1], row[2]) for row in found}


def vectors(lake: SparkLake) -> int:
    return int(lake.session.sql(f"SELECT * FROM {NAME}.delete_files WHERE file_format = 'PUFFIN'").count())  # noqa: S608


class Watch:
    """Checks after every step that no row has lost its id, and that the next one has not gone back."""

    def __init__(self, lake: SparkLake) -> None:
        self._lake, self._rows = lake, lineage(lake)
        self._next_row_id = self._read()

    def check(self) -> None:
        assert lineage(self._lake) == self._rows
        now = self._read()
        assert now >= self._next_row_id
        self._next_row_id = now
        # Arrow reads the same rows, without the deleted one.
        assert sorted(self._lake.manager.scan(EVENTS)["id"].to_pylist()) == sorted(self._rows)

    def forget(self, *ids: int) -> None:
        for each in ids:
            del self._rows[each]

    def _read(self) -> int:
        document = metadata_json(self._lake.table())
        assert document["format-version"] == 3
        return int(document["next-row-id"])


def test_row_ids_and_deletion_vectors_survive_every_change_of_metadata(
    lake: SparkLake, manager: IcebergTableManager
) -> None:
    make_events(lake)
    watch = Watch(lake)
    first = lake.table().metadata.snapshots[0].snapshot_id
    now = lake.table().metadata.current_snapshot_id
    changes = SchemaEvolution(
        changes=[
            SchemaChange(
                change_type=SchemaChangeType.ADD_COLUMN, column_name="note", new_type="string", new_doc="it's"
            ),
            SchemaChange(change_type=SchemaChangeType.RENAME_COLUMN, column_name="p", new_name="part"),
            SchemaChange(change_type=SchemaChangeType.UPDATE_DOC, column_name="id", new_doc="the id"),
        ]
    )

    manager.create_tag(EVENTS, "v1", first, max_ref_age=timedelta(days=30))
    manager.create_branch(EVENTS, "audit", min_snapshots_to_keep=3, max_snapshot_age=timedelta(hours=2))
    watch.check()
    manager.evolve_schema(EVENTS, changes)
    manager.evolve_partition_spec(EVENTS, add=["bucket(4, id)"])
    watch.check()
    manager.rollback_to_snapshot(EVENTS, first)
    assert sorted(lineage(lake)) == [0, 1]
    manager.fast_forward(EVENTS, "main", "audit")
    manager.remove_ref(EVENTS, "audit")
    watch.check()

    table = lake.table()
    assert table.metadata.current_snapshot_id == now
    assert table.metadata.refs.keys() == {"main", "v1"}
    assert table.metadata.refs["v1"].max_ref_age_ms == 30 * 24 * 3600 * 1000
    assert table.schema().column_names == ["id", "part", "note"]
    assert [table.schema().find_field(name).doc for name in ("id", "note")] == ["the id", "it's"]
    assert [field.name for field in table.spec().fields] == ["id_bucket_4"]
    assert vectors(lake) == 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", [MaintenanceEngine.AUTO, MaintenanceEngine.SPARK], ids=str)
def test_row_ids_survive_maintenance(lake: SparkLake, manager: IcebergTableManager, engine: MaintenanceEngine) -> None:
    make_events(lake)
    watch = Watch(lake)
    policy = EAGER.model_copy(update={"engine": engine})
    maintenance = TableMaintenance(manager, spark=lambda: lake.session, clock=lambda: later(30 * DAY))
    done = {}

    for operation in (
        MaintenanceOperation.MANIFESTS,
        MaintenanceOperation.COMPACTION,
        MaintenanceOperation.POSITION_DELETES,
        MaintenanceOperation.SNAPSHOT_EXPIRY,
        MaintenanceOperation.ORPHAN_FILES,
    ):
        result = maintenance.execute(operation, EVENTS, policy)
        assert result.error is None
        done[operation] = (result.status, result.engine)
        watch.check()

    by_spark = (MaintenanceStatus.DONE, MaintenanceEngine.SPARK)
    assert {done[each] for each in list(done) if each.value in ("manifests", "compaction", "snapshot_expiry")} == {
        by_spark
    }
    assert len(lake.table().metadata.snapshots) == 1
    assert vectors(lake) == 0


def test_position_deletes_of_an_upgraded_table_become_deletion_vectors(
    lake: SparkLake, manager: IcebergTableManager
) -> None:
    lake.session.sql(
        f"CREATE TABLE {NAME} (id BIGINT) USING iceberg TBLPROPERTIES "
        "('write.delete.mode'='merge-on-read', 'write.delete.granularity'='partition')"
    )
    lake.session.range(0, 20, numPartitions=1).writeTo(NAME).append()
    for number in range(4):
        lake.session.sql(f"DELETE FROM {NAME} WHERE id = {number}")  # noqa: S608 - a number
    files = lake.session.sql(f"SELECT * FROM {NAME}.delete_files").count()  # noqa: S608
    manager.upgrade_format_version(EVENTS, 3)

    maintenance = TableMaintenance(manager, spark=lambda: lake.session)
    result = maintenance.execute(MaintenanceOperation.POSITION_DELETES, EVENTS, EAGER)
    again = maintenance.execute(MaintenanceOperation.POSITION_DELETES, EVENTS, EAGER)

    assert (files, result.status, result.files_removed, vectors(lake)) == (4, MaintenanceStatus.DONE, 4, 1)
    assert again.plan is not None
    assert again.plan.reason is PlanReason.BELOW_THRESHOLD
    assert sorted(manager.scan(EVENTS)["id"].to_pylist()) == list(range(4, 20))


def test_engine_pyiceberg_refuses_what_it_cannot_commit_and_changes_nothing(
    lake: SparkLake, manager: IcebergTableManager
) -> None:
    make_events(lake)
    before = lake.table().metadata_location
    policy = EAGER.model_copy(update={"engine": MaintenanceEngine.PYICEBERG})
    maintenance = TableMaintenance(manager, spark=lambda: lake.session, clock=lambda: later(30 * DAY))

    for operation in (
        MaintenanceOperation.MANIFESTS,
        MaintenanceOperation.COMPACTION,
        MaintenanceOperation.SNAPSHOT_EXPIRY,
    ):
        plan = maintenance.execute(operation, EVENTS, policy).plan
        assert plan is not None
        assert plan.reason is PlanReason.BLOCKED
        assert "format version 3, which PyIceberg cannot do. Use engine 'auto' or 'spark'." in str(plan.blocked_by)

    assert lake.table().metadata_location == before
    assert maintenance.health(EVENTS, policy).delete_files == 1


@pytest.mark.usefixtures("manager")
def test_the_table_manager_without_spark_refuses_to_commit(lake: SparkLake) -> None:
    make_events(lake, files=1)
    before, plain = lake.table().metadata_location, lake.manager
    rows = pa.table({"id": [5], "p": ["x"]})

    for refused in (
        lambda: plain.append(EVENTS, rows),
        lambda: plain.overwrite(EVENTS, rows),
        lambda: plain.upsert(EVENTS, rows, ["id"]),
        lambda: plain.delete(EVENTS, "id = 0"),
        lambda: plain.create_tag(EVENTS, "v1"),
        lambda: plain.upgrade_format_version(EVENTS, 3) and plain.create_branch(EVENTS, "b"),
        lambda: plain.create_table("public.other", rows.schema, properties={"format-version": "3"}),
    ):
        with pytest.raises(EngineCapabilityError, match="format version 3"):
            refused()

    assert lake.table().metadata_location == before
    assert not plain.table_exists("public.other")


def test_the_table_manager_with_spark_writes_rows(lake: SparkLake, manager: IcebergTableManager) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.string(), metadata={"doc": "a"})])
    manager.create_table(EVENTS, schema, properties={"format-version": "3", "owner": "sales"})
    manager.append(EVENTS, pa.table({"id": [1, 2, 3], "p": ["a", "b", "c"]}))
    kept = lineage(lake)[1]

    manager.upsert(EVENTS, pa.table({"id": [2, 4], "p": ["B", "d"]}), ["id"])
    manager.overwrite(EVENTS, pa.table({"id": [5], "p": ["c"]}), overwrite_filter="p = 'c'")
    deleted = manager.delete(EVENTS, "id = 4", snapshot_properties={"why": "test"})
    nothing = manager.delete(EVENTS, "id = 99")

    assert lake.rows() == [(1, "a"), (2, "B"), (5, "c")]
    assert lineage(lake)[1] == kept
    assert deleted is not None
    assert (deleted.deleted_records >= 1, deleted.summary["why"]) == (True, "test")
    assert nothing is None
    assert lake.table().schema().find_field("id").required
    assert lake.table().properties["owner"] == "sales"
    assert manager.expire_snapshots(EVENTS, older_than_days=0, min_snapshots_to_keep=1) > 0
    assert lineage(lake)[1] == kept


def test_what_spark_cannot_change_is_said_and_changes_nothing(lake: SparkLake, manager: IcebergTableManager) -> None:
    make_events(lake, files=1)
    before = lake.table().metadata_location
    required = SchemaEvolution(
        changes=[SchemaChange(change_type=SchemaChangeType.MAKE_REQUIRED, column_name="id")],
        allow_incompatible_changes=True,
    )

    with pytest.raises(EngineCapabilityError, match="Spark cannot make column 'id' required"):
        manager.evolve_schema(EVENTS, required)
    with pytest.raises(ValidationError, match="whole minutes"):
        manager.create_tag(EVENTS, "v1", max_ref_age=timedelta(seconds=90))
    with pytest.raises(SnapshotNotFoundError):
        manager.remove_ref(EVENTS, "nowhere")
    with pytest.raises(ValidationError, match="cannot get 2"):
        manager.upgrade_format_version(EVENTS, 2)

    assert lake.table().metadata_location == before


def test_of_changes_that_spark_cannot_all_make_none_is_made(lake: SparkLake, manager: IcebergTableManager) -> None:
    make_events(lake, files=1)
    before = lake.table().metadata_location
    rename = SchemaChange(change_type=SchemaChangeType.RENAME_COLUMN, column_name="p", new_name="part")
    required = SchemaChange(change_type=SchemaChangeType.MAKE_REQUIRED, column_name="id")
    swap = [
        SchemaChange(change_type=SchemaChangeType.RENAME_COLUMN, column_name=old, new_name=new)
        for old, new in (("p", "x"), ("id", "p"), ("x", "id"))
    ]

    with pytest.raises(EngineCapabilityError, match="Spark cannot make column 'id' required"):
        manager.evolve_schema(EVENTS, SchemaEvolution(changes=[rename, required], allow_incompatible_changes=True))
    with pytest.raises(EngineCapabilityError, match="Spark cannot swap the names of columns 'id' and 'p'"):
        manager.evolve_schema(EVENTS, SchemaEvolution(changes=swap, allow_incompatible_changes=True))

    assert lake.table().metadata_location == before


def test_a_name_that_another_column_gives_up_is_taken_over(lake: SparkLake, manager: IcebergTableManager) -> None:
    make_events(lake, files=1)
    changes = [
        SchemaChange(change_type=SchemaChangeType.RENAME_COLUMN, column_name="p", new_name="b `c` 'd'"),
        SchemaChange(change_type=SchemaChangeType.RENAME_COLUMN, column_name="id", new_name="p"),
        SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="id", new_type="string"),
    ]

    manager.evolve_schema(EVENTS, SchemaEvolution(changes=changes, allow_incompatible_changes=True))

    assert lake.session.sql(f"SELECT p, `b ``c`` 'd'`, id FROM {NAME}").collect() == [(0, "a", None)]  # noqa: S608


def test_a_creation_that_fails_after_its_first_statement_leaves_no_table(
    lake: SparkLake, manager: IcebergTableManager
) -> None:
    """A bucket field is added after the table was created; the catalog's database refuses that change."""
    rows = pa.table({"id": [1]})
    properties = {"format-version": "3"}
    bucket = PartitionField(
        source_field_id=1, partition_field_id=1000, name="b", transform=PartitionTransform.BUCKET, num_buckets=4
    )
    with closing(sqlite3.connect(lake.folder / "catalog.db")) as database:
        database.execute("CREATE TRIGGER t BEFORE UPDATE ON iceberg_tables BEGIN SELECT RAISE(IGNORE); END")

    with pytest.raises(CommitConflictError):
        manager.create_table(EVENTS, rows.schema, PartitionSpec(fields=[bucket]), properties)
    with pytest.raises(CommitConflictError):
        lake.write(lake.frame(rows), format_version=3, layout=PartitionLayout.from_strings(["bucket(4, id)"]))

    assert not manager.table_exists(EVENTS)
    # Iceberg's Java leaves the file of a version that the catalog refused.
    assert list((lake.folder / "warehouse").rglob("*00000-*")) == []


def test_a_change_that_was_planned_on_an_older_version_is_planned_again(
    lake: SparkLake, manager: IcebergTableManager
) -> None:
    """Another writer commits between the plan and the statement."""
    make_events(lake, files=1)
    stale: Table = manager.load_table(EVENTS)
    lake.session.sql(f"INSERT INTO {NAME} VALUES (7, 'x')")  # noqa: S608 - a constant

    manager.evolve_schema(
        stale, [SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="note", new_type="string")]
    )
    manager.create_tag(stale, "now")

    assert lake.table().metadata.refs["now"].snapshot_id == lake.table().metadata.current_snapshot_id
    assert sorted(lineage(lake)) == [0, 7]


def test_variants_are_written_by_spark_and_other_columns_are_read_by_arrow(
    lake: SparkLake, manager: IcebergTableManager
) -> None:
    def frame(*rows: str) -> Any:
        return lake.session.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t(id, v)")  # noqa: S608

    lake.write(frame("(1L, parse_json('{\"a\": 1}'))"), format_version=3, mode=WriteMode.APPEND)
    lake.write(frame("(2L, parse_json('[1, 2]'))"), mode=WriteMode.APPEND)
    added = lake.session.sql("SELECT 3L AS id, parse_json('3') AS v, parse_json('true') AS w")
    lake.write(added, mode=WriteMode.APPEND)

    assert [field["type"] for field in metadata_json(lake.table())["schemas"][-1]["fields"]] == [
        "long",
        "variant",
        "variant",
    ]
    found = lake.session.sql(f"SELECT id, to_json(v), to_json(w) FROM {NAME} ORDER BY id").collect()  # noqa: S608
    assert [tuple(row) for row in found] == [(1, '{"a":1}', None), (2, "[1,2]", None), (3, "3", "true")]
    assert sorted(manager.scan(EVENTS, ["id"])["id"].to_pylist()) == [1, 2, 3]
    assert manager.scan_batches(EVENTS, ["id"], row_filter="id > 1").read_all().num_rows == 2
    with pytest.raises(EngineCapabilityError, match=r"Column 'v' of 'public\.events' is of type variant"):
        manager.scan(EVENTS)
    maintenance = TableMaintenance(manager, spark=lambda: lake.session)
    assert maintenance.health(EVENTS, EAGER).data_files == 3
    assert maintenance.execute(MaintenanceOperation.COMPACTION, EVENTS, EAGER).status is MaintenanceStatus.DONE
    assert sorted(manager.scan(EVENTS, ["id"])["id"].to_pylist()) == [1, 2, 3]


def test_a_variant_needs_version_3(lake: SparkLake) -> None:
    frame = lake.session.sql("SELECT 1L AS id, parse_json('1') AS v")

    with pytest.raises(ValidationError, match="Column 'v' is of type variant, which needs format version 3"):
        lake.write(frame)
    lake.create(pa.schema([("id", pa.int64())]))
    with pytest.raises(ValidationError, match=r"Column 'v' .* 'public\.events' has 2"):
        lake.write(frame, mode=WriteMode.APPEND)

    assert lake.table().schema().column_names == ["id"]


def test_default_values_are_read_and_written(lake: SparkLake, manager: IcebergTableManager) -> None:
    """Spark SQL cannot set them; Iceberg's Java library can."""
    make_events(lake, files=1)
    add_column(lake.session, NAME, "size", "int", 9)
    add_column(lake.session, NAME, "label", "string", "it's new")

    # A frame without the columns, and one that says NULL.
    lake.write(lake.frame({"id": [7], "p": ["x"]}), mode=WriteMode.APPEND)
    lake.write(lake.frame(pa.table({"id": [8], "p": ["y"], "size": pa.nulls(1, pa.int32())})), mode=WriteMode.APPEND)

    lake.write(lake.frame({"id": [8, 9], "p": ["z", "z"]}), mode=WriteMode.UPSERT, merge=MergeRules(("id",)))

    expected = [
        (0, "a", 9, "it's new"),
        (7, "x", 9, "it's new"),
        (8, "z", None, "it's new"),
        (9, "z", 9, "it's new"),
    ]
    found = lake.session.sql(f"SELECT * FROM {NAME} ORDER BY id").collect()  # noqa: S608
    assert [tuple(row) for row in found] == expected
    assert lake.rows() == expected
    assert manager.scan(EVENTS, row_filter="size = 9").num_rows == 3


def test_nanoseconds_are_read_by_arrow_and_refused_by_spark(lake: SparkLake, manager: IcebergTableManager) -> None:
    make_events(lake, files=1)
    add_column(lake.session, NAME, "at", "timestamp_ns")

    assert manager.scan(EVENTS, ["id", "at"]).schema.field("at").type == pa.timestamp("ns")
    with pytest.raises(EngineCapabilityError, match="columns of type timestamp_ns, such as 'at'"):
        lake.write(lake.frame({"id": [7], "p": ["x"]}), mode=WriteMode.APPEND)
    with pytest.raises(EngineCapabilityError, match="timestamp_ns"):
        manager.append(EVENTS, pa.table({"id": [7], "p": ["x"]}))
    assert TableMaintenance(manager).health(EVENTS, EAGER).data_files == 1

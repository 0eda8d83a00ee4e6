"""What another tool left in the catalog: odd names, views, columns that PyIceberg cannot parse.

Spark makes all of it here. It is listed, read and maintained, or reported with the reason; it never stops anything
else, and nothing ever takes its place.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from dagster import ExecuteInProcessResult, asset, materialize
from pyspark.sql import SparkSession
from support.place import Place
from support.spark_session import spark_resource

from floe_dagster_iceberg import models
from floe_dagster_iceberg.errors import (
    EngineCapabilityError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager, SparkIcebergIOManager
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenanceStatus, TableIdentifier
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource, TableManagerSettings
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.selection import TableLocations, select_tables

pytestmark = pytest.mark.lakes

NAMES = [
    ("o dd", "two words"),
    ("plain", "a.b"),
    ("Größe", "東京"),
    ("O'Brien", 'say "hi"'),
    ("tick`s", "t`t"),
    ("br[1]", "t*"),
]
# Iceberg's REST server refuses these in the path of a request.
NAMES_OF_SQL = [("100%", "50%"), ("a/b", "c\\d")]
ROWS = pa.table({"id": [1, 2]})
REPAIR = models.StaleTableRecoveryMode.REPAIR
EAGER = models.MaintenancePolicy(
    compaction=models.CompactionPolicy(min_input_files=2),
    manifests=models.ManifestPolicy(min_manifests=2),
    expiry=models.ExpiryPolicy(max_age=timedelta(days=1), min_snapshots_to_keep=1),
)


@dataclass
class OtherTool:
    """Spark on the catalog, without this package in between, and this package beside it."""

    iceberg: IcebergResource
    pyspark: IcebergSparkResource

    @property
    def session(self) -> SparkSession:
        return self.pyspark.spark_session

    @property
    def manager(self) -> IcebergTableManager:
        return self.iceberg.table_manager

    def sql(self, statement: str, *name: str) -> list[tuple[Any, ...]]:
        """Run a statement; `{}` in it stands for a name."""
        quoted = ".".join(f"`{part.replace('`', '``')}`" for part in ("floe", *name))
        return [tuple(row) for row in self.session.sql(statement.replace("{}", quoted)).collect()]

    def create(self, namespace: str, name: str, *, files: int = 3) -> None:
        self.sql("CREATE NAMESPACE IF NOT EXISTS {}", namespace)
        self.sql("CREATE TABLE {} (id BIGINT) USING iceberg", namespace, name)
        self.fill(namespace, name, files=files)

    def fill(self, *name: str, files: int) -> None:
        for number in range(files):
            self.sql("INSERT INTO {} VALUES (0)".replace("0", str(number)), *name)

    def rows(self, *name: str) -> int:
        return len(self.sql("SELECT * FROM {}", *name))

    def run(self, key: Sequence[str], *, engine: str = "arrow") -> ExecuteInProcessResult:
        """Materialize an asset of this key."""
        session = self.session

        @asset(key=list(key))
        def rows() -> Any:
            return ROWS if engine == "arrow" else session.createDataFrame([(1,), (2,)], "id BIGINT")

        iceberg = self.iceberg
        own = {"arrow": ArrowIcebergIOManager(iceberg=iceberg)}
        if engine == "spark":
            own["spark"] = SparkIcebergIOManager(iceberg=iceberg, pyspark=self.pyspark)  # type: ignore[assignment]
        return materialize([rows], resources={"io_manager": own[engine]}, raise_on_error=False)


@pytest.fixture
def tool(place: Place) -> OtherTool:
    iceberg = place.iceberg(manager=TableManagerSettings(stale_table_recovery_mode=REPAIR))
    return OtherTool(iceberg, spark_resource(iceberg))


def failure_of(result: ExecuteInProcessResult) -> tuple[str, str, bool]:
    """Class, message and whether it may be retried."""
    [event] = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    assert data.description is not None
    facts = {name: value.value for name, value in data.metadata.items()}
    return str(facts["iceberg/error"]), data.description, bool(facts["iceberg/retryable"])


def is_sql(place: Place) -> bool:
    return place.catalog_type == "sql"


def fill(place: Place, name: tuple[str, str]) -> None:
    """A table of three files and snapshots, by PyIceberg alone."""
    with closing(place.connect()) as catalog:
        catalog.create_namespace_if_not_exists(name[:-1])
        table = catalog.create_table(name, ROWS.schema)
        for _ in range(3):
            table.append(ROWS)


def test_odd_names_are_listed_read_and_maintained(tool: OtherTool, place: Place) -> None:
    names = [*NAMES, *(NAMES_OF_SQL if is_sql(place) else [])]
    for name in names:
        fill(place, name)

    selected = select_tables(tool.manager, ["*"])

    assert sorted(table.as_tuple for table in selected.found) == sorted(names)
    assert selected.skipped == {}
    for table in selected.found:
        assert TableIdentifier.from_string(quoted(table)) == table
        assert tool.manager.load_table(str(table)).name() == table.as_tuple
        assert tool.manager.load_table(quoted(table)).name() == table.as_tuple
        assert tool.manager.scan(table).num_rows == 6
        assert select_tables(tool.manager, [quoted(table)]).found == [table]
        assert table in select_tables(tool.manager, [f"{quoted(table).rpartition('.`')[0]}.*"]).found
        maintain(tool, table, MaintenanceEngine.PYICEBERG)
        assert tool.rows(*table.as_tuple) == 6
    find_no_orphans(tool, table, MaintenanceEngine.PYICEBERG)


@pytest.mark.parametrize("name", [("o dd", "a.b"), ("tick`s", 'say "hi"')], ids=str)
def test_spark_maintains_odd_names(tool: OtherTool, place: Place, name: tuple[str, str]) -> None:
    fill(place, name)
    table = TableIdentifier.from_tuple(name)
    maintain(tool, table, MaintenanceEngine.SPARK)
    find_no_orphans(tool, table, MaintenanceEngine.SPARK)
    assert tool.rows(*name) == 6


def quoted(table: TableIdentifier) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in table.as_tuple)


def maintain(tool: OtherTool, table: TableIdentifier, engine: MaintenanceEngine) -> None:
    policy = EAGER.model_copy(update={"engine": engine})
    operations = (
        MaintenanceOperation.MANIFESTS,
        MaintenanceOperation.COMPACTION,
        MaintenanceOperation.SNAPSHOT_EXPIRY,
    )
    for operation in operations:
        result = _later(tool, timedelta(days=30)).execute(operation, table, policy)
        assert (result.status, result.engine, result.error) == (MaintenanceStatus.DONE, engine, None)
        assert result.table == table
    assert _later(tool, timedelta(0)).health(table, policy).data_files == 1


def find_no_orphans(tool: OtherTool, table: TableIdentifier, engine: MaintenanceEngine) -> None:
    policy = EAGER.model_copy(update={"engine": engine})
    result = _later(tool, timedelta(0)).execute(MaintenanceOperation.ORPHAN_FILES, table, policy)
    assert (result.status, result.engine, result.error) == (MaintenanceStatus.SKIPPED, engine, None)


def _later(tool: OtherTool, after: timedelta) -> TableMaintenance:
    return TableMaintenance(tool.manager, spark=lambda: tool.session, clock=lambda: datetime.now(UTC) + after)


def test_a_namespace_that_cannot_be_listed_is_skipped_with_the_reason(tool: OtherTool, place: Place) -> None:
    tool.create("plain", "t", files=1)
    odd = " o dd " if is_sql(place) else "100%"
    if is_sql(place):
        # PyIceberg would take it for the one without blanks.
        tool.create("o dd", "t", files=1)
        tool.create(odd, "other", files=1)
    else:
        with closing(place.connect()) as catalog:
            catalog.create_namespace((odd,))

    selected = select_tables(tool.manager, ["*"])

    assert [str(table) for table in selected.found] == (["o dd.t", "plain.t"] if is_sql(place) else ["plain.t"])
    assert list(selected.skipped) == [odd]
    assert ("begin or end with a blank" if is_sql(place) else "HTTP 400") in selected.skipped[odd]
    assert TableLocations(tool.manager).overlapping_tables(tool.manager.load_table("plain.t")) == []
    if is_sql(place):
        with pytest.raises(NoSuchTableError):
            tool.manager.drop_table(TableIdentifier.from_tuple((odd, "t")))
        assert tool.rows("o dd", "t") == tool.rows(odd, "other") == 1


def test_odd_names_are_not_created(tool: OtherTool) -> None:
    manager = tool.manager
    manager.create_namespace("plain")

    with pytest.raises(ValidationError, match=r"'plain\.two words' cannot be created.*not valid"):
        manager.create_table("plain.`two words`", ROWS.schema)
    for namespace in ("o dd", "`a.b`", ("a.b",), "a..b"):
        with pytest.raises(ValidationError, match="not valid"):
            manager.create_namespace(namespace)

    assert (manager.list_tables("plain"), manager.list_namespaces()) == ([], ["plain"])


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_an_asset_named_like_a_view_fails_and_nothing_is_created(tool: OtherTool, place: Place, engine: str) -> None:
    tool.create("plain", "t", files=1)
    tool.sql("CREATE VIEW {} AS SELECT id FROM floe.plain.t", "plain", "recent")
    files = place.files()

    kind, message, retryable = failure_of(tool.run(["plain", "recent"], engine=engine))

    assert (kind, retryable) == ("ValidationError", False)
    assert message.startswith("'plain.recent' is a view in catalog 'floe'")
    for create in (tool.manager.create_table, tool.manager.create_table_if_not_exists):
        with pytest.raises(ValidationError, match=r"'plain\.recent' is a view"):
            create("plain.recent", ROWS.schema)
    with pytest.raises(NoSuchTableError, match=r"'plain\.recent' not found.* There is a view of that name"):
        tool.manager.scan("plain.recent")
    assert [str(table) for table in select_tables(tool.manager, ["*"]).found] == ["plain.t"]
    assert (tool.rows("plain", "recent"), place.files()) == (1, files)


def create_variant(tool: OtherTool) -> None:
    """A healthy table that PyIceberg 0.12 cannot parse, after a version that it can."""
    tool.sql("CREATE NAMESPACE {}", "plain")
    tool.sql("CREATE TABLE {} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')", "plain", "events")
    tool.sql("INSERT INTO {} VALUES (1)", "plain", "events")
    tool.sql("ALTER TABLE {} ADD COLUMN v VARIANT", "plain", "events")
    tool.sql("""INSERT INTO {} VALUES (2, parse_json('{"a": 1}'))""", "plain", "events")


def history_of(tool: OtherTool) -> list[tuple[Any, ...]]:
    """Every version of the table that Spark knows."""
    return tool.sql("SELECT file, latest_snapshot_id FROM {}.metadata_log_entries ORDER BY file", "plain", "events")


def test_a_column_that_pyiceberg_cannot_parse_is_named_and_the_table_stays(tool: OtherTool, place: Place) -> None:
    """In repair mode, which used to drop the table or to move it to the version before that column."""
    create_variant(tool)
    tool.create("plain", "other", files=1)
    manager, facts, files = tool.manager, history_of(tool), place.files()

    with pytest.raises(EngineCapabilityError, match=r"Column 'v' of 'plain\.events' is of type variant"):
        manager.scan("plain.events")
    for write in (manager.append, manager.overwrite):
        with pytest.raises(EngineCapabilityError, match="format version 3") as refused:
            write("plain.events", ROWS)
        assert "repair" not in str(refused.value)
    with pytest.raises(TableAlreadyExistsError):
        manager.create_table("plain.events", ROWS.schema)
    assert manager.create_table_if_not_exists("plain.events", ROWS.schema).schema().column_names == ["id", "v"]
    kind, _, retryable = failure_of(tool.run(["plain", "events"]))
    assert (kind, retryable) == ("EngineCapabilityError", False)

    assert manager.table_exists("plain.events")
    assert manager.list_tables("plain") == ["events", "other"]
    find_no_orphans(tool, TableIdentifier.from_string("plain.other"), MaintenanceEngine.PYICEBERG)
    assert (history_of(tool), place.files()) == (facts, files)
    assert tool.sql("SELECT id, to_json(v) FROM {} ORDER BY id", "plain", "events") == [(1, None), (2, '{"a":1}')]


def test_a_first_write_by_spark_never_replaces_a_table_that_pyiceberg_cannot_parse(tool: OtherTool) -> None:
    create_variant(tool)

    tool.run(["plain", "events"], engine="spark")

    assert (2, '{"a":1}') in tool.sql("SELECT id, to_json(v) FROM {}", "plain", "events")


def test_orphans_are_not_searched_above_a_table_that_pyiceberg_cannot_parse(tool: OtherTool) -> None:
    create_variant(tool)
    location = tool.sql("SELECT file_path FROM {}.files LIMIT 1", "plain", "events")[0][0].rpartition("/data/")[0]
    manager = tool.manager
    manager.create_table("plain.above", ROWS.schema, location=location.rpartition("/")[0])
    manager.append("plain.above", ROWS)

    plan = _later(tool, timedelta(0)).plan(MaintenanceOperation.ORPHAN_FILES, "plain.above", EAGER)

    assert plan.blocked_by is not None
    assert "overlaps with that of 'plain.events'" in plan.blocked_by

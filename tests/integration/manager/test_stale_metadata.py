"""A metadata file that is missing or truncated: reported as such, or repaired by a write on request."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import ExecuteInProcessResult, asset, materialize
from support.place import Place, empty_place
from support.servers.running import Servers
from support.servers.s3 import forget_files

from floe_dagster_iceberg import iceberg_settings
from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.errors import (
    CatalogConnectionError,
    StaleTableMetadataError,
    TableAlreadyExistsError,
    UnsupportedMetadataError,
    WriteError,
)
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.models import StaleTableRecoveryMode
from floe_dagster_iceberg.resources import IcebergResource, TableManagerSettings
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.requirement("S2-E6")

TABLE = "public.orders"
ROWS = pa.table({"id": [1, 2]})
Damage = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\xffgarbage" * 20),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
}

# Iceberg's server reads a file that is invalid again and again, for minutes: its clients only see it hang.
PLACES_AND_DAMAGES = pytest.mark.parametrize(
    ("place", "damage"),
    [*(("sqlite", damage) for damage in DAMAGES.values()), ("rest", DAMAGES["missing"])],
    indirect=["place"],
    ids=[*(f"sqlite-{name}" for name in DAMAGES), "rest-missing"],
)
on_sqlite = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
_numbers = count()


@pytest.fixture(params=["sqlite", "rest"])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    return empty_place(request.param, tmp_path, servers)


@pytest.fixture
def table(place: Place) -> str:
    """A table of two commits."""
    manager = place.iceberg().table_manager
    manager.create_namespace("public")
    manager.create_table(TABLE, ROWS.schema)
    manager.append(TABLE, ROWS)
    manager.append(TABLE, ROWS)
    return TABLE


def newcomer(place: Place, mode: StaleTableRecoveryMode = StaleTableRecoveryMode.STRICT) -> IcebergResource:
    """A client with its own connection that has never loaded the table."""
    delay = 0.1 + next(_numbers) / 1000
    return place.iceberg(manager=TableManagerSettings(retry_base_delay_seconds=delay, stale_table_recovery_mode=mode))


def repairer(place: Place) -> IcebergResource:
    return newcomer(place, StaleTableRecoveryMode.REPAIR)


def versions(place: Place) -> list[Path]:
    """Metadata files of the only table, oldest first."""
    return sorted(place.warehouse.rglob("*.metadata.json"))


def harm_newest(place: Place, damage: Damage = DAMAGES["missing"]) -> Path:
    """Damage the newest metadata file without a commit; returns its path."""
    newest = versions(place)[-1]
    damage(newest)
    forget_files()
    return newest


def entries(place: Place) -> list[tuple[Any, ...]]:
    """The rows of a SQLite catalog: table, metadata file, the one before."""
    database = place.catalog_config["uri"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute(
            "SELECT table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
        )
        return [(name, *(each and each.rpartition("/")[2] for each in places)) for name, *places in found]


def run(iceberg: IcebergResource) -> ExecuteInProcessResult:
    @asset
    def orders() -> pa.Table:
        return ROWS

    io_manager = ArrowIcebergIOManager(iceberg=iceberg)
    return materialize([orders], resources={"io_manager": io_manager}, raise_on_error=False)


def every_file(place: Place) -> set[Path]:
    return {path for path in place.warehouse.rglob("*") if path.is_file()}


def row_count(place: Place) -> int:
    """Rows of the table, as a client that repairs nothing reads them."""
    return int(newcomer(place).table_manager.load_table(TABLE).scan().to_arrow().num_rows)


@PLACES_AND_DAMAGES
def test_by_default_it_is_an_error_that_names_table_and_file_and_changes_nothing(
    place: Place, table: str, damage: Damage
) -> None:
    newest = harm_newest(place, damage)
    files, iceberg = every_file(place), newcomer(place)

    for use in (iceberg.table_manager.load_table, lambda name: iceberg.table_manager.append(name, ROWS)):
        with pytest.raises(StaleTableMetadataError, match=r"public\.orders") as failure:
            use(table)
        assert failure.value.metadata_location is not None
        assert failure.value.metadata_location.endswith(newest.name)
    assert not run(iceberg).success
    assert iceberg.table_manager.table_exists(table)
    assert every_file(place) == files


@PLACES_AND_DAMAGES
def test_reading_repairs_nothing(place: Place, table: str, damage: Damage) -> None:
    harm_newest(place, damage)
    files, manager = every_file(place), repairer(place).table_manager

    for read in (manager.load_table, manager.scan, manager.list_snapshots, manager.scan_batches):
        with pytest.raises(StaleTableMetadataError):
            read(table)
    with pytest.raises(StaleTableMetadataError):
        manager.create_table_if_not_exists(table, ROWS.schema)
    with pytest.raises(StaleTableMetadataError):
        manager.expire_snapshots(table)

    assert every_file(place) == files
    with pytest.raises(StaleTableMetadataError):
        newcomer(place).table_manager.load_table(table)


@on_sqlite
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_write_goes_on_from_the_newest_version_that_is_left(
    place: Place, table: str, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = versions(place)[-2]
    broken = harm_newest(place, damage)

    repairer(place).table_manager.append(table, ROWS)

    assert row_count(place) == 4
    [(name, current, previous)] = entries(place)
    [newest] = [path for path in versions(place) if path.name == current]
    assert (name, previous) == ("orders", healthy.name)
    assert json.loads(newest.read_text())["metadata-log"][-1]["metadata-file"].endswith(healthy.name)
    [warning] = [record.getMessage() for record in caplog.records if "set back" in record.getMessage()]
    assert broken.name in warning
    assert healthy.name in warning


@on_sqlite
def test_what_a_repair_did_is_in_the_log_and_the_materialization_and_can_be_undone(
    place: Place, table: str, capfd: pytest.CaptureFixture[str]
) -> None:
    content = versions(place)[-1].read_bytes()
    broken = harm_newest(place)

    [event] = run(repairer(place)).asset_materializations_for_node("orders")

    before, after = (str(event.metadata[f"iceberg/repaired_{way}"].value) for way in ("from", "to"))
    assert (Path(before).name, Path(after).name) == (broken.name, versions(place)[1].name)
    assert re.search(rf"- dagster - WARNING - .*{broken.name}.* To undo this", capfd.readouterr().err)
    assert row_count(place) == 4

    broken.write_bytes(content)
    manager = newcomer(place).table_manager
    manager.drop_table(table)
    manager.register_table(table, before)
    assert row_count(place) == 4
    assert "iceberg/repaired_from" not in run(newcomer(place)).asset_materializations_for_node("orders")[0].metadata


@on_sqlite
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_stream_is_written_once_to_a_repaired_table(place: Place, table: str, mode: str) -> None:
    harm_newest(place)

    @asset(metadata=iceberg_settings(write_mode=mode, upsert_keys=["id"] if mode == "upsert" else ()))
    def orders() -> pa.RecordBatchReader:
        return pa.table({"id": [7, 8]}).to_reader()

    iceberg = repairer(place)
    assert materialize([orders], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)}).success

    kept = [] if mode == "overwrite" else [1, 2]
    assert sorted(newcomer(place).table_manager.scan(table)["id"].to_pylist()) == [*kept, 7, 8]


def test_a_stream_that_was_read_is_refused_instead_of_written_as_no_rows() -> None:
    rows = ArrowRows(ROWS.to_reader())
    assert rows.to_table().num_rows == 2
    with pytest.raises(WriteError, match="stream that was read already"):
        rows.to_table()


def test_where_no_version_is_left_the_entry_stays_and_no_table_takes_its_place(place: Place, table: str) -> None:
    for _ in versions(place):
        harm_newest(place)
    files = every_file(place)

    with pytest.raises(StaleTableMetadataError, match="nothing was changed: no version of it is left"):
        repairer(place).table_manager.append(table, ROWS)
    assert not run(repairer(place)).success

    assert every_file(place) == files
    assert newcomer(place).table_manager.table_exists(table)


@on_sqlite
def test_a_file_that_a_failed_commit_left_is_never_taken_for_a_version(place: Place, table: str) -> None:
    """Catalogs write the metadata of a commit before they find out that it lost."""
    newest = versions(place)[-1]
    lost = newest.with_name("00002-00000000-0000-0000-0000-000000000000.metadata.json")
    lost.write_bytes(newest.read_bytes().replace(b'"orders"', b'"lost"'))
    DAMAGES["missing"](newest)

    repairer(place).table_manager.append(table, ROWS)

    [(_, _, previous)] = entries(place)
    assert previous.startswith("00001-")
    assert row_count(place) == 4


@on_sqlite
def test_versions_of_a_dropped_table_of_the_same_name_are_not_taken(place: Place, table: str) -> None:
    manager = newcomer(place).table_manager
    manager.append(table, ROWS)
    dropped = set(versions(place))
    manager.drop_table(table)
    manager.create_table(table, ROWS.schema)
    manager.append(table, ROWS)
    own = sorted({*versions(place)} - dropped)
    for path in own:
        path.unlink()

    with pytest.raises(StaleTableMetadataError, match="It was not repaired"):
        repairer(place).table_manager.append(table, ROWS)

    assert entries(place)[0][1] == own[-1].name


@pytest.mark.parametrize("place", ["rest"], indirect=True)
def test_a_server_that_cannot_replace_an_entry_is_reported_with_what_to_do(place: Place, table: str) -> None:
    healthy = versions(place)[-2]
    harm_newest(place)
    files = every_file(place)

    with pytest.raises(StaleTableMetadataError, match=r"cannot replace its entry in one step\. The newest") as refused:
        repairer(place).table_manager.append(table, ROWS)
    assert not run(repairer(place)).success

    assert every_file(place) == files
    [newest] = re.findall(r"is left is (\S+): drop", str(refused.value))
    assert newest.endswith(healthy.name)
    manager = newcomer(place).table_manager
    manager.drop_table(table)
    manager.register_table(table, newest)
    assert row_count(place) == 2


def test_a_server_that_can_replace_an_entry_does(tmp_path: Path, servers: Servers) -> None:
    place = empty_place("gateway", tmp_path, servers)
    # The gateway vends keys with tables; this one cannot be loaded.
    place = replace(place, storage_config=servers.storage_config)
    manager = place.iceberg().table_manager
    manager.create_namespace("public")
    manager.create_table(TABLE, ROWS.schema)
    manager.append(TABLE, ROWS)
    manager.append(TABLE, ROWS)
    broken, servers.gateway.overwrites = harm_newest(place), True

    try:
        [event] = run(repairer(place)).asset_materializations_for_node("orders")
    finally:
        servers.gateway.overwrites = False

    assert str(event.metadata["iceberg/repaired_from"].value).endswith(broken.name)
    assert row_count(place) == 4


USES: dict[str, Callable[[IcebergTableManager], object]] = {
    "load_table": lambda manager: manager.load_table(TABLE),
    "scan": lambda manager: manager.scan(TABLE),
    "append": lambda manager: manager.append(TABLE, ROWS),
    "overwrite": lambda manager: manager.overwrite(TABLE, ROWS),
    "delete": lambda manager: manager.delete(TABLE, "id = 1"),
    "create_table_if_not_exists": lambda manager: manager.create_table_if_not_exists(TABLE, ROWS.schema),
    "purge": lambda manager: manager.drop_table(TABLE, purge=True),
    "tag": lambda manager: manager.create_tag(TABLE, "v1"),
}
NEWER: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a newer format": (lambda metadata: metadata.update({"format-version": 4}), "it has format version 4"),
    "a part that is new": (lambda metadata: metadata.update({"last-column-id": {"of": 1}}), "PyIceberg does not know"),
    "another document": (lambda metadata: metadata.clear(), "it has no format version"),
}


@on_sqlite
@pytest.mark.parametrize(("change", "reason"), NEWER.values(), ids=NEWER)
def test_complete_metadata_that_cannot_be_parsed_is_never_repaired_or_replaced(
    place: Place, table: str, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    newest = versions(place)[-1]
    metadata = json.loads(newest.read_text())
    change(metadata)
    newest.write_text(json.dumps(metadata))
    before, files = entries(place), every_file(place)
    manager = repairer(place).table_manager

    for use in USES.values():
        with pytest.raises(UnsupportedMetadataError, match=reason) as failure:
            use(manager)
        assert str(failure.value.metadata_location).endswith(newest.name)
        assert "repair" not in str(failure.value)
    with pytest.raises(TableAlreadyExistsError):
        manager.create_table(table, ROWS.schema)
    assert not run(repairer(place)).success

    assert manager.table_exists(table)
    assert manager.list_tables("public") == ["orders"]
    assert (entries(place), every_file(place)) == (before, files)


@on_sqlite
def test_a_write_does_not_go_back_beyond_a_version_that_cannot_be_parsed(place: Place, table: str) -> None:
    previous = versions(place)[-2]
    previous.write_text(previous.read_text().replace('"format-version":2', '"format-version":4'))
    harm_newest(place)
    before = entries(place)

    with pytest.raises(StaleTableMetadataError, match=rf"{previous.name}: it has format version 4"):
        repairer(place).table_manager.append(table, ROWS)

    assert entries(place) == before


def test_a_server_that_cannot_read_the_file_and_keeps_trying_is_given_up(tmp_path: Path, servers: Servers) -> None:
    place = empty_place("rest", tmp_path, servers)
    manager = place.iceberg().table_manager
    manager.create_namespace("public")
    manager.create_table(TABLE, ROWS.schema)
    harm_newest(place, DAMAGES["garbage"])
    bounds = {"read_timeout_seconds": "1", "total_timeout_seconds": "3"}
    impatient = replace(place, catalog_config={**place.catalog_config, **bounds})
    with pytest.raises(CatalogConnectionError, match="did not respond in time"):
        impatient.iceberg().table_manager.load_table(TABLE)


def test_artifacts_choose_the_mode() -> None:
    artifacts = CompiledArtifacts.from_dict(
        {"plugins": {"catalog": {"type": "sql"}}, "governance": {"stale_table_recovery_mode": "repair"}}
    )
    settings = IcebergResource.from_artifacts(artifacts).manager
    assert settings.to_config().stale_table_recovery_mode is StaleTableRecoveryMode.REPAIR

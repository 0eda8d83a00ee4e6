"""A metadata file that is missing or corrupt: reported as such, or repaired on request."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import asset, materialize
from support.place import Place, empty_place
from support.servers.running import Servers
from support.servers.s3 import forget_files

from floe_dagster_iceberg import iceberg_settings
from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.errors import CatalogConnectionError, StaleTableMetadataError, WriteError
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.models import StaleTableRecoveryMode
from floe_dagster_iceberg.resources import IcebergResource, TableManagerSettings
from floe_dagster_iceberg.table.arrow_input import ArrowRows

pytestmark = pytest.mark.requirement("S2-E6")

TABLE = "public.orders"
ROWS = pa.table({"id": [1, 2]})
Damage = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {
    "missing": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"garbage" * 20),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
}

# Iceberg's server reads a file that is invalid again and again, for minutes: its clients only see it hang.
PLACES_AND_DAMAGES = pytest.mark.parametrize(
    ("place", "damage"),
    [*(("sqlite", damage) for damage in DAMAGES.values()), ("rest", DAMAGES["missing"])],
    indirect=["place"],
    ids=[*(f"sqlite-{name}" for name in DAMAGES), "rest-missing"],
)
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


def versions(place: Place) -> list[Path]:
    """Metadata files of the only table, oldest first."""
    return sorted(place.warehouse.rglob("*.metadata.json"))


def harm_newest(place: Place, damage: Damage) -> Path:
    """Damage the newest metadata file without a commit; returns its path."""
    newest = versions(place)[-1]
    damage(newest)
    forget_files()
    return newest


def run(iceberg: IcebergResource) -> bool:
    @asset
    def orders() -> pa.Table:
        return ROWS

    io_manager = ArrowIcebergIOManager(iceberg=iceberg)
    return materialize([orders], resources={"io_manager": io_manager}, raise_on_error=False).success


def every_file(place: Place) -> set[Path]:
    return {path for path in place.warehouse.rglob("*") if path.is_file()}


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
    assert not run(iceberg)
    assert every_file(place) == files


@PLACES_AND_DAMAGES
def test_repairing_brings_the_newest_readable_version_back(place: Place, table: str, damage: Damage) -> None:
    harm_newest(place, damage)
    repaired = newcomer(place, StaleTableRecoveryMode.REPAIR).table_manager.load_table(table)
    assert len(repaired.metadata.snapshots) == 1
    assert repaired.scan().to_arrow().num_rows == 2


def test_a_run_on_a_repaired_table_goes_on_from_there(place: Place, table: str) -> None:
    harm_newest(place, DAMAGES["missing"])
    assert run(newcomer(place, StaleTableRecoveryMode.REPAIR))
    assert newcomer(place).table_manager.load_table(table).scan().to_arrow().num_rows == 4


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_stream_is_written_once_to_a_repaired_table(place: Place, table: str, mode: str) -> None:
    harm_newest(place, DAMAGES["missing"])

    @asset(metadata=iceberg_settings(write_mode=mode, upsert_keys=["id"] if mode == "upsert" else ()))
    def orders() -> pa.RecordBatchReader:
        return pa.table({"id": [7, 8]}).to_reader()

    iceberg = newcomer(place, StaleTableRecoveryMode.REPAIR)
    assert materialize([orders], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)}).success

    kept = [] if mode == "overwrite" else [1, 2]
    assert sorted(newcomer(place).table_manager.scan(table)["id"].to_pylist()) == [*kept, 7, 8]


def test_a_stream_that_was_read_is_refused_instead_of_written_as_no_rows() -> None:
    rows = ArrowRows(ROWS.to_reader())
    assert rows.to_table().num_rows == 2
    with pytest.raises(WriteError, match="stream that was read already"):
        rows.to_table()


def test_where_no_version_is_left_a_run_creates_the_table_anew(place: Place, table: str) -> None:
    for _ in versions(place):
        harm_newest(place, DAMAGES["missing"])
    assert run(newcomer(place, StaleTableRecoveryMode.REPAIR))
    assert newcomer(place).table_manager.load_table(table).scan().to_arrow().num_rows == 2


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

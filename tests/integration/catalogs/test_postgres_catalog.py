"""A SQL catalog on a real PostgreSQL, files on a real S3: many processes, forks, broken connections, wrong words."""

import multiprocessing
import os
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from support.place import Place, empty_place
from support.processes import free_port
from support.racing_worker import SHARED, race
from support.servers.postgres import PASSWORD
from support.servers.running import BUCKET, Servers

from floe_dagster_iceberg.errors import CatalogAuthenticationError, CatalogConnectionError, WriteError
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

T = "bronze.numbers"
ONE = pa.table({"n": [1]})
CREW = 4


@pytest.fixture
def place(tmp_path: Path, servers: Servers) -> Place:
    return empty_place("postgres", tmp_path, servers)


@pytest.fixture
def manager(place: Place) -> IcebergTableManager:
    manager = place.iceberg().table_manager
    manager.create_namespace("bronze")
    manager.create_table(T, ONE.schema)
    return manager


@pytest.mark.requirement("S2-FR-010", "S2-FR-011")
def test_files_land_below_the_configured_prefix(place: Place, manager: IcebergTableManager, servers: Servers) -> None:
    manager.append(T, ONE)

    keys = servers.s3.keys(BUCKET)
    assert {key.rpartition(".")[2] for key in keys} == {"json", "avro", "parquet"}
    assert all(key.startswith("warehouse/bronze/numbers/") for key in keys)
    assert manager.load_table(T).location() == f"{place.warehouse_uri}/bronze/numbers"


@pytest.mark.slow
@pytest.mark.requirement("S2-US5.3", "S2-FR-028")
def test_processes_that_open_a_new_database_at_once_all_do_their_work(
    servers: Servers, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    database = servers.postgres.create_database("fresh")
    fresh = Place(
        "sql",
        {**place.catalog_config, "uri": database.sqlalchemy_uri},
        place.warehouse,
        place.warehouse_uri,
        "s3",
        place.storage_config,
    )

    assert race(fresh, tmp_path, crew=CREW, rounds=1) == []

    with closing(fresh.connect()) as catalog:
        found = catalog.load_table("bronze.round0").scan().to_arrow().to_pylist()
    shared = [(row["id"]) for row in found if row["worker"] == SHARED]
    assert sorted(shared) == [0, *(1000 + worker for worker in range(CREW))]
    assert len(found) == len(shared) + CREW


def _append_in_fork(place: Place) -> None:
    place.iceberg().table_manager.append(T, ONE)


@pytest.mark.requirement("S2-FR-009")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_and_its_parent_do_not_share_connections(place: Place, manager: IcebergTableManager) -> None:
    manager.append(T, ONE)
    children = [multiprocessing.get_context("fork").Process(target=_append_in_fork, args=[place]) for _ in range(2)]
    for child in children:
        child.start()
    manager.append(T, ONE)
    for child in children:
        child.join(60)

    assert [child.exitcode for child in children] == [0, 0]
    manager.append(T, ONE)
    assert manager.scan(T).num_rows == 5


def test_connections_that_the_server_closed_are_replaced(
    servers: Servers, place: Place, manager: IcebergTableManager
) -> None:
    del place
    manager.append(T, ONE)
    closed = servers.database.execute(
        # The REST server of later tests is on the same database; Java's driver says who it is, Python's does not.
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND usename = 'floe' AND application_name = ''"
    )
    assert closed

    manager.append(T, ONE)

    assert manager.scan(T).num_rows == 2


@pytest.mark.requirement("S2-E1")
def test_a_server_that_is_not_there_is_a_connection_error(servers: Servers, place: Place) -> None:
    nowhere = servers.database.sqlalchemy_uri.replace(str(servers.postgres.port), str(free_port()))
    iceberg = _with_uri(place, nowhere)

    with pytest.raises(CatalogConnectionError) as caught:
        iceberg.table_manager.list_namespaces()

    assert PASSWORD not in str(caught.value)
    assert caught.value.retryable


@pytest.mark.requirement("S2-E1", "S2-FR-046")
@pytest.mark.parametrize("wrong", ["password", "user"])
def test_wrong_credentials_are_reported_as_such(servers: Servers, place: Place, wrong: str) -> None:
    right = {"password": PASSWORD, "user": "//floe:"}[wrong]
    uri = servers.database.sqlalchemy_uri.replace(right, right.replace("floe", "canary-91cc"))
    iceberg = _with_uri(place, uri)

    with pytest.raises(CatalogAuthenticationError) as caught:
        iceberg.table_manager.list_namespaces()

    assert PASSWORD not in str(caught.value)
    assert "canary-91cc-postgres-password" not in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.requirement("S2-FR-047", "S2-E4")
@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"secret_access_key": "not-the-key"}, WriteError),
        ({"warehouse": "s3://no-such-bucket/warehouse"}, WriteError),
    ],
    ids=["wrong key", "wrong bucket"],
)
def test_a_warehouse_that_cannot_be_written_to_is_reported_before_any_work(
    place: Place, settings: dict[str, str], error: type[WriteError]
) -> None:
    iceberg = place.iceberg()
    storage = {**iceberg.storage_properties, **settings}
    warehouse = settings.get("warehouse", place.warehouse_uri)
    broken = IcebergResource(
        catalog_uri=iceberg.catalog_uri, warehouse=warehouse, storage_type="s3", storage_properties=storage
    )

    with pytest.raises(error) as caught:
        broken.check_storage()

    assert warehouse in str(caught.value)
    assert "not-the-key" not in str(caught.value)


def _with_uri(place: Place, uri: str) -> IcebergResource:
    return IcebergResource(
        catalog_uri=uri,
        warehouse=place.warehouse_uri,
        storage_type="s3",
        storage_properties=dict(place.storage_config),
    )

"""Storage that refuses, is full, or goes away: a typed error, nothing left, and the next run works."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pyarrow as pa
import pytest
from support.http_stub import refused_url
from support.polaris_lake import PolarisLake
from support.servers.faults import HANG, RESET, Fault
from support.servers.gateway import COMMIT
from support.servers.running import BUCKET
from support.servers.s3_proxy import FULL, NO_ACCESS
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg.errors import CatalogConnectionError, CommitOutcomeUnknownError, FloeStorageError, WriteError
from floe_dagster_iceberg.models import TableIdentifier, WriteMode
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS
from floe_dagster_iceberg.spark.exactly_once import write_once
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite

ROWS = pa.table({"id": [1, 2]})
TABLE = "sales.orders"
Write = Callable[[], object]


@pytest.fixture(params=["arrow", "spark"])
def write(request: pytest.FixtureRequest, polaris: PolarisLake) -> Write:
    """Appends the two rows by one engine, to a table that holds them once."""
    iceberg = polaris.resource()
    manager = iceberg.table_manager
    manager.create_namespace("sales")
    manager.create_table(TABLE, ROWS.schema)
    manager.append(TABLE, ROWS)
    if request.param == "arrow":
        return lambda: manager.append(TABLE, ROWS)
    session = spark_resource(iceberg).spark_session
    identifier, budget = TableIdentifier.from_string(TABLE), CommitBudget.from_config(manager.config)

    def append() -> object:
        write = TableWrite(
            table=identifier, idempotency_key=uuid4().hex, mode=WriteMode.APPEND, scope=RowScope(ALL_ROWS)
        )
        return write_once(manager.catalog, to_frame(session, ROWS), write, budget)

    return append


@pytest.mark.requirement("S2-E4", "S2-FR-047")
@pytest.mark.parametrize(
    ("fault", "message"), [(NO_ACCESS, "denied access"), (FULL, "full")], ids=["no permission to write", "full"]
)
def test_storage_that_takes_no_files_fails_the_write_and_nothing_is_left(
    polaris: PolarisLake, write: Write, fault: Fault, message: str
) -> None:
    before = polaris.keys()
    polaris.storage.fail_always("POST", r"\.parquet", fault)
    polaris.storage.fail_always("PUT", r"\.parquet", fault)
    with pytest.raises(WriteError, match=r"sales\.orders") as failure:
        write()
    assert message in str(failure.value)
    assert not failure.value.retryable
    assert failure.value.__cause__ is not None
    assert polaris.keys() == before

    polaris.storage.recover()
    write()
    assert len(polaris.rows(polaris.resource().catalog.load_table(TABLE))) == 4


@pytest.mark.requirement("S2-E4")
@pytest.mark.parametrize("fault", [NO_ACCESS, FULL], ids=["access is lost", "full"])
def test_storage_that_fails_after_the_data_files_leaves_no_snapshot(
    request: pytest.FixtureRequest, polaris: PolarisLake, write: Write, fault: Fault
) -> None:
    before = polaris.keys(".parquet")
    polaris.storage.fail_always("PUT", r"\.avro", fault)
    with pytest.raises(WriteError):
        write()
    polaris.storage.recover()
    table = polaris.resource().catalog.load_table(TABLE)
    assert len(table.metadata.snapshots) == 1
    # Iceberg's Spark writer keeps its files when they may have been committed; orphan clean-up finds them.
    left = polaris.keys(".parquet") - before
    assert not left or "spark" in request.node.callspec.id


@pytest.mark.requirement("S2-E4")
@pytest.mark.parametrize("fault", [RESET, Fault(503)], ids=["resets", "slow down"])
def test_a_store_that_stumbles_once_is_asked_again(polaris: PolarisLake, write: Write, fault: Fault) -> None:
    polaris.storage.fail("PUT", r"\.parquet", fault)
    write()
    assert len(polaris.rows(polaris.resource().catalog.load_table(TABLE))) == 4


@pytest.mark.requirement("S2-E1")
@pytest.mark.slow
def test_a_store_that_hangs_ends_the_write_within_its_bounds(polaris: PolarisLake) -> None:
    bounds = polaris.storage_settings(request_timeout_seconds="1", connect_timeout_seconds="1")
    manager = polaris.resource(storage_properties=bounds).table_manager
    manager.create_namespace("sales")
    manager.create_table(TABLE, ROWS.schema)
    polaris.storage.fail_always("PUT", r"\.parquet", HANG)
    with pytest.raises(FloeStorageError):
        manager.append(TABLE, ROWS)
    polaris.storage.recover()
    assert not polaris.keys(".parquet")


@pytest.mark.requirement("S2-FR-047")
@pytest.mark.parametrize("wrong", ["bucket", "secret"])
def test_a_wrong_bucket_or_secret_is_reported_when_the_resource_is_set_up(polaris: PolarisLake, wrong: str) -> None:
    storage = polaris.storage_settings(
        access_key_id=polaris.s3.access_key_id,
        secret_access_key="wrong-canary-secret" if wrong == "secret" else polaris.s3.secret_access_key,
        warehouse=f"s3://{'no-such-bucket' if wrong == 'bucket' else BUCKET}/warehouse",
    )
    with pytest.raises(WriteError, match=r"cannot be written to. Check that it exists") as failure:
        polaris.resource(storage_properties=storage).check_storage()
    assert "wrong-canary-secret" not in str(failure.value)


@pytest.mark.requirement("S2-E1")
def test_a_catalog_that_refuses_connections_is_a_connection_error(polaris: PolarisLake) -> None:
    with refused_url() as url:
        iceberg = polaris.resource(catalog_uri=url)
        with pytest.raises(CatalogConnectionError, match="unreachable"):
            iceberg.table_manager.create_table(TABLE, ROWS.schema)


@pytest.mark.requirement("S2-E1")
def test_a_catalog_that_goes_away_during_a_write_leaves_the_files_and_the_next_run_finds_them(
    polaris: PolarisLake,
) -> None:
    manager = polaris.resource().table_manager
    manager.create_namespace("sales")
    manager.create_table(TABLE, ROWS.schema)
    polaris.gateway.fail("POST", COMMIT, RESET.after())
    # The write's first look at the table goes well; those after the commit do not.
    polaris.gateway.fail("GET", COMMIT, Fault(), *[Fault(503)] * 30)

    with pytest.raises(CommitOutcomeUnknownError) as unknown:
        manager.append(TABLE, ROWS)
    polaris.gateway.recover()
    table = manager.load_table(TABLE)
    assert table.snapshot_by_id(unknown.value.snapshot_id) is not None
    assert polaris.rows(table) == [(1,), (2,)]


@pytest.mark.requirement("S2-E5")
def test_writers_that_add_columns_at_the_same_time_all_land(polaris: PolarisLake) -> None:
    manager = polaris.resource().table_manager
    manager.create_namespace("sales")
    manager.create_table(TABLE, ROWS.schema)
    together = threading.Barrier(3)

    def add(column: str) -> None:
        together.wait()
        manager.append(TABLE, ROWS.append_column(column, pa.array([1.0, 2.0])))

    with ThreadPoolExecutor() as writers:
        list(writers.map(add, ("price", "discount", "tax")))

    table = manager.load_table(TABLE)
    assert set(table.schema().column_names) == {"id", "price", "discount", "tax"}
    assert len(polaris.rows(table)) == 6

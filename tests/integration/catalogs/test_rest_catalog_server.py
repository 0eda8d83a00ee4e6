"""Iceberg's own REST server on S3 and PostgreSQL, reached by compiled artifacts alone."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import asset, materialize
from support.place import Place, empty_place
from support.racing_catalog import RacingCatalog
from support.servers.running import BUCKET, Servers

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.factory import create_iceberg_resources
from floe_dagster_iceberg.models import (
    FieldType,
    IcebergTableManagerConfig,
    SchemaChange,
    SchemaChangeType,
    SchemaEvolution,
    TableIdentifier,
    WriteMode,
)
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.arrow_input import to_arrow_rows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, snapshot_id_for
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

BUDGET = CommitBudget.from_config(IcebergTableManagerConfig(retry_base_delay_seconds=0.1))
NUMBERS = TableIdentifier(namespace="public", name="numbers")


@pytest.fixture
def place(tmp_path: Path, servers: Servers) -> Place:
    return empty_place("rest", tmp_path, servers)


@pytest.fixture
def artifacts(place: Place, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> CompiledArtifacts:
    monkeypatch.setenv("FLOE_SECRET_S3_KEY", servers.s3.access_key_id)
    monkeypatch.setenv("FLOE_SECRET_S3_SECRET", servers.s3.secret_access_key)
    keys = {"access_key_id": {"secret_ref": "s3-key"}, "secret_access_key": {"secret_ref": "s3-secret"}}
    plugins = {
        "catalog": {"type": place.catalog_type, "config": dict(place.catalog_config)},
        "storage": {"type": place.storage_type, "config": {**place.storage_config, **keys}},
    }
    return CompiledArtifacts.from_dict({"metadata": {"product_name": "shop"}, "plugins": plugins})


@pytest.mark.requirement("S1-T097-101", "S2-FR-009", "S2-FR-010", "S2-FR-011", "S2-US1.2")
def test_an_asset_reaches_server_and_bucket_by_artifacts_alone(artifacts: CompiledArtifacts, servers: Servers) -> None:
    @asset(io_manager_key="iceberg_io_manager", key=["bronze", "orders"])
    def orders() -> pa.Table:
        return pa.table({"id": [1, 2, 3]})

    result = materialize([orders], resources=dict(create_iceberg_resources(artifacts).resources))

    assert result.success
    assert IcebergResource.from_artifacts(artifacts).table_manager.scan("bronze.orders").num_rows == 3
    assert {key.split("/")[1] for key in servers.s3.keys(BUCKET)} == {"bronze"}


@pytest.mark.requirement("S1-T097-101")
def test_a_table_is_made_written_evolved_and_rolled_back(artifacts: CompiledArtifacts) -> None:
    manager = IcebergResource.from_artifacts(artifacts).table_manager
    manager.create_namespace("public")
    manager.create_table(NUMBERS, pa.schema([("n", pa.int64())]))
    first = manager.append(NUMBERS, pa.table({"n": [1, 2]}))
    added = SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="note", new_type=FieldType.STRING)

    manager.evolve_schema(NUMBERS, SchemaEvolution(changes=[added]))
    manager.overwrite(NUMBERS, pa.table({"n": [2], "note": ["two"]}), overwrite_filter="n = 2")

    assert manager.scan(NUMBERS).sort_by("n").to_pydict() == {"n": [1, 2], "note": [None, "two"]}
    assert [snapshot.snapshot_id for snapshot in manager.list_snapshots(NUMBERS)].count(first.snapshot_id) == 1
    manager.rollback_to_snapshot(NUMBERS, first.snapshot_id)
    assert manager.scan(NUMBERS)["n"].to_pylist() == [1, 2]


@pytest.mark.requirement("S3-1b")
def test_namespaces_and_tables_are_made_listed_dropped_and_registered(place: Place, servers: Servers) -> None:
    manager = place.iceberg().table_manager
    manager.create_namespace("sales", {"owner": "shop"}, if_not_exists=True)
    manager.create_namespace("sales", if_not_exists=True)
    made = [manager.create_table_if_not_exists("sales.orders", pa.schema([("id", pa.int64())])) for _ in range(2)]
    manager.append("sales.orders", pa.table({"id": [1]}))

    assert manager.list_namespaces() == ["sales"]
    assert manager.list_tables("sales") == ["orders"]
    assert made[0].metadata.table_uuid == made[1].metadata.table_uuid
    location = manager.load_table("sales.orders").metadata_location
    manager.drop_table("sales.orders")
    manager.register_table("sales.again", location)
    assert manager.scan("sales.again").num_rows == 1
    manager.drop_table("sales.again", purge=True)
    assert manager.list_tables("sales") == []
    assert servers.s3.keys(BUCKET) == set()
    manager.drop_namespace("sales")
    assert manager.list_namespaces() == []


@pytest.mark.requirement("S1-T097-101")
def test_old_snapshots_expire(place: Place) -> None:
    manager = place.iceberg().table_manager
    manager.create_namespace("public")
    manager.create_table(NUMBERS, pa.schema([("n", pa.int64())]))
    for n in range(4):
        manager.append(NUMBERS, pa.table({"n": [n]}))

    assert manager.expire_snapshots(NUMBERS, older_than=datetime.now(UTC), retain_last=2) == 2

    assert len(manager.list_snapshots(NUMBERS)) == 2
    assert sorted(manager.scan(NUMBERS)["n"].to_pylist()) == [0, 1, 2, 3]


def write(place: Place, key: str, *meanwhile: object) -> TableWriteResult:
    """Append a row as work with a key; `meanwhile` happens right before the commit is sent."""
    catalog = RacingCatalog.of(place.connect())
    catalog.meanwhile = list(meanwhile)  # type: ignore[arg-type]
    work = TableWrite(table=NUMBERS, idempotency_key=key, mode=WriteMode.APPEND, scope=RowScope(ALL_ROWS))
    return write_once(catalog, to_arrow_rows(pa.table({"n": [1]})), work, BUDGET)


@pytest.mark.requirement("S2-US5.3")
@pytest.mark.parametrize("existing", [False, True], ids=["new table", "existing table"])
def test_the_server_keeps_the_ids_we_choose_and_takes_each_once(place: Place, *, existing: bool) -> None:
    if existing:
        write(place, "earlier work")

    done = write(place, "work", lambda: write(place, "work"))

    table = place.connect().load_table(NUMBERS.as_tuple)
    assert done.deduplicated
    assert table.metadata.current_snapshot_id == snapshot_id_for("work", None)
    assert table.scan().to_arrow().num_rows == 1 + existing
    assert len(list(place.warehouse.rglob("*.parquet"))) == 1 + existing

"""The six usage examples of the API contract, on a catalog of their own instead of a server."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from dagster import AssetExecutionContext, DailyPartitionsDefinition, Definitions, asset, materialize
from pyiceberg.catalog.sql import SqlCatalog

from floe_dagster_iceberg import (
    CompiledArtifacts,
    IcebergIOManagerConfig,
    IcebergTableManager,
    OperationType,
    create_io_manager,
    create_io_manager_from_artifacts,
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("floe", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield catalog
    catalog.close()


@pytest.fixture
def manager(catalog: SqlCatalog) -> IcebergTableManager:
    """The manager of the third example, with its table."""
    manager = IcebergTableManager(catalog)
    manager.create_namespace("bronze")
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("created_at", pa.timestamp("us"))]
    )
    manager.create_table_if_not_exists("bronze.customers", schema)
    return manager


def customers_named(*names: str) -> pa.Table:
    now = datetime.now(UTC).replace(tzinfo=None)
    ids = list(range(1, len(names) + 1))
    return pa.Table.from_pydict({"id": ids, "name": list(names), "created_at": [now] * len(names)})


@asset
def raw_customers() -> pd.DataFrame:
    return pd.DataFrame({"id": [1, 2, 3], "name": ["Alice", "Bob", "Charlie"]})


@asset
def customers(raw_customers: pd.DataFrame) -> pd.DataFrame:
    return raw_customers.assign(name_upper=raw_customers["name"].str.upper())


@pytest.mark.requirement("S4-ex1..6")
def test_first_example_basic_dagster_integration(catalog: SqlCatalog) -> None:
    config = IcebergIOManagerConfig(
        catalog_uri="http://localhost:8181/api/catalog",
        warehouse="my_warehouse",
        client_id="my_client",
        client_secret="my_secret",
        default_namespace="bronze",
    )
    defs = Definitions(
        assets=[raw_customers, customers],
        resources={"io_manager": create_io_manager(config, catalog=catalog)},
    )

    assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success
    found = catalog.load_table("bronze.customers").scan().to_arrow()
    assert found["name_upper"].to_pylist() == ["ALICE", "BOB", "CHARLIE"]


@pytest.mark.requirement("S4-ex1..6")
def test_second_example_partitioned_assets(catalog: SqlCatalog) -> None:
    @asset(partitions_def=DailyPartitionsDefinition(start_date="2024-01-01"), metadata={"partition_expr": "day"})
    def daily_events(context: AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [date.fromisoformat(context.partition_key)] * 2, "event": ["open", "close"]})

    io_manager = create_io_manager(IcebergIOManagerConfig(catalog_uri="unused", warehouse="unused"), catalog=catalog)
    for day in ("2024-01-01", "2024-01-02", "2024-01-01"):
        materialize([daily_events], partition_key=day, resources={"io_manager": io_manager})

    days = catalog.load_table("public.daily_events").scan().to_arrow()["day"].to_pylist()
    assert sorted(days) == [date(2024, 1, 1)] * 2 + [date(2024, 1, 2)] * 2


@pytest.mark.requirement("S4-ex1..6")
def test_third_example_direct_table_management(manager: IcebergTableManager, catalog: SqlCatalog) -> None:
    snapshot = manager.append("bronze.customers", customers_named("Alice", "Bob", "Charlie"))
    result = manager.scan("bronze.customers", columns=["id", "name"])

    assert snapshot.snapshot_id == catalog.load_table("bronze.customers").metadata.current_snapshot_id
    assert result.to_pandas()["name"].tolist() == ["Alice", "Bob", "Charlie"]
    assert result.column_names == ["id", "name"]


@pytest.mark.requirement("S4-ex1..6")
def test_fourth_example_time_travel(manager: IcebergTableManager) -> None:
    manager.append("bronze.customers", customers_named("Alice"))
    manager.overwrite("bronze.customers", customers_named("Bob", "Charlie"))

    snapshots = manager.list_snapshots("bronze.customers")
    old_data = manager.scan("bronze.customers", snapshot_id=snapshots[1].snapshot_id)

    assert old_data["name"].to_pylist() == ["Alice"]
    assert [snapshot.operation for snapshot in snapshots] == [OperationType.OVERWRITE, OperationType.APPEND]
    assert all(snapshot.timestamp.tzinfo is UTC for snapshot in snapshots)


@pytest.mark.requirement("S4-ex1..6")
def test_fifth_example_expiring_old_snapshots(manager: IcebergTableManager, catalog: SqlCatalog) -> None:
    for number in range(12):
        manager.append("bronze.customers", customers_named(f"customer {number}"))

    month_old = datetime.now(UTC) - timedelta(days=30)
    assert manager.expire_snapshots("bronze.customers", older_than=month_old, retain_last=10) == 0
    assert manager.expire_snapshots("bronze.customers", older_than=datetime.now(UTC), retain_last=10) == 2
    assert len(catalog.load_table("bronze.customers").snapshots()) == 10


@pytest.mark.requirement("S4-ex1..6")
def test_sixth_example_from_compiled_artifacts(
    tmp_path: Path, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    content: dict[str, Any] = {"plugins": {"catalog": {"type": "sql", "config": {"catalog_name": "floe", **place}}}}
    (tmp_path / ".floe").mkdir()
    (tmp_path / ".floe" / "compiled_artifacts.json").write_text(json.dumps(content))

    artifacts = CompiledArtifacts.from_json_file(".floe/compiled_artifacts.json")
    io_manager = create_io_manager_from_artifacts(artifacts)

    assert materialize([raw_customers, customers], resources={"io_manager": io_manager}).success
    assert catalog.load_table("public.customers").scan().to_arrow().num_rows == 3

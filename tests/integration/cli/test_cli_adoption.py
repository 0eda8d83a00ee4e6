"""`floe-iceberg discover`, `adopt` and `delete-partition`: what tables hold, and what Dagster knows of it."""

import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from support.command_line import CommandLine

from floe_dagster_iceberg.observations.assets import TableListing

LOCATION = """
import dagster as dg
from floe_dagster_iceberg import IcebergResource

iceberg = IcebergResource(catalog_uri={uri!r}, warehouse={warehouse!r})
days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2025-01-01")


@dg.asset(key=["shop", "sales"], partitions_def=days, metadata={{"partition_expr": "day"}})
def sales(): ...


@dg.asset(key=["shop", "plain"])
def plain(): ...


defs = dg.Definitions(assets=[sales, plain], resources={{"iceberg": iceberg}})
"""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    (tmp_path / "adopting.py").write_text(LOCATION.format(uri=uri, warehouse=warehouse))
    monkeypatch.syspath_prepend(tmp_path)
    yield CommandLine(tmp_path)
    sys.modules.pop("adopting", None)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        yield instance


def fill(lake: CommandLine) -> None:
    """One file with three days, as a tool leaves it that knows nothing of Dagster; two of them have rows."""
    days = [date(2024, 1, 1), date(2024, 1, 1), date(2024, 1, 3)]
    rows = pa.table({"day": days, "id": [1, 2, 3]})
    lake.manager.create_namespace("shop")
    for name in ("sales", "plain"):
        lake.manager.create_table(f"shop.{name}", rows.schema)
        lake.manager.append(f"shop.{name}", rows)


def adopt(lake: CommandLine, *more: str, asset: str = "shop/sales", table: str = "shop.sales") -> dict[str, object]:
    found = lake.json("adopt", table, "--asset", asset, "-m", "adopting", *more)
    assert isinstance(found, dict)
    return found


def test_adopting_reports_the_partitions_that_have_rows_once(lake: CommandLine, instance: dg.DagsterInstance) -> None:
    fill(lake)
    key = dg.AssetKey(["shop", "sales"])
    planned = adopt(lake)
    assert planned["partitions"] == {"2024-01-01": 2, "2024-01-03": 1}
    assert not instance.get_materialized_partitions(key)

    adopt(lake, "--execute")
    again = adopt(lake, "--execute")

    assert instance.get_materialized_partitions(key) == {"2024-01-01", "2024-01-03"}
    assert (again["partitions"], again["already_materialized"]) == ({}, 2)
    records = instance.fetch_materializations(key, limit=10).records
    versions = {
        (each.asset_materialization.tags or {})["dagster/data_version"]
        for each in records
        if each.asset_materialization
    }
    assert versions == {str(lake.table("shop.sales").metadata.current_snapshot_id)}


def test_an_asset_without_partitions_is_adopted_as_a_whole(lake: CommandLine, instance: dg.DagsterInstance) -> None:
    fill(lake)
    adopted = adopt(lake, "--execute", asset="shop/plain", table="shop.plain")

    assert adopted["partitions"] == {"": 3}
    assert len(instance.fetch_materializations(dg.AssetKey(["shop", "plain"]), limit=10).records) == 1


@pytest.mark.usefixtures("instance")
def test_what_cannot_be_adopted_is_refused_with_a_reason(lake: CommandLine) -> None:
    fill(lake)
    for arguments, reason in (
        (("shop.plain", "--asset", "shop/sales", "-m", "adopting"), "is stored in 'shop.sales'"),
        (("shop.sales", "--asset", "shop/salse", "-m", "adopting"), "Did you mean 'shop/sales'?"),
        (("shop.salse", "--asset", "shop/sales", "-m", "adopting"), "Did you mean 'shop.sales'?"),
        (("shop.sales", "--asset", "shop/sales"), "Give --module"),
    ):
        assert reason in " ".join(lake.run("adopt", *arguments, exit_code=1).stderr.split())


def test_adopting_needs_an_instance(lake: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lake)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    result = lake.run("adopt", "shop.sales", "--asset", "shop/sales", "-m", "adopting", exit_code=1)
    assert "$DAGSTER_HOME is not set" in result.stderr


def test_discover_writes_a_listing(lake: CommandLine) -> None:
    fill(lake)
    lake.lose_metadata("shop.plain")
    output = lake.folder / "tables.json"
    report = lake.json("discover", "shop.*", "-o", str(output), exit_code=1)

    assert report["tables"] == ["shop.plain", "shop.sales"]
    assert list(report["errors"]) == ["shop.plain"]
    plain, sales = TableListing.load(output).tables
    assert (plain.columns, [column.name for column in sales.columns]) == ((), ["day", "id"])
    assert "/warehouse" not in json.dumps(json.loads(output.read_text()))


def delete(lake: CommandLine, *more: str, exit_code: int = 0) -> dict[str, object]:
    words = ("delete-partition", "shop.sales", "2024-01-01", "--asset", "shop/sales", "-m", "adopting", *more)
    found = lake.json(*words) if not exit_code else {"error": lake.run(*words, exit_code=exit_code).stderr}
    assert isinstance(found, dict)
    return found


def test_deleting_a_partition_deletes_its_rows_and_reports_it(lake: CommandLine, instance: dg.DagsterInstance) -> None:
    fill(lake)
    key = dg.AssetKey(["shop", "sales"])
    planned = delete(lake)
    rows_then = lake.table("shop.sales").scan().to_arrow().num_rows

    done = delete(lake, "--execute")
    again = delete(lake, "--execute")

    assert (planned["executed"], planned["partitions"], rows_then) == (False, {"2024-01-01": 2}, 3)
    assert lake.table("shop.sales").scan().to_arrow()["day"].to_pylist() == [date(2024, 1, 3)]
    assert done["snapshot_id"] == str(lake.table("shop.sales").metadata.current_snapshot_id)
    assert (again["partitions"], again["snapshot_id"]) == ({"2024-01-01": 0}, None)
    [record] = instance.fetch_observations(key, limit=10).records
    observed = record.asset_observation
    assert observed is not None
    assert observed.partition == "2024-01-01"
    assert {name: value.value for name, value in observed.metadata.items()} == {
        "dagster/partition_row_count": 0,
        "iceberg/rows_deleted": 2,
        "iceberg/snapshot_id": done["snapshot_id"],
    }


@pytest.mark.usefixtures("instance")
def test_partitions_that_must_not_be_deleted_are_refused_with_a_reason(lake: CommandLine) -> None:
    fill(lake)
    for arguments, reason in (
        (("shop.sales", "2024-13-01", "--asset", "shop/sales", "-m", "adopting"), "has no partition '2024-13-01'"),
        (("shop.plain", "2024-01-01", "--asset", "shop/sales", "-m", "adopting"), "is stored in 'shop.sales'"),
        (("shop.plain", "2024-01-01", "--asset", "shop/plain", "-m", "adopting"), "has no partitions"),
        (("shop.sales", "2024-01-01", "--asset", "shop/sales"), "Give --module"),
    ):
        words = ("delete-partition", *arguments, "--execute")
        assert reason in " ".join(lake.run(*words, exit_code=1).stderr.split())
    lake.manager.create_tag("shop.sales", "legal-hold")
    assert "refused by 'legal_hold'" in " ".join(str(delete(lake, "--execute", exit_code=1)["error"]).split())

    assert lake.table("shop.sales").scan().to_arrow().num_rows == 3

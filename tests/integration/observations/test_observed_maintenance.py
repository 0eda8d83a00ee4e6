"""Health and maintenance apply by glob to tables that others write, as to our own."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from support.lake import Lake
from support.maintenance_lake import metadata_of, run_asset
from support.observed_lake import ObservedLake, rows

from floe_dagster_iceberg import build_health_checks
from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
from floe_dagster_iceberg.models import CompactionPolicy, HealthThresholds, MaintenancePolicy
from floe_dagster_iceberg.observations.assets import ListedTable, TableListing

POLICY = MaintenancePolicy(
    tables=["bronze.*"],
    compaction=CompactionPolicy(min_input_files=2),
    thresholds=HealthThresholds(min_table_bytes=0),
)


@pytest.fixture
def crumbs(lake: Lake, observed: ObservedLake) -> ObservedLake:
    """A table of small files that a PyIceberg client wrote, and one that no glob of the policy matches."""
    lake.catalog.create_namespace("silver")
    for name in ("bronze.t", "silver.t"):
        table = lake.catalog.create_table(name, pa.schema([("id", pa.int64())]))
        for number in range(12):
            table.append(rows(number))
    observed.tables = ["bronze.*", "silver.*"]
    return observed


def maintained(observed: ObservedLake) -> dg.Definitions:
    return dg.Definitions.merge(observed.definitions(), build_maintenance_definitions(POLICY))


def test_maintenance_by_glob_compacts_them_and_their_data_version_stays(crumbs: ObservedLake, lake: Lake) -> None:
    before = crumbs.version()
    health = metadata_of(run_asset(maintained(crumbs), "table_health", instance=crumbs.instance), "table_health")
    run_asset(maintained(crumbs), "compaction", instance=crumbs.instance)

    assert "bronze.t" in str(health)
    assert "silver.t" not in str(health)
    assert len(list(lake.table("bronze.t").scan().plan_files())) == 1
    assert len(list(lake.table("silver.t").scan().plan_files())) == 12
    assert crumbs.version() == before
    assert len(crumbs.materialized()) == 1


def test_the_specs_of_a_listing_get_health_checks(crumbs: ObservedLake, lake: Lake, tmp_path: Path) -> None:
    TableListing(tables=(ListedTable.from_table(lake.table("bronze.t")),)).save(tmp_path / "tables.json")
    observations = crumbs.definitions(listing=tmp_path / "tables.json")
    checks = build_health_checks(list(observations.resolve_all_asset_specs()), POLICY)
    resources = {"iceberg": crumbs.iceberg}
    evaluations: list[dg.AssetCheckEvaluation] = []
    for _ in range(2):
        result = dg.materialize([*checks], resources=resources, selection=dg.AssetSelection.all_asset_checks())
        evaluations += result.get_asset_check_evaluations()
        run_asset(maintained(crumbs), "compaction", instance=crumbs.instance)

    assert [(each.asset_key, each.passed) for each in evaluations] == [
        (dg.AssetKey(["bronze", "t"]), False),
        (dg.AssetKey(["bronze", "t"]), True),
    ]

"""Tables of a maintenance run take their requests side by side."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.distant_lake import DistantLake
from support.servers.request_log import RequestLog
from support.servers.running import Servers

from floe_dagster_iceberg._pyiceberg.file_io import forget_all
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.runner import MaintenanceRun, TableOutcome
from floe_dagster_iceberg.models import (
    HealthTier,
    MaintenanceBudget,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceStatus,
)

TABLES = 16
LATENCY_SECONDS = 0.2


@pytest.fixture(params=["sqlite", "rest"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[DistantLake]:
    with DistantLake.open(servers, request.param, tmp_path) as lake:
        manager = lake.place.iceberg().table_manager
        manager.create_namespace("public")
        for number in range(TABLES):
            manager.create_table(f"public.t{number:02}", schema=pa.schema({"id": pa.int64()}))
            manager.append(f"public.t{number:02}", pa.table({"id": [number]}))
        yield lake


def measure(lake: DistantLake, *, at_once: int) -> tuple[list[TableOutcome], RequestLog]:
    manager = lake.place.iceberg().table_manager
    budget = MaintenanceBudget(max_concurrent_tables=at_once)
    run = MaintenanceRun(
        MaintenanceOperation.TABLE_HEALTH,
        manager,
        TableMaintenance(manager),
        PolicySources(code=MaintenancePolicy(budget=budget)),
        logging.getLogger(__name__),
    )
    forget_all()
    lake.set_latency(storage_seconds=LATENCY_SECONDS, catalog_seconds=LATENCY_SECONDS)
    with lake.log.recorded() as log:
        outcomes = run.measure(HealthTier.FILES)
    lake.set_latency(storage_seconds=0, catalog_seconds=0)
    return outcomes, log


def test_the_health_of_many_tables_is_measured_side_by_side(fleet: DistantLake) -> None:
    alone, one_by_one = measure(fleet, at_once=1)
    together, side_by_side = measure(fleet, at_once=8)

    assert [outcome.table for outcome in together] == [f"public.t{number:02}" for number in range(TABLES)]
    assert [(each.table, each.status, each.note) for each in together] == [
        (each.table, each.status, each.note) for each in alone
    ]
    assert {each.status for each in together} == {MaintenanceStatus.DONE}
    # Whether metadata is read once or twice depends on which tables this process has seen last.
    assert side_by_side.counts.keys() == one_by_one.counts.keys()
    assert all(number <= one_by_one.counts[kind] for kind, number in side_by_side.counts.items())
    assert side_by_side.depth <= one_by_one.depth / 3, side_by_side.describe()

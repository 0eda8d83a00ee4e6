"""Expiry on a REST catalog, whose protocol has no requirement that no new branch or tag has appeared."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.http_stub import RestStub, running_stub
from support.maintenance_tables import DAY, EAGER, ORDERS, checksum, content, later, replace_often, rows_of, to_path
from support.racing_catalog import QUICK, RacingCatalog

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceOperation, MaintenanceResult, MaintenanceStatus
from floe_dagster_iceberg.table.manager import IcebergTableManager


class RestLake:
    """A table behind a REST server, and another client that acts on it right before a commit arrives there."""

    def __init__(self, stub: RestStub) -> None:
        self._catalog = stub.catalog = RacingCatalog.of(stub.catalog)
        self._catalog.create_namespace("bronze")
        self.beside = IcebergTableManager(self._catalog, config=QUICK)
        self._rest = IcebergTableManager(RestCatalog("rest", uri=stub.url), config=QUICK)

    def expire(self, *meanwhile: Callable[[], Any], afterwards: Callable[[], Any] | None = None) -> MaintenanceResult:
        self._catalog.meanwhile = list(meanwhile)
        self._catalog.afterwards = [] if afterwards is None else [lambda: None, afterwards]
        maintenance = TableMaintenance(self._rest, clock=lambda: later(8 * DAY))
        return maintenance.execute(MaintenanceOperation.SNAPSHOT_EXPIRY, ORDERS, EAGER)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[RestLake]:
    with running_stub(tmp_path) as stub:
        yield RestLake(stub)


@pytest.mark.requirement("S2-US4.4", "S2-FR-003")
def test_a_tag_that_went_with_its_snapshot_comes_back_and_no_file_of_it_is_deleted(lake: RestLake) -> None:
    first, second, _ = replace_often(lake.beside, 3)

    result = lake.expire(lambda: lake.beside.create_tag(ORDERS, "late", first))

    table = lake.beside.load_table(ORDERS)
    assert (result.status, result.snapshots_expired, result.error) == (MaintenanceStatus.DONE, 1, None)
    assert table.metadata.refs["late"].snapshot_id == first
    assert table.metadata.snapshot_by_id(second) is None
    assert content(lake.beside, ref="late") == checksum(rows_of(0, days=1))
    assert content(lake.beside) == checksum(rows_of(2, days=1))


@pytest.mark.slow
def test_what_came_back_goes_again_once_its_tag_is_gone(lake: RestLake) -> None:
    first, *_ = replace_often(lake.beside, 3)
    lake.expire(lambda: lake.beside.create_tag(ORDERS, "late", first))
    lake.beside.remove_ref(ORDERS, "late")
    last = lake.beside.overwrite(ORDERS, rows_of(9, days=1)).snapshot_id

    result = lake.expire()

    assert result.snapshots_expired == 2
    assert [snapshot.snapshot_id for snapshot in lake.beside.list_snapshots(ORDERS)] == [last]
    assert content(lake.beside) == checksum(rows_of(9, days=1))


def test_no_file_is_deleted_where_concurrent_changes_cannot_be_seen(lake: RestLake) -> None:
    first, *_ = replace_often(lake.beside, 3)
    folder = to_path(lake.beside.load_table(ORDERS).location())
    before = set(folder.rglob("*.parquet")) | set(folder.rglob("*.avro"))

    def hide() -> None:
        # A client without access to the metadata folder finds as little as after this.
        to_path(lake.beside.load_table(ORDERS).metadata.metadata_log[-1].metadata_file).unlink()

    result = lake.expire(lambda: lake.beside.create_tag(ORDERS, "late", first), afterwards=hide)

    assert (result.status, result.snapshots_expired, result.files_removed) == (MaintenanceStatus.DONE, 2, 0)
    assert before <= set(folder.rglob("*"))

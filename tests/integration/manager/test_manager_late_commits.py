"""Commits that land after their writers have given up on them find their files where they left them."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ForbiddenError
from support.lake import Lake
from support.place import Place
from support.rival_writer import QUICK
from support.table_facts import reachable_files
from support.unreliable_catalog import Interrupted, UnreliableCatalog

from floe_dagster_iceberg.errors import CommitConflictError, CommitOutcomeUnknownError
from floe_dagster_iceberg.models import ManifestPolicy
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.maintenance.manifests import rewrite_manifests
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes

TABLE = "bronze.orders"
BUDGET = CommitBudget(retries=2, base_delay_seconds=0.1)


@pytest.fixture
def lake(catalog: UnreliableCatalog, place: Place) -> Lake:
    return Lake(place, catalog)


@pytest.fixture
def manager(catalog: UnreliableCatalog) -> IcebergTableManager:
    """Beside a table of three rows, in a file and a manifest each."""
    manager = IcebergTableManager(catalog, config=QUICK)
    manager.create_table(TABLE, pa.schema([("id", pa.int64()), ("v", pa.int64())]))
    for number in range(3):
        manager.append(TABLE, pa.table({"id": [number, number + 10], "v": [0, 0]}))
    catalog.commits = 0
    return manager


def rewrite(manager: IcebergTableManager) -> object:
    return rewrite_manifests(manager.load_table(TABLE), ManifestPolicy(min_manifests=2), BUDGET)


CHANGES: dict[str, Callable[[IcebergTableManager], object]] = {
    "append": lambda manager: manager.append(TABLE, pa.table({"id": [9], "v": [9]})),
    "overwrite": lambda manager: manager.overwrite(TABLE, pa.table({"id": [1], "v": [9]}), overwrite_filter="id = 1"),
    "upsert": lambda manager: manager.upsert(TABLE, pa.table({"id": [1], "v": [9]}), ["id"]),
    "delete": lambda manager: manager.delete(TABLE, "id = 1"),
    "compaction": lambda manager: manager.compact_table(TABLE),
    "manifests": rewrite,
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())


def in_the_second_attempt(catalog: UnreliableCatalog, error: BaseException) -> None:
    """The first attempt lands late; the second one fails before it reaches the catalog."""
    catalog.fates = ["lands late"]

    def fail() -> None:
        if catalog.commits > 1:
            raise error

    catalog.meanwhile = fail


@every_change
@pytest.mark.requirement("S0-X1..6", "S2-FR-029")
@pytest.mark.parametrize("error", [Interrupted(), ForbiddenError("no longer")], ids=["interrupted", "forbidden"])
def test_a_commit_that_lands_late_has_its_files_whatever_became_of_the_next_attempt(
    lake: Lake,
    catalog: UnreliableCatalog,
    manager: IcebergTableManager,
    change: Callable[[IcebergTableManager], object],
    error: BaseException,
) -> None:
    in_the_second_attempt(catalog, error)

    with pytest.raises((Interrupted, CommitOutcomeUnknownError)):
        change(manager)
    before = len(lake.table(TABLE).metadata.snapshots)
    catalog.late()

    table = lake.table(TABLE)
    assert len(table.metadata.snapshots) == before + 1
    assert reachable_files(table) <= lake.files()
    assert lake.rows(TABLE)


@every_change
def test_an_interruption_after_a_commit_landed_takes_nothing_from_it(
    lake: Lake,
    catalog: UnreliableCatalog,
    manager: IcebergTableManager,
    change: Callable[[IcebergTableManager], object],
) -> None:
    catalog.fates, catalog.lost = ["is lost after it landed"], Interrupted

    with pytest.raises(Interrupted):
        change(manager)

    assert reachable_files(lake.table(TABLE)) <= lake.files()
    assert lake.rows(TABLE)


@every_change
def test_a_commit_that_can_no_longer_land_leaves_no_file(
    lake: Lake,
    catalog: UnreliableCatalog,
    manager: IcebergTableManager,
    change: Callable[[IcebergTableManager], object],
) -> None:
    """Another writer won for good, so everything that was written goes."""
    files = lake.data_files()

    def lose() -> None:
        raise CommitConflictError(TABLE, attempts=1, reason="another writer changed rows that are being replaced")

    catalog.meanwhile = lose
    with pytest.raises(CommitConflictError):
        change(manager)

    assert lake.data_files() == files

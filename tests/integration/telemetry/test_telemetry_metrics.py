"""Numbers that can be queried: what was done, how long it took, what came of it. Their series stay few."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from support.lake import Lake
from support.maintenance_orphans import clean, leave_orphan
from support.maintenance_tables import DAY, EAGER, ORDERS, later, make_orders, replace_often
from support.process_numbers import ProcessNumbers, process_numbers
from support.rival_writer import rival_writer

from floe_dagster_iceberg.errors import CommitConflictError, NoSuchTableError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceOperation
from floe_dagster_iceberg.table.manager import IcebergTableManager

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
TABLE = "bronze.people"
pytestmark = pytest.mark.requirement("S2-US7.2")


@pytest.fixture
def numbers() -> Iterator[ProcessNumbers]:
    numbers = process_numbers()
    numbers.reset()
    return numbers


def test_counts_latencies_and_error_rates_can_be_queried(manager: IcebergTableManager, numbers: ProcessNumbers) -> None:
    manager.create_table(TABLE, ROWS.schema)
    for _ in range(3):
        manager.append(TABLE, ROWS)
    for _ in range(2):
        with pytest.raises(NoSuchTableError):
            manager.append("bronze.nothing", ROWS)

    operations = numbers.changed("iceberg.operations")
    assert (operations["append", "ok"], operations["append", "error"]) == (3, 2)
    assert numbers.changed("iceberg.errors") == {("NoSuchTableError", "append"): 2}
    assert numbers.changed("iceberg.operation.duration")[("append",)] == 5


def test_quick_and_slow_operations_are_distinguished(manager: IcebergTableManager, numbers: ProcessNumbers) -> None:
    manager.list_namespaces()

    (histogram,) = [
        metric
        for resource in numbers.reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "iceberg.operation.duration"
    ]
    bounds = histogram.data.data_points[0].explicit_bounds
    assert (bounds[0], bounds[-1]) == (0.005, 1800)


def test_rows_and_bytes_are_counted_in_and_out(
    lake: Lake, manager: IcebergTableManager, numbers: ProcessNumbers
) -> None:
    manager.create_table(TABLE, ROWS.schema)
    manager.append(TABLE, ROWS)
    read = manager.scan(TABLE)
    streamed = manager.scan_batches(TABLE).read_all()

    here = ("pyiceberg", TABLE)
    on_disk = sum(path.stat().st_size for path in lake.data_files())
    assert numbers.changed("iceberg.records.written") == {here: 3}
    assert numbers.changed("iceberg.bytes.written") == {here: on_disk}
    assert numbers.changed("iceberg.records.read") == {here: 6}
    assert numbers.changed("iceberg.bytes.read") == {here: read.nbytes + streamed.nbytes}


def test_conflicts_and_retries_are_counted(lake: Lake, manager: IcebergTableManager, numbers: ProcessNumbers) -> None:
    manager.create_table(TABLE, ROWS.schema)
    stale, very_stale = lake.table(TABLE), lake.table(TABLE)
    with rival_writer(lake) as rival:
        rival.append(TABLE, ROWS)
    numbers.reset()

    manager.append(stale, ROWS)
    with pytest.raises(CommitConflictError):
        manager.overwrite(very_stale, ROWS)

    # The append lost one race and won the next. So did the overwrite, and saw rows that it must not replace.
    here = ("pyiceberg", TABLE)
    assert numbers.changed("iceberg.commit.retries") == {here: 2}
    assert numbers.changed("iceberg.commit.conflicts") == {here: 3}


def test_maintenance_counts_what_it_rewrote_and_deleted(manager: IcebergTableManager, numbers: ProcessNumbers) -> None:
    replace_often(manager, 3)
    make_orders(manager, batches=3, days=2, name="bronze.many")
    leave_orphan(manager)
    maintenance = TableMaintenance(manager, clock=lambda: later(30 * DAY))

    compacted = maintenance.execute(MaintenanceOperation.COMPACTION, "bronze.many", EAGER)
    expired = maintenance.execute(MaintenanceOperation.SNAPSHOT_EXPIRY, ORDERS, EAGER)

    assert numbers.changed("iceberg.files.rewritten") == {("compaction", "bronze.many"): compacted.files_removed}
    assert numbers.changed("iceberg.bytes.reclaimed") == {("snapshot_expiry", ORDERS): expired.bytes_removed}
    numbers.reset()
    clean(manager)
    assert numbers.changed("iceberg.bytes.reclaimed") == {}
    clean(manager, after=8 * DAY)
    assert numbers.changed("iceberg.bytes.reclaimed") == {("orphan_files", ORDERS): 48}


def test_a_table_that_is_measured_has_gauges(manager: IcebergTableManager, numbers: ProcessNumbers) -> None:
    make_orders(manager, batches=3, days=2)

    health = TableMaintenance(manager).health(ORDERS, EAGER)

    gauges = {
        name: numbers.changed(f"iceberg.table.{name}").get((ORDERS,), 0) for name in ("data_files", "small_files")
    }
    assert gauges == {"data_files": 6, "small_files": health.small_files}
    assert numbers.changed("iceberg.table.snapshots")[(ORDERS,)] == 3
    assert numbers.changed("iceberg.table.total_bytes")[(ORDERS,)] == health.total_bytes


def test_no_number_is_reported_apart_by_snapshot_partition_or_run(
    manager: IcebergTableManager, numbers: ProcessNumbers
) -> None:
    make_orders(manager, batches=2, days=2)
    TableMaintenance(manager).execute(MaintenanceOperation.COMPACTION, ORDERS, EAGER)

    found = {name for names in numbers.attribute_names().values() for name in names}
    assert found <= {"operation", "status", "error.type", "table.identifier", "engine", "maintenance.operation"}

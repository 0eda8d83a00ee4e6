"""`expire_snapshots` on a real catalog, with a clock that the test holds: what goes, what stays, what is counted."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyiceberg.table import Table
from support.lake import Lake
from support.snapshot_history import NOW, SCHEMA, T, days_ago, grow, numbers

from floe_dagster_iceberg.errors import MaintenanceRefusedError, ValidationError
from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.maintenance.expiry import MAX_SNAPSHOTS_PER_COMMIT
from floe_dagster_iceberg.table.manager import IcebergTableManager

Left = Callable[[], list[int]]


@pytest.fixture
def table(manager: IcebergTableManager) -> Table:
    """A table whose only snapshot is very old, so that it goes first."""
    table = manager.create_table(T, SCHEMA)
    manager.append(table, numbers(1, 2, 3))
    return table


@pytest.fixture
def left(lake: Lake) -> Left:
    """The ids of the snapshots that the catalog still has."""
    return lambda: [snapshot.snapshot_id for snapshot in lake.table(T).snapshots()]


@pytest.mark.requirement("S2-US4.4", "S2-FR-024", "S1-T045/50-53", "S4-expire_snapshots")
def test_what_is_old_and_outside_the_newest_expires(
    manager: IcebergTableManager, lake: Lake, table: Table, left: Left
) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8, 6, 5)])
    rows, files, versions = lake.rows(T), lake.data_files(), lake.metadata_versions(T)

    assert manager.expire_snapshots(T, older_than_days=7, min_snapshots_to_keep=1, now=NOW) == 3

    assert left() == grown[2:]
    assert (lake.rows(T), lake.data_files()) == (rows, files)
    assert lake.metadata_versions(T) == versions + 1


@pytest.mark.requirement("S2-US4.4", "S4-expire_snapshots")
def test_the_newest_stay_however_old(manager: IcebergTableManager, table: Table, left: Left) -> None:
    grown = grow(table, [days_ago(day) for day in (90, 80, 70, 60)])

    assert manager.expire_snapshots(T, older_than=days_ago(1), retain_last=3, now=NOW) == 2

    assert left() == grown[1:]


@pytest.mark.requirement("S4-expire_snapshots", "S2-FR-024")
def test_both_ways_to_ask_mean_the_same(manager: IcebergTableManager, table: Table, left: Left) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8, 6, 5)])

    assert manager.expire_snapshots(T, older_than=days_ago(7), retain_last=1) == 3
    assert manager.expire_snapshots(T, older_than_days=7, min_snapshots_to_keep=1, now=NOW) == 0

    assert left() == grown[2:]


@pytest.mark.requirement("S2-FR-024", "S2-C5", "S1-T009")
def test_the_managers_settings_decide_when_the_call_does_not(lake: Lake, table: Table, left: Left) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 4, 2, 1)])
    config = IcebergTableManagerConfig(default_retention_days=3, min_snapshots_to_keep=2)

    assert IcebergTableManager(lake.catalog, config=config).expire_snapshots(T, now=NOW) == 3

    assert left() == grown[2:]


@pytest.mark.requirement("S2-FR-024", "S2-C5")
def test_without_settings_seven_days_and_ten_snapshots_stay(lake: Lake, table: Table, left: Left) -> None:
    grown = grow(table, [days_ago(day) for day in range(20, 0, -1)])

    assert IcebergTableManager(lake.catalog).expire_snapshots(T, now=NOW) == 11

    assert left() == grown[10:]


@pytest.mark.requirement("S2-US4.4")
def test_a_snapshot_at_that_very_time_is_not_older(manager: IcebergTableManager, table: Table, left: Left) -> None:
    grown = grow(table, [days_ago(8), days_ago(7), days_ago(1)])

    assert manager.expire_snapshots(T, older_than=days_ago(7), retain_last=1) == 2

    assert left() == grown[1:]


def test_nothing_to_expire_commits_nothing(manager: IcebergTableManager, lake: Lake, table: Table) -> None:
    versions = lake.metadata_versions(T)

    assert manager.expire_snapshots(table, older_than_days=0, retain_last=1, now=NOW) == 0
    assert manager.expire_snapshots(manager.create_table("bronze.empty", SCHEMA), older_than_days=0) == 0

    assert lake.metadata_versions(T) == versions


@pytest.mark.requirement("S2-FR-003", "S2-US4.4", "S0-S1")
def test_what_a_tag_or_branch_points_at_stays(manager: IcebergTableManager, table: Table, left: Left) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8, 7, 6, 5)])
    manager.create_tag(T, "v1", grown[0])
    manager.create_branch(T, "audit", grown[2])

    assert manager.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW) == 3

    assert left() == [grown[0], grown[2], grown[4]]
    assert manager.scan(T, ref="v1").num_rows == manager.scan(T, ref="audit").num_rows == 3


@pytest.mark.requirement("S2-US4.4")
def test_the_newest_of_each_branch_stay(manager: IcebergTableManager, table: Table, left: Left) -> None:
    main = grow(table, [days_ago(30)])
    audit = grow(table, [days_ago(29), days_ago(28), days_ago(27)], branch="audit")
    main += grow(table, [days_ago(26), days_ago(25)])

    assert manager.expire_snapshots(T, older_than_days=1, retain_last=2, now=NOW) == 3

    assert left() == [*audit[1:], *main[1:]]


def test_a_branch_with_its_own_retention_is_judged_by_it(
    manager: IcebergTableManager, table: Table, left: Left
) -> None:
    root = grow(table, [days_ago(30)])
    manager.create_branch(T, "long", root[0], max_snapshot_age=timedelta(days=365))
    manager.create_branch(T, "short", root[0], max_snapshot_age=timedelta(hours=1), min_snapshots_to_keep=1)
    long = grow(table, [days_ago(29), days_ago(28)], branch="long")
    short = grow(table, [days_ago(3), days_ago(2)], branch="short")
    main = grow(table, [days_ago(1.5), days_ago(1)])

    manager.expire_snapshots(T, older_than_days=7, retain_last=2, now=NOW)

    assert left()[-5:] == [*long, short[1], *main]
    assert short[0] not in left()
    assert root[0] in left()


@pytest.mark.requirement("S0-S1")
def test_tags_and_branches_past_their_own_age_go_and_main_never_does(
    manager: IcebergTableManager, lake: Lake, table: Table, left: Left
) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8, 6)])
    manager.create_tag(T, "old", grown[0], max_ref_age=timedelta(days=8))
    manager.create_tag(T, "young", grown[1], max_ref_age=timedelta(days=8, minutes=1))
    manager.create_branch(T, "forgotten", grown[0], max_ref_age=timedelta(days=1))

    assert manager.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW) == 2

    assert set(lake.table(T).refs()) == {"main", "young"}
    assert left() == grown[1:]


def test_the_tables_own_age_for_names_counts_where_they_have_none(
    manager: IcebergTableManager, lake: Lake, table: Table
) -> None:
    manager.create_tag(T, "v1")
    with table.refresh().transaction() as transaction:
        transaction.set_properties({"history.expire.max-ref-age-ms": "1000"})

    assert manager.expire_snapshots(T, now=NOW) == 0

    assert set(lake.table(T).refs()) == {"main"}


@pytest.mark.requirement("S2-US4.4")
def test_rolled_back_snapshots_expire_like_others(manager: IcebergTableManager, table: Table, left: Left) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8, 3, 2)])
    manager.rollback_to_snapshot(T, grown[0])

    assert manager.expire_snapshots(T, older_than_days=7, retain_last=1, now=NOW) == 2

    assert left() == [grown[0], *grown[2:]]
    assert manager.get_current_snapshot(T).snapshot_id == grown[0]


@pytest.mark.parametrize("value", ["false", "FALSE", "no"])
def test_a_table_whose_files_others_share_is_left_alone(
    manager: IcebergTableManager, table: Table, left: Left, value: str
) -> None:
    """Iceberg's Java takes any text but 'true' for false."""
    grow(table, [days_ago(9), days_ago(8)])
    with table.refresh().transaction() as transaction:
        transaction.set_properties({"gc.enabled": value})

    with pytest.raises(MaintenanceRefusedError, match=r"gc_disabled.*gc\.enabled is false"):
        manager.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW)

    assert len(left()) == 3


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"older_than_days": 7, "older_than": NOW}, "older_than_days and older_than"),
        ({"min_snapshots_to_keep": 1, "retain_last": 1}, "min_snapshots_to_keep and retain_last"),
        ({"older_than": datetime(2024, 1, 1)}, "older_than .*no time zone"),  # noqa: DTZ001 - that is the point
        ({"now": datetime(2024, 1, 1)}, "now .*no time zone"),  # noqa: DTZ001 - that is the point
        ({"older_than_days": -1}, "must be 0 or more days, got -1"),
        ({"retain_last": 0}, "at least 1"),
    ],
)
def test_a_retention_that_is_invalid_is_refused(
    manager: IcebergTableManager, table: Table, arguments: dict[str, object], fact: str
) -> None:
    with pytest.raises(ValidationError, match=fact):
        manager.expire_snapshots(table, **arguments)


@pytest.mark.requirement("S2-E8")
def test_thousands_of_snapshots_expire_in_batches(
    manager: IcebergTableManager, lake: Lake, table: Table, left: Left
) -> None:
    first = lake.table(T).current_snapshot().snapshot_id
    grown = grow(table, [NOW - timedelta(minutes=10 * count) for count in range(2500, 0, -1)])
    versions = lake.metadata_versions(T)

    assert manager.expire_snapshots(T, older_than=NOW, retain_last=20) == 2481

    assert left() == grown[-20:]
    assert first not in left()
    assert lake.metadata_versions(T) == versions + -(-2481 // MAX_SNAPSHOTS_PER_COMMIT)
    assert len(lake.rows(T)) == 3


def test_the_span_counts_the_expired_snapshots(lake: Lake, table: Table) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    grow(table, [days_ago(9), days_ago(8)])

    manager = IcebergTableManager(lake.catalog, tracer=provider.get_tracer("test"))
    manager.expire_snapshots(T, retain_last=1, now=NOW)

    *_, span = spans.get_finished_spans()
    assert (span.name, span.attributes["snapshots.expired"]) == ("iceberg.expire_snapshots", 2)


@pytest.mark.lakes
@pytest.mark.parametrize("delete_files", [True, False], ids=["deleted", "left alone"])
def test_files_that_only_expired_snapshots_need_are_deleted(
    manager: IcebergTableManager, lake: Lake, *, delete_files: bool
) -> None:
    for value in (1, 2, 3):
        manager.overwrite(manager.create_table(T, SCHEMA, if_not_exists=True), numbers(value))

    assert manager.expire_snapshots(T, older_than=datetime.now(UTC), retain_last=1, delete_files=delete_files) == 2

    assert len(lake.data_files()) == (1 if delete_files else 3)
    assert lake.table(T).scan().to_arrow().column(0).to_pylist() == [3]

"""Finding, dropping and registering tables, and the namespaces they lie in."""

import pyarrow as pa
import pytest
from support.events_table import NESTED, events
from support.lake import Lake
from support.rival_writer import rival_writer

from floe_dagster_iceberg.errors import (
    NoSuchNamespaceError,
    NoSuchTableError,
    ScanError,
    TableAlreadyExistsError,
    ValidationError,
)
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes


@pytest.mark.requirement("S4-create_table", "S0-X1..6")
def test_a_missing_namespace_is_an_error_with_its_cause(manager: IcebergTableManager) -> None:
    with pytest.raises(NoSuchNamespaceError, match="nowhere") as missing:
        manager.create_table(events(namespace="nowhere"))

    assert type(missing.value.__cause__).__name__ == "NoSuchNamespaceError"


@pytest.mark.requirement("S4-load_table", "S1-T027-30", "S0-X1..6")
def test_a_missing_table_is_an_error_that_names_it(manager: IcebergTableManager) -> None:
    identifier = TableIdentifier(namespace="bronze", name="nothing")

    assert not manager.table_exists(identifier)
    with pytest.raises(NoSuchTableError, match=r"bronze\.nothing") as missing:
        manager.load_table(identifier)
    assert missing.value.__cause__ is not None


@pytest.mark.requirement("S4-load_table", "S1-T027-30")
def test_a_loaded_table_is_the_newest_version_whatever_handle_is_given(
    lake: Lake, manager: IcebergTableManager
) -> None:
    stale = manager.create_table(events())
    with rival_writer(lake) as rival:
        rival.append("bronze.events", pa.table({"id": [1]}))

    assert manager.load_table(stale).current_snapshot() is not None
    assert stale.current_snapshot() is None
    assert manager.table_exists("bronze.events")


@pytest.mark.requirement("S4-load_table")
def test_a_plain_drop_keeps_the_files_and_registering_brings_the_table_back(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table(events())
    manager.append("bronze.events", pa.table({"id": [1, 2]}))
    location, files = lake.table("bronze.events").metadata_location, lake.files()

    manager.drop_table("bronze.events")
    assert not lake.catalog.table_exists("bronze.events")
    assert lake.files() == files

    manager.register_table("bronze.back", location)
    assert len(lake.rows("bronze.back")) == 2


@pytest.mark.requirement("S4-load_table")
def test_a_purge_deletes_data_and_metadata(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table(events())
    manager.append("bronze.events", pa.table({"id": [1, 2]}))

    manager.drop_table("bronze.events", purge=True)

    assert not lake.catalog.table_exists("bronze.events")
    assert lake.files() == set()


@pytest.mark.parametrize("value", ["false", "no"])
def test_a_table_whose_files_may_be_anothers_is_not_purged(
    lake: Lake, manager: IcebergTableManager, value: str
) -> None:
    """One that shows the files of another, as Iceberg's procedure `snapshot` makes it."""
    manager.create_table(events())
    manager.append("bronze.events", pa.table({"id": [1, 2]}))
    source = lake.table("bronze.events")
    shared = lake.catalog.create_table("bronze.shared", source.schema(), properties={"gc.enabled": value})
    with shared.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        for task in source.scan().plan_files():
            snapshot.append_data_file(task.file)
    files = lake.files()

    with pytest.raises(ValidationError, match=rf"'bronze\.shared' cannot be purged: .*gc\.enabled is '{value}'"):
        manager.drop_table("bronze.shared", purge=True)

    assert lake.files() == files
    assert len(lake.rows("bronze.shared")) == len(lake.rows("bronze.events")) == 2
    manager.drop_table("bronze.shared")
    assert (lake.files(), len(lake.rows("bronze.events"))) == (files, 2)


def test_dropping_a_missing_table_is_an_error(manager: IcebergTableManager) -> None:
    with pytest.raises(NoSuchTableError):
        manager.drop_table("bronze.nothing")


def test_registering_a_taken_name_or_a_missing_file_is_an_error(lake: Lake, manager: IcebergTableManager) -> None:
    table = manager.create_table(events())

    with pytest.raises(TableAlreadyExistsError):
        manager.register_table("bronze.events", table.metadata_location)
    with pytest.raises(ScanError, match=r"bronze\.other"):
        manager.register_table("bronze.other", f"{lake.place.warehouse_uri}/nothing.metadata.json")


@pytest.mark.requirement("S4-load_table")
def test_tables_are_listed_by_bare_name_and_without_those_of_nested_namespaces(manager: IcebergTableManager) -> None:
    manager.create_namespace("bronze.raw")
    for name in ("bronze.b", "bronze.a", "bronze.raw.c"):
        manager.create_table(name, NESTED)

    assert manager.list_tables("bronze") == ["a", "b"]
    assert manager.list_tables(("bronze", "raw")) == ["c"]
    with pytest.raises(NoSuchNamespaceError, match="silver"):
        manager.list_tables("silver")


@pytest.mark.requirement("S0-X1..6")
def test_namespaces_come_and_go(manager: IcebergTableManager) -> None:
    manager.create_namespace("gold.daily", {"owner": "a"})
    manager.create_namespace("gold.daily", if_not_exists=True)

    assert manager.namespace_exists("gold.daily")
    assert manager.list_namespaces("gold") == ["gold.daily"]
    assert "bronze" in manager.list_namespaces()
    with pytest.raises(ValidationError, match="already exists"):
        manager.create_namespace("gold.daily")
    manager.drop_namespace("gold.daily")
    assert not manager.namespace_exists("gold.daily")


def test_a_namespace_with_tables_is_not_dropped(manager: IcebergTableManager) -> None:
    manager.create_table(events())

    with pytest.raises(ValidationError, match="still holds tables"):
        manager.drop_namespace("bronze")
    with pytest.raises(NoSuchNamespaceError):
        manager.drop_namespace("nothing")
    with pytest.raises(ValidationError, match="not valid"):
        manager.create_namespace("a..b")


def test_a_table_may_lie_where_its_config_says(lake: Lake, manager: IcebergTableManager) -> None:
    location = f"{lake.place.warehouse_uri}/some/place"

    manager.create_table(events(location=location))
    manager.append("bronze.events", pa.table({"id": [1]}))

    assert lake.table("bronze.events").location() == location
    assert all(path.is_relative_to(lake.warehouse / "some" / "place") for path in lake.files())


@pytest.mark.requirement("S2-E6")
def test_a_missing_metadata_file_is_an_error_that_names_the_table(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table(events())
    for path in lake.files("**/*.metadata.json"):
        path.unlink()

    # The client that wrote it may remember it.
    stranger = IcebergTableManager(lake.connect())
    with pytest.raises(ScanError, match=r"metadata of table 'bronze\.events' cannot be read"):
        stranger.load_table("bronze.events")
    with pytest.raises(ScanError, match=r"bronze\.events"):
        stranger.append("bronze.events", pa.table({"id": [1]}))


@pytest.mark.requirement("S2-E6")
def test_a_corrupt_metadata_file_is_an_error_that_names_the_table(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table(events())
    for path in lake.files("**/*.metadata.json"):
        path.write_text('{"format-version": 2, "table-uuid": "half a')

    stranger = IcebergTableManager(lake.connect())
    with pytest.raises(ScanError, match=r"metadata of table 'bronze\.events' cannot be read"):
        stranger.scan("bronze.events")

"""Our SQL catalog does what PyIceberg's does, only quicker; here is what it relies on, and the comparison."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import update_table_metadata
from pyiceberg.types import LongType
from support.lake import Lake

from floe_dagster_iceberg._pyiceberg.sql_catalog import FloeSqlCatalog, next_metadata
from floe_dagster_iceberg.table.manager import IcebergTableManager

ONE_ROW = pa.table({"id": [1]})


@pytest.fixture
def quick(lake: Lake) -> Iterator[FloeSqlCatalog]:
    """Our catalog on the database of the lake, whose own client is PyIceberg's."""
    uri = lake.catalog.properties["uri"]
    catalog = FloeSqlCatalog("floe", uri=uri, warehouse=lake.catalog.properties["warehouse"])
    catalog.create_table("bronze.t", ONE_ROW.schema)
    yield catalog
    catalog.close()


def test_pyiceberg_still_commits_in_the_steps_that_we_replace() -> None:
    commit = inspect.getsource(SqlCatalog.commit_table)
    assert "self.load_table(table_identifier)" in commit
    assert "self._update_and_stage_table(current_table, table.name(), requirements, updates)" in commit
    assert "self._convert_orm_to_iceberg(" in inspect.getsource(SqlCatalog.load_table)
    convert = inspect.getsource(SqlCatalog._convert_orm_to_iceberg)
    assert "load_file_io(properties=self.properties, location=metadata_location)" in convert
    assert "FromInputFile.table_metadata(file)" in convert
    assert "io=self._load_file_io(metadata.properties, metadata_location)" in convert
    steps = inspect.getsource(MetastoreCatalog._update_and_stage_table)
    assert [line.strip() for line in steps.splitlines() if " = " in line] == [
        "updated_metadata = update_table_metadata(",
        (
            "new_metadata_version = self._parse_metadata_version(current_table.metadata_location) + 1 "
            "if current_table else 0"
        ),
        "provider = load_location_provider(updated_metadata.location, updated_metadata.properties)",
        "new_metadata_location = provider.new_table_metadata_file_location(new_metadata_version)",
    ]


STAGES: dict[str, Callable[[Transaction], object]] = {
    "rows": lambda transaction: transaction.append(ONE_ROW),
    "a column": lambda transaction: transaction.update_schema().add_column("a", LongType()).commit(),
    "a partition": lambda transaction: transaction.update_spec().add_identity("id").commit(),
    "a property": lambda transaction: transaction.set_properties({"owner": "us"}),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES.keys())
def test_the_next_version_is_the_one_that_pyiceberg_works_out(
    quick: FloeSqlCatalog, stage: Callable[[Transaction], object]
) -> None:
    table = quick.load_table("bronze.t")
    table.append(ONE_ROW)
    transaction = table.transaction()
    stage(transaction)
    base = table.metadata.model_copy(deep=True)

    ours = next_metadata(table.metadata, transaction._updates, table.metadata_location)
    theirs = update_table_metadata(base, transaction._updates, metadata_location=table.metadata_location)

    assert without_times(ours) == without_times(theirs)
    assert ours.metadata_log == theirs.metadata_log
    assert table.metadata == base


def without_times(metadata: Any) -> dict[str, Any]:
    return metadata.model_dump(exclude={"last_updated_ms", "snapshot_log"})


def test_what_is_written_is_what_is_remembered(quick: FloeSqlCatalog, lake: Lake) -> None:
    manager = IcebergTableManager(quick)
    for _ in range(3):
        manager.append("bronze.t", ONE_ROW)

    remembered, on_disk = quick.load_table("bronze.t"), lake.table("bronze.t")

    assert remembered.metadata == on_disk.metadata
    assert remembered.metadata_location == on_disk.metadata_location


def test_another_clients_commit_is_seen_at_once_and_never_overwritten(quick: FloeSqlCatalog, lake: Lake) -> None:
    stale = quick.load_table("bronze.t")
    lake.table("bronze.t").append(ONE_ROW)

    with pytest.raises(CommitFailedException):
        commit_stale(stale)

    assert quick.load_table("bronze.t").metadata == lake.table("bronze.t").metadata
    assert len(lake.rows("bronze.t")) == 1


def commit_stale(table: Table) -> None:
    # PyIceberg's own append would look again and succeed.
    transaction = table.transaction()
    producer = transaction.update_snapshot().fast_append()
    producer.commit()
    table._do_commit(transaction._updates, transaction._requirements)


def test_a_version_is_read_from_disk_once(quick: FloeSqlCatalog, lake: Lake) -> None:
    lake.table("bronze.t").append(ONE_ROW)
    location = Path(quick.load_table("bronze.t").metadata_location.removeprefix("file://"))
    location.rename(location.with_suffix(".away"))

    assert quick.load_table("bronze.t").metadata.current_snapshot() is not None
    with pytest.raises(FileNotFoundError):
        lake.table("bronze.t")


def test_a_dropped_table_is_gone_and_a_new_one_of_its_name_is_new(quick: FloeSqlCatalog, lake: Lake) -> None:
    first = quick.load_table("bronze.t").metadata.table_uuid
    lake.catalog.drop_table("bronze.t")
    assert not quick.table_exists("bronze.t")

    lake.catalog.create_table("bronze.t", ONE_ROW.schema)
    assert quick.load_table("bronze.t").metadata.table_uuid != first


def test_changes_to_a_loaded_tables_metadata_are_not_shared(quick: FloeSqlCatalog, lake: Lake) -> None:
    lake.table("bronze.t").append(ONE_ROW)
    for _ in range(2):
        quick.load_table("bronze.t").metadata.properties["mine"] = "yes"

    IcebergTableManager(quick).append("bronze.t", ONE_ROW)

    assert "mine" not in lake.table("bronze.t").properties


def test_only_a_few_versions_are_remembered(quick: FloeSqlCatalog) -> None:
    manager = IcebergTableManager(quick)
    for _ in range(20):
        manager.append("bronze.t", ONE_ROW)

    assert len(quick._metadata_memory._versions) == 8

"""What Dagster gets to know of tables that others write: definitions, figures, partitions, failures."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.transforms import DayTransform
from support.lake import Lake
from support.observed_lake import ObservedLake, rows

from floe_dagster_iceberg import build_iceberg_observations
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.observations.assets import ListedTable, TableListing
from floe_dagster_iceberg.table.manager import IcebergTableManager

SCHEMA = pa.schema([("id", pa.int64())])
EVENTS = pa.schema([("day", pa.date32()), ("id", pa.int64())])
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")


def events(*days: int) -> pa.Table:
    return pa.table({"day": [date(2024, 1, day) for day in days], "id": list(days)}, schema=EVENTS)


def daily(**metadata: str) -> dg.AssetSpec:
    return dg.AssetSpec(["bronze", "t"], partitions_def=DAYS, metadata={"partition_expr": "day", **metadata})


def test_an_observation_has_the_figures_of_the_table(observed: ObservedLake, lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", SCHEMA)
    table.append(rows(1, 2), snapshot_properties={"engine-name": "flink", "flink.job-id": "job-7"})
    observed.observe()
    table.append(rows(3))
    table.append(rows(4, 5))
    observed.observe()

    metadata, snapshot = observed.metadata(), table.current_snapshot()
    assert snapshot is not None
    assert {name: metadata[f"iceberg/{name}"] for name in ("snapshots", "data_files", "added_rows", "added_files")} == {
        "snapshots": 3,
        "data_files": 3,
        "added_rows": 3,
        "added_files": 2,
    }
    assert metadata["dagster/row_count"] == 5
    assert metadata["dagster/table_name"] == "bronze.t"
    assert metadata["dagster/last_updated_timestamp"] == snapshot.timestamp_ms / 1000
    assert metadata["iceberg/time_travel"].endswith(f"VERSION AS OF {snapshot.snapshot_id}")
    assert metadata["iceberg/time_travel_before"].endswith(f"VERSION AS OF {metadata['iceberg/previous_snapshot_id']}")
    assert [column.name for column in metadata["dagster/column_schema"].columns] == ["id"]


def test_the_writer_is_named(observed: ObservedLake, lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", SCHEMA)
    table.append(rows(1), snapshot_properties={"engine-name": "flink", "flink.job-id": "job-7"})
    observed.observe()

    assert observed.metadata()["iceberg/writer"] == "flink job-7"


def test_rows_of_a_dagster_run_link_to_it(observed: ObservedLake, lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", SCHEMA)
    table.append(rows(1), snapshot_properties={"dagster.run-id": "3f1c"})
    observed.observe()

    assert observed.metadata()["iceberg/writer_run"] == "3f1c"


def test_only_partitions_whose_files_changed_get_a_new_version(observed: ObservedLake, lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", EVENTS)
    with table.update_spec() as spec:
        spec.add_field("day", DayTransform())
    observed.tables = [daily()]
    table.append(events(1, 2, 3))
    first = observed.version()
    table.append(events(2))
    second = str(table.metadata.current_snapshot_id)
    table.delete("day = '2024-01-03'")
    third = observed.version()

    assert observed.materialized() == [
        ("2024-01-01", first),
        ("2024-01-02", first),
        ("2024-01-03", first),
        ("2024-01-02", second),
        ("2024-01-03", third),
    ]


def test_partitions_are_found_by_statistics_in_a_table_that_is_partitioned_otherwise(
    observed: ObservedLake, lake: Lake
) -> None:
    table = lake.catalog.create_table("bronze.t", EVENTS)
    observed.tables = [daily()]
    table.append(events(4))
    observed.observe()
    table.append(events(9))
    observed.observe()

    assert [partition for partition, _ in observed.materialized()] == ["2024-01-04", "2024-01-09"]


def test_a_rollback_changes_the_partitions_that_differ(observed: ObservedLake, lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", EVENTS)
    observed.tables = [daily()]
    table.append(events(1))
    first = observed.version()
    table.append(events(5))
    observed.observe()
    IcebergTableManager(lake.connect()).rollback_to_snapshot("bronze.t", int(first))
    observed.observe()

    assert [partition for partition, _ in observed.materialized()] == ["2024-01-01", "2024-01-05", "2024-01-05"]


def test_rows_of_a_day_that_was_not_over_are_reported_when_it_is(observed: ObservedLake, lake: Lake) -> None:
    noon = datetime.now(UTC).replace(hour=12) - timedelta(days=1)
    days = dg.DailyPartitionsDefinition(noon - timedelta(days=9))
    observed.tables = [dg.AssetSpec(["bronze", "t"], partitions_def=days, metadata={"partition_expr": "day"})]
    table = lake.catalog.create_table("bronze.t", EVENTS)
    table.append(pa.table({"day": [noon.date()], "id": [1]}, schema=EVENTS))
    observed.observe()
    last = observed.last()
    with dg.DagsterInstance.ephemeral() as yesterday:
        # What a look at noon has left, when Dagster had no key of the day.
        looked_at = {"iceberg/observed_at": dg.MetadataValue.timestamp(noon)}
        yesterday.report_runless_asset_event(
            dg.AssetObservation(last.asset_key, metadata={**last.metadata, **looked_at}, tags=last.tags)
        )
        today = ObservedLake(lake, yesterday, observed.tables)
        versions = [today.version() for _ in range(2)]

        assert versions == [str(table.metadata.current_snapshot_id)] * 2
        assert today.materialized() == [(noon.date().isoformat(), versions[0])]


def test_a_partitioned_spec_needs_its_column() -> None:
    with pytest.raises(ValidationError, match="no column is named"):
        build_iceberg_observations([dg.AssetSpec("t", partitions_def=DAYS)])


def test_one_table_that_fails_does_not_stop_the_others(observed: ObservedLake, lake: Lake) -> None:
    broken = lake.catalog.create_table("bronze.broken", SCHEMA)
    lake.catalog.create_table("bronze.t", SCHEMA).append(rows(1))
    Path(broken.metadata_location.removeprefix("file://")).write_text("{")
    observed.tables = ["bronze.*", "bronze.never_was"]
    result = observed.observe(fails=True)

    assert observed.metadata()["dagster/row_count"] == 1
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    message = str(failure.event_specific_data)
    assert "Table 'bronze.broken' was not observed" in message
    assert "Table 'bronze.never_was' was not observed" in message


@pytest.mark.parametrize("broken", ["manifest list", "partition column"])
def test_partitions_that_cannot_be_found_do_not_stop_the_other_tables(
    observed: ObservedLake, lake: Lake, broken: str
) -> None:
    first = lake.catalog.create_table("bronze.first", EVENTS)
    first.append(events(1))
    lake.catalog.create_table("bronze.t", SCHEMA).append(rows(1))
    column = "gone" if broken == "partition column" else "day"
    spec = dg.AssetSpec(["bronze", "first"], partitions_def=DAYS, metadata={"partition_expr": column})
    observed.tables = [spec, "bronze.t"]
    if broken == "manifest list":
        Path(first.current_snapshot().manifest_list.removeprefix("file://")).unlink()  # type: ignore[union-attr]
    result = observed.observe(fails=True)

    assert observed.metadata()["dagster/row_count"] == 1
    (failure,) = [event for event in result.all_node_events if event.is_step_failure]
    message = failure.step_failure_data.error.message  # type: ignore[union-attr]
    assert "1 of the tables were not observed: Table 'bronze.first' was not observed" in message
    assert not observed.materialized("bronze/first")


def test_a_glob_is_matched_in_each_run(observed: ObservedLake, lake: Lake) -> None:
    observed.tables = ["bronze.*"]
    assert not list(observed.definitions().resolve_all_asset_specs())
    for name in ("a", "b"):
        lake.catalog.create_table(f"bronze.{name}", SCHEMA).append(rows(1))
        observed.observe()

    assert observed.materialized("bronze/a")
    assert observed.materialized("bronze/b")


def test_a_run_may_observe_some_of_the_tables(observed: ObservedLake, lake: Lake) -> None:
    for name in ("a", "b"):
        lake.catalog.create_table(f"bronze.{name}", SCHEMA).append(rows(1))
    observed.tables = ["bronze.*"]
    observed.observe(config={"tables": ["bronze.b"]})

    assert observed.materialized("bronze/b")
    assert not observed.materialized("bronze/a")


def test_a_listing_gives_definitions_without_a_connection(lake: Lake, tmp_path: Path) -> None:
    properties = {"comment": "Orders of the shop", "owner": "team:sales"}
    table = lake.catalog.create_table("bronze.orders", SCHEMA, properties=properties)
    TableListing(tables=(ListedTable.from_table(table),)).save(tmp_path / "tables.json")
    lake.catalog.drop_table("bronze.orders")

    definitions = build_iceberg_observations(
        ["bronze.*"], iceberg=lake.place.iceberg(), listing=tmp_path / "tables.json"
    )

    (spec,) = definitions.resolve_all_asset_specs()
    assert spec.key == dg.AssetKey(["bronze", "orders"])
    assert (spec.description, list(spec.owners)) == ("Orders of the shop", ["team:sales"])
    assert spec.kinds == {"iceberg"}
    assert [column.name for column in spec.metadata["dagster/column_schema"].columns] == ["id"]
    assert spec.metadata["dagster/table_name"].value == "bronze.orders"


def test_a_file_that_is_no_listing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tables.json").write_text("[]")
    with pytest.raises(ValidationError, match="floe-iceberg discover"):
        build_iceberg_observations(["bronze.*"], listing=tmp_path / "tables.json")


def test_an_invalid_cron_is_refused() -> None:
    with pytest.raises(ValidationError, match="cron 'soon'"):
        build_iceberg_observations(["bronze.t"], cron="soon")

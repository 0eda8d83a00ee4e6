"""The recipes of docs/observing.md with a daemon of its own process: sensor, automation, freshness, partitions."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from support.lake import Lake
from support.observed_lake import ObservedLake, rows
from support.processes import running, wait_until

from floe_dagster_iceberg.table.manager import IcebergTableManager

CODE_LOCATION = """
from datetime import timedelta
import dagster as dg
from floe_dagster_iceberg import IcebergResource, build_iceberg_observations, build_table_change_sensor

iceberg = IcebergResource(catalog_uri={uri!r}, warehouse={warehouse!r})
orders = dg.AssetSpec(["bronze", "t"], freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1)))
arrivals = dg.DynamicPartitionsDefinition(name="arrivals")
changed = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
fresh = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.freshness_passed()).newly_true()


@dg.asset(deps=[orders.key], automation_condition=changed)
def report(): ...


@dg.asset(deps=[orders.key], automation_condition=fresh)
def published(): ...


@dg.asset(partitions_def=arrivals)
def arrival(): ...


watch = build_table_change_sensor(
    [orders], target=[arrival], partitions=arrivals, minimum_interval_seconds=2,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
automate = dg.AutomationConditionSensorDefinition(
    "automate", target=[report, published], default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=2
)
checks = dg.build_last_update_freshness_checks(assets=[orders.key], lower_bound_delta=timedelta(hours=1))
check_freshness = dg.build_sensor_for_freshness_checks(
    freshness_checks=checks, minimum_interval_seconds=2, default_status=dg.DefaultSensorStatus.RUNNING
)
defs = dg.Definitions.merge(
    build_iceberg_observations([orders], iceberg=iceberg),
    dg.Definitions(
        assets=[report, published, arrival], asset_checks=checks, sensors=[watch, automate, check_freshness]
    ),
)
"""


@contextmanager
def daemon(folder: Path, lake: Lake) -> Iterator[dg.DagsterInstance]:
    home, location = folder / "dagster", folder / "location.py"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\nfreshness:\n  enabled: true\n")
    settings = lake.place.catalog_config
    location.write_text(CODE_LOCATION.format(uri=settings["uri"], warehouse=settings["warehouse"]))
    command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-f", str(location)]
    with (
        dg.DagsterInstance.from_config(str(home)) as instance,
        running(command, folder / "daemon.log", {"DAGSTER_HOME": str(home)}),
    ):
        yield instance


def partitions_of(instance: dg.DagsterInstance, key: str) -> list[str | None]:
    records = instance.fetch_materializations(dg.AssetKey(key), limit=100, ascending=True).records
    return [record.partition_key for record in records]


def checked(instance: dg.DagsterInstance) -> list[dg.AssetCheckEvaluation]:
    """The freshness checks of the table that runs of the sensor have stored."""
    records = instance.get_records_for_run
    runs = instance.get_runs()
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = [record.event_log_entry for run in runs for record in records(run.run_id, of_type=kind).records]
    return [event.dagster_event.asset_check_evaluation_data for event in events if event.dagster_event is not None]


@pytest.mark.slow
def test_a_change_reaches_dagster_and_what_depends_on_it(tmp_path: Path, lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    table.append(rows(1))
    with daemon(tmp_path, lake) as instance:
        orders = ObservedLake(lake, instance)
        wait_until(lambda: len(orders.materialized()) == 1, seconds=300, what="the first look")
        wait_until(lambda: bool(partitions_of(instance, "published")), seconds=300, what="the freshness policy")
        wait_until(lambda: bool(checked(instance)), seconds=300, what="a freshness check")
        (evaluation, *_) = checked(instance)
        assert (evaluation.asset_key, evaluation.passed) == (dg.AssetKey(["bronze", "t"]), True)
        first = table.current_snapshot()
        assert first is not None
        assert evaluation.metadata["dagster/last_updated_timestamp"].value == first.timestamp_ms / 1000
        table.append(rows(2))
        arrived = str(table.metadata.current_snapshot_id)
        wait_until(lambda: bool(partitions_of(instance, "arrival")), seconds=300, what="a run of the new partition")
        wait_until(lambda: bool(partitions_of(instance, "report")), seconds=300, what="a run by data version")
        reports = len(partitions_of(instance, "report"))
        IcebergTableManager(lake.connect()).compact_table("bronze.t")
        table.refresh().append(rows(3))
        wait_until(lambda: len(partitions_of(instance, "arrival")) == 2, seconds=300, what="another partition")
        wait_until(lambda: len(partitions_of(instance, "report")) == reports + 1, seconds=300, what="another report")
        versions = [version for _, version in orders.materialized()]

    assert partitions_of(instance, "arrival")[0] == f"bronze.t:{arrived}"
    assert versions[-1] == str(table.metadata.current_snapshot_id)
    assert len(versions) == 3


# Dagster discourages these checks in favour of freshness policies, and users have them.
@pytest.mark.filterwarnings("ignore:Function `build_last_update_freshness_checks` is superseded")
def test_last_update_freshness_checks_read_the_time_of_the_last_change(observed: ObservedLake, lake: Lake) -> None:
    table = lake.catalog.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    table.append(rows(1))
    observed.observe()
    (check,) = dg.build_last_update_freshness_checks(
        assets=[dg.AssetKey(["bronze", "t"])], lower_bound_delta=timedelta(hours=1)
    )
    result = dg.materialize([check], instance=observed.instance, selection=dg.AssetSelection.all_asset_checks())

    (evaluation,) = result.get_asset_check_evaluations()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert evaluation.passed
    assert evaluation.metadata["dagster/last_updated_timestamp"].value == snapshot.timestamp_ms / 1000

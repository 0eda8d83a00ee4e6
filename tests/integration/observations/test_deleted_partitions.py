"""The job that deletes partitions: a dry run first, then the rows of exactly these partitions."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from floe_dagster_iceberg import IcebergResource, build_delete_partitions_job

KEYS = ["2024-01-01", "2024-01-02"]
SALES = dg.AssetSpec(
    ["shop", "sales"],
    partitions_def=dg.DailyPartitionsDefinition("2024-01-01", end_date="2025-01-01"),
    metadata={"partition_expr": "day"},
)


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergResource:
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/w")
    days = [date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 2), date(2024, 1, 3), None]
    rows = pa.table({"day": pa.array(days, pa.date32()), "id": [1, 2, 3, 4, 5]})
    iceberg.table_manager.create_namespace("shop")
    iceberg.table_manager.create_table("shop.sales", rows.schema)
    iceberg.table_manager.append("shop.sales", rows)
    return iceberg


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def launch(iceberg: IcebergResource, instance: dg.DagsterInstance, **config: object) -> dg.ExecuteInProcessResult:
    definitions = dg.Definitions(
        assets=[SALES], jobs=[build_delete_partitions_job([SALES])], resources={"iceberg": iceberg}
    )
    given = {"asset": "shop/sales", "partitions": KEYS, **config}
    return definitions.resolve_job_def("delete_iceberg_partitions_job").execute_in_process(
        run_config={"ops": {"delete_iceberg_partitions": {"config": given}}}, instance=instance, raise_on_error=False
    )


def ids(iceberg: IcebergResource) -> list[int]:
    return sorted(iceberg.table_manager.scan("shop.sales")["id"].to_pylist())


def test_the_job_counts_first_and_then_deletes_and_reports_each_partition(
    iceberg: IcebergResource, instance: dg.DagsterInstance
) -> None:
    dry = launch(iceberg, instance)
    rows_then = ids(iceberg)
    done = launch(iceberg, instance, dry_run=False)

    assert (dry.success, rows_then, done.success, ids(iceberg)) == (True, [1, 2, 3, 4, 5], True, [4, 5])
    observed = [each.asset_observation for each in instance.fetch_observations(SALES.key, limit=10).records]
    assert {each.partition: each.metadata["iceberg/rows_deleted"].value for each in observed if each} == {
        "2024-01-01": 1,
        "2024-01-02": 2,
    }
    assert len(iceberg.table_manager.list_snapshots("shop.sales")) == 2


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"asset": "shop/salse"}, "The job has no asset 'shop/salse'. It has: shop/sales."),
        ({"partitions": ["2024-01-01", "2023-12-31"]}, "has no partition '2023-12-31'"),
    ],
    ids=["asset", "partition"],
)
def test_what_does_not_exist_fails_the_job_and_nothing_is_deleted(
    iceberg: IcebergResource, instance: dg.DagsterInstance, config: dict[str, object], reason: str
) -> None:
    failed = launch(iceberg, instance, dry_run=False, **config)

    assert not failed.success
    messages = [
        event.step_failure_data.error.message
        for event in failed.get_step_failure_events()
        if event.step_failure_data.error
    ]
    assert any(reason in message for message in messages) or reason in str(failed.all_events)
    assert ids(iceberg) == [1, 2, 3, 4, 5]

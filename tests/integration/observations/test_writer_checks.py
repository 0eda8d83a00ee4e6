"""Checks of who writes a table; and tables that another tool writes inside of an asset."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
import dlt
import pyarrow as pa
import pytest
from support.lake import Lake
from support.observed_lake import rows
from support.spark_lake import SparkLake

from floe_dagster_iceberg import ArrowIcebergIOManager, IcebergResource, build_writer_checks
from floe_dagster_iceberg.observations.checks import MAIN_CHECK, WRITER_CHECK
from floe_dagster_iceberg.table.manager import IcebergTableManager


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@dg.asset(key=["bronze", "t"], io_manager_key="io_manager")
def orders() -> pa.Table:
    return rows(1)


class Project:
    """An asset with its checks."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance) -> None:
        iceberg = lake.place.iceberg()
        self.instance = instance
        self.resources = {"iceberg": iceberg, "io_manager": ArrowIcebergIOManager(iceberg=iceberg)}

    def materialize(self) -> None:
        assert dg.materialize([orders], resources=self.resources, instance=self.instance).success

    def check(self, name: str) -> dg.AssetCheckEvaluation:
        checks = build_writer_checks([orders])
        selection = dg.AssetSelection.checks(dg.AssetCheckKey(orders.key, name))
        result = dg.materialize(
            [orders, *checks], selection=selection, resources=self.resources, instance=self.instance
        )
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation


@pytest.fixture
def project(lake: Lake, instance: dg.DagsterInstance) -> Project:
    return Project(lake, instance)


def test_runs_of_the_asset_itself_are_no_foreign_writers(project: Project) -> None:
    assert project.check(WRITER_CHECK).passed
    for _ in range(2):
        project.materialize()

    assert project.check(WRITER_CHECK).passed
    assert project.check(MAIN_CHECK).passed


def test_a_foreign_writer_is_named_with_snapshot_engine_and_rows(project: Project, lake: Lake) -> None:
    project.materialize()
    by_flink = {"engine-name": "flink", "flink.job-id": "job-7"}
    snapshot = IcebergTableManager(lake.connect()).append("bronze.t", rows(7, 8), snapshot_properties=by_flink)
    evaluation = project.check(WRITER_CHECK)

    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    assert f"snapshot {snapshot.snapshot_id} by flink job-7 (2 rows added, 0 removed)" in (evaluation.description or "")


def test_compaction_is_no_foreign_writer(project: Project, lake: Lake) -> None:
    for _ in range(2):
        project.materialize()
    IcebergTableManager(lake.connect()).compact_table("bronze.t")

    assert project.check(WRITER_CHECK).passed


def test_the_run_after_it_settles_the_matter(project: Project, lake: Lake) -> None:
    project.materialize()
    IcebergTableManager(lake.connect()).append("bronze.t", rows(7))
    project.materialize()

    assert project.check(WRITER_CHECK).passed


def test_a_branch_that_was_not_published_makes_main_lag(project: Project, lake: Lake) -> None:
    project.materialize()
    manager = IcebergTableManager(lake.connect())
    manager.create_branch("bronze.t", "audit")
    manager.append("bronze.t", rows(2), branch="audit")
    evaluation = project.check(MAIN_CHECK)
    manager.fast_forward("bronze.t", "main", "audit")

    assert not evaluation.passed
    assert "lacks 1 newer snapshots" in (evaluation.description or "")
    assert project.check(MAIN_CHECK).passed


def test_rows_that_spark_sql_writes_in_an_asset_get_the_metadata_of_our_own(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    spark, iceberg = SparkLake.open(lake.warehouse.parent), lake.place.iceberg()

    @dg.asset(key=["bronze", "by_sql"])
    def by_sql(iceberg: IcebergResource) -> Any:
        spark.session.sql("CREATE TABLE floe.bronze.by_sql AS SELECT id FROM range(3)")
        description = iceberg.describe("bronze.by_sql")
        return dg.MaterializeResult(metadata=description.metadata, data_version=description.data_version)

    assert dg.materialize([by_sql], resources={"iceberg": iceberg}, instance=instance).success

    (record,) = instance.fetch_materializations(by_sql.key, limit=1).records
    materialization = record.asset_materialization
    assert materialization is not None
    snapshot = str(lake.table("bronze.by_sql").metadata.current_snapshot_id)
    assert (materialization.tags or {})["dagster/data_version"] == snapshot
    assert materialization.metadata["dagster/row_count"].value == 3
    assert str(materialization.metadata["iceberg/writer"].value).startswith("spark ")
    assert iceberg.describe("bronze.by_sql").health.data_files > 0


def test_rows_that_dlt_loads_in_an_asset_get_the_metadata_of_our_own(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg, settings = lake.place.iceberg(), {**lake.place.catalog_config, "type": "sql"}
    for name, value in {
        "ICEBERG_CATALOG__ICEBERG_CATALOG_NAME": iceberg.catalog_name,
        "ICEBERG_CATALOG__ICEBERG_CATALOG_CONFIG": json.dumps(settings),
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "DLT_DATA_DIR": str(lake.warehouse.parent / "dlt"),
    }.items():
        monkeypatch.setenv(name, value)

    @dlt.resource(name="by_dlt", table_format="iceberg", write_disposition="append")
    def numbers() -> Iterator[list[dict[str, int]]]:
        yield [{"number": 1}, {"number": 2}]

    @dg.asset(key=["bronze", "by_dlt"])
    def by_dlt(iceberg: IcebergResource) -> Any:
        destination = dlt.destinations.filesystem(bucket_url=settings["warehouse"])
        dlt.pipeline("numbers", dataset_name="bronze", destination=destination).run(numbers())
        description = iceberg.describe("bronze.by_dlt")
        return dg.MaterializeResult(metadata=description.metadata, data_version=description.data_version)

    for _ in range(2):
        assert dg.materialize([by_dlt], resources={"iceberg": iceberg}, instance=instance).success

    (record,) = instance.fetch_materializations(by_dlt.key, limit=1).records
    materialization = record.asset_materialization
    assert materialization is not None
    snapshot = str(lake.table("bronze.by_dlt").metadata.current_snapshot_id)
    assert (materialization.tags or {})["dagster/data_version"] == snapshot
    assert materialization.metadata["dagster/row_count"].value == 4
    assert materialization.metadata["dagster/table_name"].value == "bronze.by_dlt"


def test_names_of_tables_may_begin_with_the_catalog(lake: Lake, instance: dg.DagsterInstance) -> None:
    iceberg = lake.place.iceberg(qualified_table_names=True)
    resources = {"io_manager": ArrowIcebergIOManager(iceberg=iceberg)}
    assert dg.materialize([orders], resources=resources, instance=instance).success

    (record,) = instance.fetch_materializations(orders.key, limit=1).records
    assert record.asset_materialization is not None
    assert record.asset_materialization.metadata["dagster/table_name"].value == "floe.bronze.t"

"""What describing an asset must leave as it was: everything it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    Config,
    Output,
    RetryPolicy,
    StaticPartitionsDefinition,
    asset,
    graph_asset,
    multi_asset,
    op,
)
from support.maintenance_lake import NeglectedLake

from floe_dagster_iceberg.factory import IcebergBundle, create_iceberg_resources

REGIONS = StaticPartitionsDefinition(["north", "south"])


class Amount(Config):
    amount: int = 1


@pytest.fixture
def lake(tmp_path: Path) -> NeglectedLake:
    (tmp_path / "lake").mkdir()
    return NeglectedLake(tmp_path / "lake")


def only(bundle: IcebergBundle, key: AssetKey) -> AssetsDefinition:
    [found] = [each for each in bundle.assets if isinstance(each, AssetsDefinition) and key in each.keys]
    return found


def test_inputs_config_and_partitions_work_as_before(lake: NeglectedLake) -> None:
    @asset(key=["bronze", "sales"], io_manager_key="iceberg_arrow_io_manager", partitions_def=REGIONS)
    def sales(context: AssetExecutionContext, config: Amount) -> Output[pa.Table]:
        rows = pa.table({"region": [context.partition_key], "id": [config.amount]})
        return Output(rows, metadata={"partition_expr": "region"})

    @asset(
        key=["gold", "totals"],
        io_manager_key="iceberg_arrow_io_manager",
        partitions_def=REGIONS,
        metadata={"partition_expr": "region"},
        ins={},
    )
    def totals(context: AssetExecutionContext) -> pa.Table:
        return pa.table({"region": [context.partition_key], "id": [len(context.partition_key)]})

    definitions = create_iceberg_resources(lake.artifacts(), assets=[sales, totals]).definitions()
    run = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        asset_selection=[sales.key, totals.key],
        partition_key="north",
        run_config={"ops": {"bronze__sales": {"config": {"amount": 7}}}},
    )

    assert run.success
    assert (lake.ids("bronze.sales"), lake.ids("gold.totals")) == ([7], [5])


def test_policies_and_descriptions_stay(lake: NeglectedLake) -> None:
    @asset(
        description="Mine.",
        retry_policy=RetryPolicy(max_retries=2),
        backfill_policy=BackfillPolicy.single_run(),
        partitions_def=REGIONS,
        owners=["me@example.com"],
        required_resource_keys={"iceberg"},
    )
    def mine() -> None: ...

    described = only(create_iceberg_resources(lake.artifacts(), assets=[mine]), mine.key)

    assert described.op.retry_policy == mine.op.retry_policy
    assert described.backfill_policy == mine.backfill_policy
    assert described.partitions_def == REGIONS
    assert described.op.required_resource_keys == mine.op.required_resource_keys
    assert described.get_asset_spec().owners == ["me@example.com"]
    assert described.get_asset_spec().description == "Mine."
    assert described.op is mine.op


def test_an_op_that_writes_several_tables_stays_what_it_is(lake: NeglectedLake) -> None:
    @multi_asset(specs=[AssetSpec(["gold", "a"]), AssetSpec(["gold", "b"])], can_subset=True)
    def several() -> Iterator[Any]:
        yield from ()

    described = only(create_iceberg_resources(lake.artifacts(), assets=[several]), AssetKey(["gold", "a"]))

    assert described.op is several.op
    assert described.can_subset


def test_a_graph_backed_asset_keeps_its_ops(lake: NeglectedLake) -> None:
    @op
    def make() -> pa.Table:
        return pa.table({"id": [1]})

    @graph_asset
    def graphed() -> Any:
        return make()

    presets = {"default": {"cpu": "1"}}
    bundle = create_iceberg_resources(lake.artifacts(resource_presets=presets), assets=[graphed])

    assert only(bundle, graphed.key).node_def is graphed.node_def
    assert only(bundle, graphed.key).get_asset_spec().metadata["dagster/table_name"].value == "shop.graphed"

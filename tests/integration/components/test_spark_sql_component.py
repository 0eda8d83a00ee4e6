"""Assets of SQL: what a SELECT names is upstream, and its rows are written by our own IO manager."""

from datetime import date
from typing import Any

import dagster as dg
import pyarrow as pa
from support.component_project import ComponentProject
from support.place import Place
from support.spark_session import spark_resource

from floe_dagster_iceberg.factory import build_resources

DAYS = dg.DailyPartitionsDefinition("2026-01-01")
DAILY = """
    asset:
      key: silver/revenue
      owners: ["team:data"]
      partitions_def: {type: daily, start_date: "2026-01-01"}
      automation_condition: "{{ dg.AutomationCondition.eager() }}"
    sql_file: revenue.sql
    sql_vars: {least: 0}
    partition_column: day
    checks:
      - {type: not_null, columns: [revenue]}
      - {type: row_count_between, minimum: 1, severity: WARN}
"""
REVENUE = """
WITH orders AS (SELECT * FROM bronze.orders WHERE amount > {{ least }})
SELECT orders.day, sum(orders.amount) AS revenue, count(*) AS n, max(:partition_key) AS k -- {not a field}
FROM orders JOIN bronze.products ON orders.product = products.id GROUP BY orders.day
"""


@dg.asset(
    key_prefix="bronze", partitions_def=DAYS, metadata={"partition_expr": "day"}, io_manager_key="iceberg_io_manager"
)
def orders(context: dg.AssetExecutionContext) -> Any:
    day = date.fromisoformat(context.partition_key)
    return pa.table({"day": [day, day], "product": [1, 2], "amount": [10.0 * day.day, 5.0]})


@dg.asset(key_prefix="bronze", io_manager_key="iceberg_io_manager")
def products() -> Any:
    return pa.table({"id": [1, 2]})


def test_a_select_replaces_its_partition_with_rows_of_the_partitions_it_belongs_to(
    project: ComponentProject, place: Place
) -> None:
    project.write("revenue", "IcebergSparkSqlComponent", DAILY, revenue_sql=REVENUE)
    (revenue,) = project.load().assets or ()
    assert isinstance(revenue, dg.AssetsDefinition)
    key = dg.AssetKey(["silver", "revenue"])
    spec = revenue.specs_by_key[key]
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"bronze/orders", "bronze/products"}
    assert list(spec.owners) == ["team:data"]
    assert spec.automation_condition is not None

    iceberg = place.iceberg()
    resources = build_resources(iceberg, spark_resource(iceberg), {})
    with dg.DagsterInstance.ephemeral() as instance:
        for day in ("2026-01-01", "2026-01-02"):
            assets = [orders, products, revenue]
            run = dg.materialize(
                assets,
                partition_key=day,
                resources=resources,
                instance=instance,
                selection=[key, orders.key] if day == "2026-01-02" else None,
            )
            assert run.success
        again = dg.materialize(
            [orders, products, revenue],
            partition_key="2026-01-02",
            resources=resources,
            instance=instance,
            selection=[key],
        )

    table = resources["iceberg"].table_manager.load_table("silver.revenue")
    rows = table.scan().to_arrow().sort_by("day").to_pylist()
    assert [(row["day"], row["revenue"], row["n"], row["k"]) for row in rows] == [
        (date(2026, 1, 1), 15.0, 2, "2026-01-01"),
        (date(2026, 1, 2), 25.0, 2, "2026-01-02"),
    ]
    (event,) = again.asset_materializations_for_node(revenue.op.name)
    assert event.metadata["dagster/partition_row_count"].value == 1
    evaluations = again.get_asset_check_evaluations()
    assert {each.check_name for each in evaluations} >= {"not_null_revenue"}
    assert all(each.passed for each in evaluations)
    assert table.current_snapshot().summary["dagster.asset-key"] == "silver/revenue"

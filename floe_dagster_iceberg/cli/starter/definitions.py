"""A starter project: daily orders, their revenue, a check, and maintenance of both tables.

Assets return Arrow tables and contain no storage code. .floe/compiled_artifacts.json configures
where tables are stored and how they are maintained.
"""

from datetime import date

import dagster as dg
import pyarrow as pa

from floe_dagster_iceberg import CompiledArtifacts, create_iceberg_resources


@dg.asset(
    partitions_def=dg.DailyPartitionsDefinition("2026-01-01"),
    metadata={"partition_expr": "day"},
    io_manager_key="iceberg_io_manager",
)
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    """The orders of one day. Materializing a day again replaces its rows, and no others."""
    day = date.fromisoformat(context.partition_key)
    products = ["tea", "coffee", "cocoa"]
    amounts = [(day.day * (number + 3)) % 7 + 1.5 for number in range(len(products))]
    return pa.table({"day": [day] * len(products), "product": products, "amount": amounts})


@dg.asset(metadata={"iceberg/write_mode": "overwrite"}, io_manager_key="iceberg_io_manager")
def revenue(orders: pa.Table) -> pa.Table:
    """The revenue per day, from all orders."""
    return orders.group_by("day").aggregate([("amount", "sum")]).sort_by("day")


@dg.asset_check(asset=revenue)
def revenue_is_positive(revenue: pa.Table) -> dg.AssetCheckResult:
    """Every day has revenue."""
    days = [row["day"].isoformat() for row in revenue.to_pylist() if row["amount_sum"] <= 0]
    return dg.AssetCheckResult(passed=not days, metadata={"days": days})


iceberg = create_iceberg_resources(CompiledArtifacts.from_environment(), assets=[orders, revenue])
defs = dg.Definitions.merge(iceberg.definitions(), dg.Definitions(asset_checks=[revenue_is_positive]))

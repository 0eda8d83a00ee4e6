"""Integers go into a column of floats if it holds them exactly; floats never go into a column of integers."""

from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetsDefinition, asset
from support.io_results import failure_of
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

TOO_LARGE = 2**53 + 1


def amounts(warehouse: Warehouse, *columns: pa.Array, **settings: Any) -> AssetsDefinition:
    given = iter(columns)

    @asset(metadata=iceberg_settings(**settings))
    def amounts() -> Any:
        return warehouse.frame(pa.table({"id": [1, 2], "amount": next(given)}))

    return amounts


@pytest.mark.parametrize("settings", [{"write_mode": "overwrite"}, {"upsert_keys": "id"}], ids=["overwrite", "upsert"])
def test_integers_go_into_a_column_of_doubles(warehouse: Warehouse, settings: Any) -> None:
    source = amounts(warehouse, pa.array([0.5, 1.5]), pa.array([7, None], pa.int64()), **settings)

    for _ in range(2):
        warehouse.run(source)

    assert warehouse.rows("amounts") == [(1, 7.0), (2, None)]
    assert str(warehouse.table("amounts").schema().find_type("amount")) == "double"


def test_an_integer_that_a_double_cannot_hold_is_refused(warehouse: Warehouse) -> None:
    source = amounts(warehouse, pa.array([0.5, 1.5]), pa.array([7, TOO_LARGE], pa.int64()), write_mode="overwrite")
    warehouse.run(source)

    result = warehouse.run(source, raise_on_error=False)

    assert "cannot hold exactly" in failure_of(result, "amounts")
    assert str(TOO_LARGE) not in failure_of(result, "amounts")
    assert warehouse.rows("amounts") == [(1, 0.5), (2, 1.5)]


def test_the_floats_that_a_missing_value_makes_of_integers_are_refused_with_the_remedy(warehouse: Warehouse) -> None:
    source = amounts(warehouse, pa.array([1, 2]), pa.array([1.0, None]))
    warehouse.run(source)

    result = warehouse.run(source, raise_on_error=False)

    assert "it is long and the rows have double" in failure_of(result, "amounts")
    assert "use its type 'Int64'" in failure_of(result, "amounts")

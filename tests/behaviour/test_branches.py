"""Write, audit, publish: outputs and inputs of a branch."""

from typing import Any

import pytest
from dagster import AssetIn, AssetsDefinition, asset
from support.io_results import shown
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-023", "S2-FR-038", "S2-FR-039")


def numbers(warehouse: Warehouse, number: int, **settings: Any) -> AssetsDefinition:
    @asset(metadata=iceberg_settings(**settings))
    def numbers() -> Any:
        return warehouse.frame({"number": [number]})

    return numbers


def on_branch(warehouse: Warehouse, branch: str) -> list[int]:
    return sorted(warehouse.manager.scan("public.numbers", ref=branch)["number"].to_pylist())


@pytest.mark.lakes
def test_a_branch_begins_at_main_and_leaves_main_alone(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))

    result = warehouse.run(numbers(warehouse, 2, branch="audit"))

    assert warehouse.rows("numbers") == [(1,)]
    assert on_branch(warehouse, "audit") == [1, 2]
    assert shown(result, "numbers")["dagster/row_count"] == 2


@pytest.mark.lakes
def test_publishing_makes_main_what_the_branch_is(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))
    for number in (2, 3):
        warehouse.run(numbers(warehouse, number, branch="audit"))

    warehouse.manager.fast_forward("public.numbers", "main", "audit")

    assert warehouse.rows("numbers") == [(1,), (2,), (3,)]


def test_an_overwrite_stays_on_its_branch(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))

    warehouse.run(numbers(warehouse, 2, branch="audit", write_mode="overwrite"))

    assert warehouse.rows("numbers") == [(1,)]
    assert on_branch(warehouse, "audit") == [2]


@pytest.mark.lakes
def test_a_table_may_begin_on_a_branch(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1, branch="audit"))

    assert on_branch(warehouse, "audit") == [1]
    assert warehouse.rows("numbers") == []

    warehouse.manager.fast_forward("public.numbers", "main", "audit")

    assert warehouse.rows("numbers") == [(1,)]


def test_an_input_reads_the_branch_it_names(warehouse: Warehouse) -> None:
    source, loaded = numbers(warehouse, 2, branch="audit"), []
    warehouse.run(numbers(warehouse, 1))
    warehouse.run(source)

    @asset(ins={"numbers": AssetIn(metadata=iceberg_settings(branch="audit"))})
    def audit(numbers: warehouse.frame_type) -> None:
        loaded.append(warehouse.to_arrow(numbers).num_rows)

    warehouse.run([source, audit], selection=[audit])

    assert loaded == [2]


def test_a_tag_cannot_be_written_to(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))
    warehouse.manager.create_tag("public.numbers", "monday")

    result = warehouse.run(numbers(warehouse, 2, branch="monday"), raise_on_error=False)

    assert "'monday' is a tag of 'public.numbers'" in str(result.failure_data_for_node("numbers"))

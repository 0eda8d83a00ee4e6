"""Write, audit, publish: outputs and inputs of a branch."""

from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetCheckResult, AssetIn, AssetsDefinition, AssetSelection, Output, asset, asset_check
from support.io_results import shown
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.errors import SnapshotNotFoundError, ValidationError

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


def checked(warehouse: Warehouse, source: AssetsDefinition) -> tuple[Any, list[Any]]:
    """A check of an asset, and what it was given."""
    seen: list[Any] = []

    @asset_check(asset=source)
    def look(numbers: warehouse.frame_type) -> AssetCheckResult:
        seen.append(sorted(warehouse.to_arrow(numbers)["number"].to_pylist()))
        return AssetCheckResult(passed=True)

    return look, seen


def test_a_check_reads_the_branch_that_its_asset_was_written_to(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))
    source = numbers(warehouse, 2, branch="audit", write_mode="overwrite")
    look, seen = checked(warehouse, source)

    warehouse.run([source, look])
    warehouse.run([source, look], selection=AssetSelection.checks(look))

    assert seen == [[2], [2]]
    assert warehouse.rows("numbers") == [(1,)]


def test_a_check_reads_the_branch_that_the_output_named(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))

    @asset(name="numbers")
    def source() -> Output[Any]:
        metadata = iceberg_settings(branch="audit", write_mode="overwrite")
        return Output(warehouse.frame({"number": [2]}), metadata=metadata)

    look, seen = checked(warehouse, source)

    warehouse.run([source, look])

    assert seen == [[2]]
    assert warehouse.rows("numbers") == [(1,)]


def test_an_input_reads_the_branch_of_its_asset_unless_it_names_another(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))
    source, seen = numbers(warehouse, 2, branch="audit", write_mode="overwrite"), dict[str, Any]()

    @asset
    def as_written(numbers: warehouse.frame_type) -> None:
        seen["as written"] = warehouse.to_arrow(numbers)["number"].to_pylist()

    @asset(ins={"numbers": AssetIn(metadata=iceberg_settings(branch="main", columns="number"))})
    def published(numbers: warehouse.frame_type) -> None:
        seen["published"] = warehouse.to_arrow(numbers)["number"].to_pylist()

    warehouse.run([source, as_written, published])

    assert seen == {"as written": [2], "published": [1]}


@pytest.mark.parametrize("branch", ["audit", "main"])
def test_a_check_reads_the_version_of_the_materialization_that_it_follows(warehouse: Warehouse, branch: str) -> None:
    source, seen = numbers(warehouse, 1, branch=branch, write_mode="overwrite"), list[Any]()

    @asset_check(asset=source, additional_deps=["meanwhile"])
    def look(numbers: warehouse.frame_type) -> AssetCheckResult:
        seen.append(warehouse.to_arrow(numbers)["number"].to_pylist())
        return AssetCheckResult(passed=True)

    @asset(deps=[source])
    def meanwhile() -> None:
        warehouse.manager.overwrite("public.numbers", pa.table({"number": [99]}), branch=branch)

    warehouse.run([source, meanwhile, look])

    assert seen == [[1]]
    assert on_branch(warehouse, branch) == [99]


def test_a_scan_takes_a_branch_or_a_tag(warehouse: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))
    warehouse.run(numbers(warehouse, 2, branch="audit"))
    warehouse.manager.create_tag("public.numbers", "monday")

    assert warehouse.manager.scan("public.numbers", branch="audit").num_rows == 2
    assert warehouse.manager.scan("public.numbers", tag="monday").num_rows == 1
    assert warehouse.manager.scan_batches("public.numbers", branch="main").read_all().num_rows == 1
    with pytest.raises(ValidationError, match=r"'monday' of 'public\.numbers' is a tag\. Read it with tag='monday'"):
        warehouse.manager.scan("public.numbers", branch="monday")
    with pytest.raises(ValidationError, match=r"is a branch\. Read it with branch='audit'"):
        warehouse.manager.scan("public.numbers", tag="audit")
    with pytest.raises(ValidationError, match="takes one of branch, tag"):
        warehouse.manager.scan("public.numbers", branch="audit", tag="monday")
    with pytest.raises(SnapshotNotFoundError, match=r"no branch or tag 'adit'.* It has: audit, main, monday"):
        warehouse.manager.scan("public.numbers", branch="adit")

"""Environments: a preview of changed code reads production's tables and writes to branches of its own."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest
from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Failure,
    Out,
    asset,
    asset_check,
    graph_asset,
    op,
)
from pyiceberg.table import Table
from support.io_results import shown
from support.warehouse import Warehouse

from floe_dagster_iceberg import AuditedTable, IcebergEnvironments, audited_asset
from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.errors import CommitConflictError
from floe_dagster_iceberg.models import snapshot_properties

BRANCH = "env-pr-12"


@pytest.fixture
def preview(warehouse: Warehouse) -> Warehouse:
    return warehouse.in_environment("pr-12")


def numbers(warehouse: Warehouse, *values: int, **settings: Any) -> AssetsDefinition:
    @asset(metadata=iceberg_settings(**settings))
    def numbers() -> Any:
        return warehouse.frame({"number": list(values)})

    return numbers


def doubled(warehouse: Warehouse, **of_input: Any) -> AssetsDefinition:
    """Writes the doubles of what it reads."""

    @asset(
        ins={"numbers": AssetIn(metadata=iceberg_settings(**of_input))}, metadata={"iceberg/write_mode": "overwrite"}
    )
    def doubled(numbers: warehouse.frame_type) -> Any:
        read = warehouse.to_arrow(numbers)["number"].to_pylist()
        return warehouse.frame({"number": [2 * number for number in read]})

    return doubled


def on_branch(warehouse: Warehouse, table: str, branch: str = BRANCH) -> list[int]:
    return sorted(warehouse.manager.scan(f"public.{table}", ref=branch)["number"].to_pylist())


def shared_state(table: Table) -> Mapping[str, Any]:
    """All that production sees of a table."""
    metadata = table.metadata
    return {
        "main": metadata.refs["main"],
        "others": {name: ref for name, ref in metadata.refs.items() if name != BRANCH},
        "schema": metadata.current_schema_id,
        "schemas": len(metadata.schemas),
        "spec": metadata.default_spec_id,
        "properties": dict(metadata.properties),
        "log": list(metadata.snapshot_log),
    }


@pytest.mark.lakes
def test_outputs_go_to_the_branch_and_inputs_come_from_it(warehouse: Warehouse, preview: Warehouse) -> None:
    warehouse.run([numbers(warehouse, 1), doubled(warehouse)])

    preview.run([numbers(preview, 2), doubled(preview)])

    assert (warehouse.rows("numbers"), warehouse.rows("doubled")) == ([(1,)], [(2,)])
    assert on_branch(warehouse, "numbers") == [1, 2]
    assert on_branch(warehouse, "doubled") == [2, 4]


@pytest.mark.lakes
def test_an_input_reads_main_where_the_table_has_no_branch(warehouse: Warehouse, preview: Warehouse) -> None:
    production = numbers(warehouse, 1)
    warehouse.run(production)

    preview.run([production, doubled(preview)], selection=["doubled"])

    assert on_branch(warehouse, "doubled") == [2]
    assert BRANCH not in warehouse.table("numbers").metadata.refs


@pytest.mark.lakes
def test_a_table_that_begins_in_an_environment_is_empty_in_production(warehouse: Warehouse, preview: Warehouse) -> None:
    preview.run(numbers(preview, 1))

    assert warehouse.rows("numbers") == []
    assert on_branch(warehouse, "numbers") == [1]


def _modes(warehouse: Warehouse) -> Mapping[str, AssetsDefinition]:
    def rows(name: str, **settings: Any) -> AssetsDefinition:
        @asset(name=name, metadata=iceberg_settings(**settings))
        def written() -> Any:
            return warehouse.frame({"number": [7, 8]})

        return written

    @asset(partitions_def=DailyPartitionsDefinition("2026-01-01"), metadata={"partition_expr": "day"})
    def daily(context: AssetExecutionContext) -> Any:
        day = date.fromisoformat(context.partition_key)
        return warehouse.frame({"day": [day], "number": [9]})

    @op(out=Out(io_manager_key="io_manager"))
    def make() -> Any:
        return warehouse.frame({"number": [1]})

    @graph_asset
    def of_ops() -> Any:
        return make()

    return {
        "append": rows("append", write_mode="append"),
        "overwrite": rows("overwrite", write_mode="overwrite"),
        "upsert": rows("upsert", write_mode="upsert", upsert_keys=["number"]),
        "on_a_branch": rows("on_a_branch", branch="staging"),
        "daily": daily,
        "of_ops": of_ops,
    }


@pytest.mark.lakes
def test_nothing_in_an_environment_moves_main(warehouse: Warehouse, preview: Warehouse) -> None:
    def run_all(where: Warehouse) -> None:
        for name, definition in _modes(where).items():
            where.run(definition, "2026-01-01" if name == "daily" else None)

    run_all(warehouse)
    tables = {name: warehouse.table(name) for name in warehouse.manager.list_tables("public")}
    before = {name: shared_state(table) for name, table in tables.items()}

    for _ in range(2):
        run_all(preview)

    assert {name: shared_state(warehouse.table(name)) for name in tables} == before
    assert set(warehouse.manager.list_tables("public")) == tables.keys()
    assert all(BRANCH in warehouse.table(name).metadata.refs for name in tables)


def test_a_change_of_the_schema_is_refused(warehouse: Warehouse, preview: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))
    before = warehouse.table("numbers").metadata_location

    @asset(name="numbers")
    def changed() -> Any:
        return preview.frame({"number": [2], "name": ["two"]})

    with pytest.raises(Failure, match=r"'pr-12' would change the schema of 'public.numbers' \(add name"):
        preview.run(changed)
    with pytest.raises(Failure, match=r"'pr-12' would change properties of 'public.numbers' \(owner\)"):
        preview.run(numbers(preview, 2, properties={"owner": "sales"}))

    assert warehouse.table("numbers").metadata_location == before


def test_a_table_of_the_environment_alone_may_change(warehouse: Warehouse, preview: Warehouse) -> None:
    preview.run(numbers(preview, 1))

    @asset(name="numbers")
    def with_names() -> Any:
        return preview.frame({"number": [2], "name": ["two"]})

    preview.run(with_names)

    assert on_branch(warehouse, "numbers") == [1, 2]
    assert warehouse.rows("numbers") == []


def test_a_preview_does_not_count_as_a_run_of_production(warehouse: Warehouse, preview: Warehouse) -> None:
    with DagsterInstance.ephemeral() as instance:
        warehouse.run(numbers(warehouse, 1), instance=instance)
        result = preview.run(numbers(preview, 2), instance=instance)
        event = instance.get_latest_materialization_event(numbers(warehouse).key)

    metadata = warehouse.table("numbers").metadata
    main, branch = (metadata.snapshot_by_name(name) for name in ("main", BRANCH))
    assert main is not None
    assert branch is not None
    assert main.summary is not None
    assert snapshot_properties.ENVIRONMENT not in main.summary.additional_properties
    assert branch.summary is not None
    assert branch.summary.additional_properties[snapshot_properties.ENVIRONMENT] == "pr-12"
    assert shown(result, "numbers")["iceberg/environment"] == "pr-12"
    assert event is not None
    assert event.asset_materialization is not None
    tags = event.asset_materialization.tags or {}
    assert tags["dagster/data_version"] == f"{branch.snapshot_id}@pr-12"


def test_a_branch_that_an_input_names_is_read_in_every_environment(warehouse: Warehouse, preview: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))

    preview.run([numbers(preview, 2), doubled(preview, branch="main")])

    assert on_branch(warehouse, "doubled") == [2]


def test_the_branch_of_an_asset_is_replaced_by_that_of_the_environment(
    warehouse: Warehouse, preview: Warehouse
) -> None:
    production = [numbers(warehouse, 1, branch="staging"), doubled(warehouse)]
    warehouse.run(production)

    preview.run([numbers(preview, 2, branch="staging"), doubled(preview)])

    assert on_branch(warehouse, "numbers", "staging") == [1]
    assert on_branch(warehouse, "numbers") == [2]
    assert on_branch(warehouse, "doubled") == [4]


@pytest.mark.parametrize("settings", [{"write_mode": "overwrite"}, {"write_mode": "upsert", "upsert_keys": ["number"]}])
def test_rows_that_a_new_asset_wrote_on_both_sides_are_a_conflict(
    warehouse: Warehouse, preview: Warehouse, settings: Mapping[str, Any]
) -> None:
    # Neither removes a file of the other, so the files do not tell.
    preview.run(numbers(preview, 1, **settings))
    warehouse.run(numbers(warehouse, 1, **settings))

    with pytest.raises(CommitConflictError, match=r"public\.numbers"):
        IcebergEnvironments(warehouse.manager).publish("pr-12")

    assert warehouse.rows("numbers") == [(1,)]


def test_rows_that_both_sides_appended_are_published(warehouse: Warehouse, preview: Warehouse) -> None:
    preview.run(numbers(preview, 1))
    warehouse.run(numbers(warehouse, 2))

    IcebergEnvironments(warehouse.manager).publish("pr-12")

    assert warehouse.rows("numbers") == [(1,), (2,)]


def test_a_check_reads_what_the_preview_wrote(warehouse: Warehouse, preview: Warehouse) -> None:
    warehouse.run(numbers(warehouse, 1))
    found = []
    written = numbers(preview, 2)

    @asset_check(asset=written)
    def look(numbers: preview.frame_type) -> AssetCheckResult:
        found.extend(preview.to_arrow(numbers)["number"].to_pylist())
        return AssetCheckResult(passed=True)

    preview.run([written, look])

    assert sorted(found) == [1, 2]


@pytest.mark.lakes
def test_an_incremental_input_goes_on_where_production_was_and_leaves_its_cursor_alone(
    warehouse: Warehouse, preview: Warehouse
) -> None:
    def copy(where: Warehouse) -> AssetsDefinition:
        @asset(ins={"numbers": AssetIn(metadata=iceberg_settings(changes="appends"))})
        def copied(numbers: where.frame_type) -> Any:
            return where.frame({"number": where.to_arrow(numbers)["number"].to_pylist()})

        return copied

    warehouse.run([numbers(warehouse, 1), copy(warehouse)])
    preview.run([numbers(preview, 2), copy(preview)])
    warehouse.run([numbers(warehouse, 3), copy(warehouse)])

    assert on_branch(warehouse, "copied") == [1, 2]
    assert warehouse.rows("copied") == [(1,), (3,)]


def test_an_audited_asset_publishes_to_the_branch_of_its_environment(warehouse: Warehouse, preview: Warehouse) -> None:
    counts: list[int | None] = []

    def audited(rows: list[int]) -> AssetsDefinition:
        def is_positive(audited: AuditedTable) -> bool:
            before = audited.previous()
            counts.append(None if before is None else before.row_count()[0])
            return min(audited.scan()["number"].to_pylist()) > 0

        @audited_asset(name="numbers", checks=[is_positive])
        def definition() -> Any:
            return warehouse.frame({"number": rows})

        return definition

    preview.run(audited([1]))
    warehouse.run(audited([2]))
    preview.run(audited([3]))
    assert not preview.run(audited([-4]), raise_on_error=False).success

    table = warehouse.manager.load_table("public.numbers")
    assert on_branch(warehouse, "numbers") == [1, 3]
    assert on_branch(warehouse, "numbers", "main") == [2]
    assert counts == [None, None, 1, 2]
    assert {name.partition("-")[0] for name in table.metadata.refs} == {"main", "env", "floe"}

    IcebergEnvironments(warehouse.manager).drop("pr-12")

    assert warehouse.table("numbers").metadata.refs.keys() == {"main"}

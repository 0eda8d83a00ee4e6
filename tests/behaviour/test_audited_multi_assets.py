"""Audited assets of one step: their tables show the rows of one run, all of them, or none."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from support.warehouse import ArrowWarehouse, Warehouse

from floe_dagster_iceberg import AuditedTable, ValidationError, audited_assets, not_null, row_count_between

DAYS = dg.DailyPartitionsDefinition("2024-01-01")
KEYS = ("orders", "lines")
Rows = Mapping[str, list[Any]]
CHECKS: Mapping[str, Any] = {"orders": [row_count_between(1)], "lines": [not_null("id")]}


def specs(mode: str = "overwrite", **settings: Any) -> list[dg.AssetSpec]:
    return [dg.AssetSpec(key, metadata={"iceberg/write_mode": mode}, **settings) for key in KEYS]


def both(warehouse: Warehouse, *runs: tuple[Rows, Rows], checks: Any = CHECKS, mode: str = "overwrite") -> Any:
    """Two audited assets that return the frames of one run after the other."""
    left = iter(runs)

    @audited_assets(specs(mode), checks=checks)
    def sales() -> Any:
        return tuple(warehouse.frame(rows) for rows in next(left))

    return sales


def rows(*ids: int | None) -> Rows:
    return {"id": list(ids)}


def ids(warehouse: Warehouse) -> list[list[int]]:
    return [[row[0] for row in warehouse.rows(key)] for key in KEYS]


def refs(warehouse: Warehouse) -> list[set[str]]:
    return [set(warehouse.table(key).metadata.refs) for key in KEYS]


def events(run: dg.ExecuteInProcessResult) -> dict[str, Mapping[str, dg.MetadataValue]]:
    return {event.asset_key.to_user_string(): event.metadata for event in run.asset_materializations_for_node("sales")}


def appending(warehouse: Warehouse, table: str) -> Callable[[AuditedTable], bool]:
    """A check that passes, while another client appends a row to a table."""

    def passes(audited: AuditedTable) -> bool:
        del audited
        warehouse.manager.append(f"public.{table}", pa.table({"id": [8]}))
        return True

    return passes


@pytest.mark.lakes
def test_all_tables_show_their_rows_at_once(warehouse: Warehouse) -> None:
    seen: list[Any] = []

    def is_hidden(table: AuditedTable) -> bool:
        seen.append((ids(warehouse), table.row_count()[0]))
        return True

    asset = both(warehouse, (rows(1), rows(2)), (rows(3), rows(4, 5)), checks={**CHECKS, "lines": [is_hidden]})
    warehouse.run(asset)
    run = warehouse.run(asset)

    assert seen[-1] == ([[1], [2]], 2)
    assert (ids(warehouse), refs(warehouse)) == ([[3], [4, 5]], [{"main"}, {"main"}])
    shown = events(run)
    assert [shown[key]["iceberg/published_at_once"].value for key in KEYS] == [True, True]
    assert shown["orders"]["iceberg/published_with"].value == "public.lines"
    assert [shown[key]["iceberg/snapshot_id"].value for key in KEYS] == [
        str(warehouse.table(key).metadata.current_snapshot_id) for key in KEYS
    ]


@pytest.mark.lakes
def test_a_failed_check_of_one_table_publishes_none(warehouse: Warehouse) -> None:
    asset = both(warehouse, (rows(1), rows(1)), (rows(2), rows(2, None)), (rows(3), rows(3)), mode="append")
    warehouse.run(asset)

    run = warehouse.run(asset, raise_on_error=False)

    assert (run.success, events(run), ids(warehouse)) == (False, {}, [[1], [1]])
    message = run.failure_data_for_node("sales").user_failure_data.description
    assert "'public.lines' failed 1 check (lines.not_null_id)" in message
    for kept in refs(warehouse):
        (branch,) = kept - {"main"}
        assert branch.startswith("floe-rejected-")
        assert f"branch '{branch}'" in message
    assert warehouse.run(asset).success
    assert ids(warehouse) == [[1, 3], [1, 3]]


def test_first_rows_that_fail_leave_no_table(warehouse: Warehouse) -> None:
    run = warehouse.run(both(warehouse, (rows(1), rows(1, None))), raise_on_error=False)

    assert [run.success, *map(warehouse.exists, KEYS)] == [False, False, False]


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_write_that_fails_leaves_nothing_of_those_before_it(
    warehouse: Warehouse,
    has_rows: bool,  # noqa: FBT001
) -> None:
    if has_rows:
        warehouse.run(both(warehouse, (rows(1), rows(1))))

    @audited_assets(specs(), checks=CHECKS)
    def sales() -> Any:
        return warehouse.frame(rows(2)), warehouse.broken_frame(rows(2))

    assert not warehouse.run(sales, raise_on_error=False).success

    if has_rows:
        assert (ids(warehouse), refs(warehouse)) == ([[1], [1]], [{"main"}, {"main"}])
    else:
        assert not any(map(warehouse.exists, KEYS))


@pytest.mark.lakes
def test_rows_of_one_table_that_others_changed_meanwhile_keep_back_all(warehouse: Warehouse) -> None:
    warehouse.run(both(warehouse, (rows(1), rows(1))))
    asset = both(warehouse, (rows(2), rows(2)), checks={"lines": [appending(warehouse, "orders")]})

    run = warehouse.run(asset, raise_on_error=False)

    failure = run.failure_data_for_node("sales").user_failure_data
    assert failure.metadata["iceberg/error"].value == "CommitConflictError"
    assert (ids(warehouse), refs(warehouse)) == ([[1, 8], [1]], [{"main"}, {"main"}])


def test_an_append_of_others_is_kept_below_the_published_rows(warehouse: Warehouse) -> None:
    warehouse.run(both(warehouse, (rows(1), rows(1))))
    asset = both(warehouse, (rows(2), rows(2)), checks={"lines": [appending(warehouse, "orders")]}, mode="append")

    warehouse.run(asset)

    assert ids(warehouse) == [[1, 2, 8], [1, 2]]


def test_a_range_of_partitions_of_several_tables_is_audited_at_once(warehouse: Warehouse) -> None:
    partitioned: Any = {"partitions_def": DAYS, "metadata": {"partition_expr": "day"}}

    @audited_assets(
        [dg.AssetSpec(key, **partitioned) for key in KEYS],
        checks={"orders": [row_count_between(2, 2)]},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def sales(context: dg.AssetExecutionContext) -> Any:
        days = [date.fromisoformat(key) for key in context.partition_keys]
        for key in KEYS:
            yield dg.MaterializeResult(asset_key=key, value=warehouse.frame({"day": days}))

    run = warehouse.run(sales, key_range=("2024-01-01", "2024-01-02"))

    assert [len(warehouse.rows(key)) for key in KEYS] == [2, 2]
    materialized = run.asset_materializations_for_node("sales")
    assert sorted((event.asset_key.path[-1], event.partition) for event in materialized) == [
        (key, day) for key in sorted(KEYS) for day in ("2024-01-01", "2024-01-02")
    ]


def test_an_environment_publishes_its_tables_onto_its_own_branches(warehouse: Warehouse) -> None:
    asset = both(warehouse, (rows(1), rows(1)), (rows(2), rows(2)), mode="append")
    warehouse.run(asset)

    warehouse.in_environment("pr-1").run(asset)

    assert (ids(warehouse), refs(warehouse)) == ([[1], [1]], [{"main", "env-pr-1"}, {"main", "env-pr-1"}])
    assert warehouse.manager.scan("public.lines", branch="env-pr-1").num_rows == 2


def test_assets_that_cannot_be_audited_together_say_so(arrow_warehouse: ArrowWarehouse) -> None:
    with pytest.raises(ValidationError, match="got no checks"):
        audited_assets(specs(), checks={"orders": []})
    with pytest.raises(ValidationError, match="checks for 'prices', which is none of its assets: orders, lines"):
        audited_assets(specs(), checks={"prices": [not_null("id")]})
    with pytest.raises(ValidationError, match="Leave can_subset out"):
        audited_assets(specs(), checks=CHECKS, can_subset=True)

    def message(returned: Any, given: list[dg.AssetSpec]) -> str:
        @audited_assets(given, checks=CHECKS)
        def sales() -> Any:
            return returned

        run = arrow_warehouse.run(sales, raise_on_error=False)
        assert not run.success
        return str(run.failure_data_for_node("sales").user_failure_data.description)

    some = pa.table({"id": [1]})
    named = dg.MaterializeResult(asset_key="lines", value=some)
    shared: Any = {"table": "shared", "iceberg/write_mode": "append"}
    assert "returned 1 value, but not one for each of: orders, lines" in message((some,), specs())
    assert "returned 2 values" in message((named, named), specs())
    assert "returned 2 values" in message((named, some), specs())
    skippable = [dg.AssetSpec(key, skippable=True) for key in KEYS]
    assert "returned 1 value" in message((named,), skippable)
    assert "Audited asset 'lines' returned None" in message((some, None), specs())
    one_table = [spec.merge_attributes(metadata=shared) for spec in specs()]
    assert "stored in 'public.shared'" in message((some, some), one_table)
    assert not any(map(arrow_warehouse.exists, (*KEYS, "shared")))

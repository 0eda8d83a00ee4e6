"""Audited assets: rows reach main in one commit after their checks have passed, or not at all."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.warehouse import ArrowWarehouse, Warehouse

from floe_dagster_iceberg import (
    AuditCheck,
    AuditedTable,
    ValidationError,
    accepted_values,
    audited_asset,
    freshness_within,
    iceberg_settings,
    matches_schema,
    not_null,
    row_count_between,
    row_count_change_within,
    unique,
)

WARN = dg.AssetCheckSeverity.WARN
DAYS = dg.DailyPartitionsDefinition("2024-01-01")


def amounts_are_positive(rows: pa.Table) -> bool:
    """Every amount is positive."""
    return bool(pc.all(pc.greater(rows["amount"], 0)).as_py())


def orders(warehouse: Warehouse, *frames: Any, checks: Any = (amounts_are_positive,), **settings: Any) -> Any:
    """An audited asset that returns one frame after the other."""
    left = iter(frames)

    @audited_asset(checks=checks, metadata=iceberg_settings(**{"write_mode": "overwrite", **settings}))
    def orders() -> Any:
        return warehouse.frame(next(left))

    return orders


def main_history(warehouse: Warehouse) -> list[int]:
    return [each.snapshot_id for each in warehouse.table("orders").metadata.snapshot_log]


def refs(warehouse: Warehouse) -> set[str]:
    return set(warehouse.table("orders").metadata.refs)


def results(run: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in run.get_asset_check_evaluations()}


GOOD, BAD = {"id": [1, 2], "amount": [5, 7]}, {"id": [3], "amount": [-1]}


@pytest.mark.lakes
def test_rows_that_pass_are_published_in_one_commit(warehouse: Warehouse) -> None:
    asset = orders(warehouse, GOOD, {"id": [4], "amount": [9]})
    warehouse.run(asset)
    before = main_history(warehouse)

    run = warehouse.run(asset)

    table = warehouse.table("orders")
    (event,) = run.asset_materializations_for_node("orders")
    assert warehouse.rows("orders") == [(4, 9)]
    assert len(main_history(warehouse)) == len(before) + 1
    assert (refs(warehouse), results(run)) == ({"main"}, {"amounts_are_positive": True})
    assert event.metadata["iceberg/snapshot_id"].value == str(table.metadata.current_snapshot_id)
    assert event.metadata["iceberg/audit_checks"].value == 1
    audited = int(event.metadata["iceberg/audit_snapshot_id"].value)
    assert table.metadata.snapshot_by_id(audited) is not None
    assert event.tags["dagster/data_version"] == str(table.metadata.current_snapshot_id)


@pytest.mark.lakes
def test_rows_that_fail_stay_on_a_branch_that_the_error_names(warehouse: Warehouse) -> None:
    asset = orders(warehouse, GOOD, BAD, {"id": [5], "amount": [1]})
    warehouse.run(asset)
    before = main_history(warehouse)

    run = warehouse.run(asset, raise_on_error=False)

    assert (run.success, results(run)) == (False, {"amounts_are_positive": False})
    assert run.asset_materializations_for_node("orders") == []
    assert (main_history(warehouse), warehouse.rows("orders")) == (before, [(1, 5), (2, 7)])
    (branch,) = refs(warehouse) - {"main"}
    message = run.failure_data_for_node("orders").user_failure_data.description
    assert branch.startswith("floe-rejected-")
    assert f"branch '{branch}'" in message
    assert "floe-iceberg inspect public.orders" in message
    assert "-1" not in message.replace(branch, "")
    assert warehouse.manager.scan("public.orders", branch=branch).to_pylist() == [{"id": 3, "amount": -1}]

    assert warehouse.run(asset).success
    assert (refs(warehouse), warehouse.rows("orders")) == ({"main", branch}, [(5, 1)])


def test_a_warning_is_reported_and_published(warehouse: Warehouse) -> None:
    asset = orders(warehouse, BAD, checks=[AuditCheck(amounts_are_positive, severity=WARN)])

    run = warehouse.run(asset)

    (evaluation,) = run.get_asset_check_evaluations()
    assert (evaluation.passed, evaluation.severity) == (False, WARN)
    assert warehouse.rows("orders") == [(3, -1)]


def test_a_check_that_raises_publishes_nothing_and_quotes_nothing(warehouse: Warehouse) -> None:
    def broken(rows: pa.Table) -> bool:
        raise KeyError(f"canary {rows['amount'][0]}")

    asset = orders(warehouse, GOOD, {"id": [9], "amount": [4711]}, checks=[amounts_are_positive])
    warehouse.run(asset)

    failing = orders(warehouse, {"id": [9], "amount": [4711]}, checks=[AuditCheck(broken, severity=WARN)])
    run = warehouse.run(failing, raise_on_error=False)

    (evaluation,) = run.get_asset_check_evaluations()
    assert (run.success, evaluation.passed) == (False, False)
    assert "KeyError in broken" in (evaluation.description or "")
    assert warehouse.rows("orders") == [(1, 5), (2, 7)]
    assert not any("canary" in str(event) for event in run.all_events)


@pytest.mark.lakes
def test_a_first_write_that_fails_leaves_no_table(warehouse: Warehouse) -> None:
    run = warehouse.run(orders(warehouse, BAD), raise_on_error=False)

    assert (run.success, warehouse.exists("orders")) == (False, False)
    assert warehouse.run(orders(warehouse, GOOD)).success
    assert warehouse.rows("orders") == [(1, 5), (2, 7)]


def concurrent_check(change: Callable[[], object]) -> AuditCheck:
    """A check that passes, while another client changes the table."""
    done: list[object] = []

    def passes(table: AuditedTable) -> bool:
        done or done.append(change())
        return table.row_count()[0] >= 0

    return AuditCheck(passes)


@pytest.mark.lakes
def test_an_append_is_published_on_top_of_another_one(warehouse: Warehouse) -> None:
    warehouse.run(orders(warehouse, GOOD))
    change = lambda: warehouse.manager.append("public.orders", pa.table({"id": [8], "amount": [8]}))  # noqa: E731
    asset = orders(warehouse, {"id": [9], "amount": [9]}, checks=[concurrent_check(change)], write_mode="append")

    run = warehouse.run(asset)

    (event,) = run.asset_materializations_for_node("orders")
    assert warehouse.rows("orders", "id") == [(1,), (2,), (8,), (9,)]
    assert event.metadata["iceberg/snapshot_id"].value != event.metadata["iceberg/audit_snapshot_id"].value
    assert refs(warehouse) == {"main"}


@pytest.mark.lakes
def test_rows_that_others_changed_meanwhile_are_a_conflict(warehouse: Warehouse) -> None:
    warehouse.run(orders(warehouse, GOOD))
    change = lambda: warehouse.manager.append("public.orders", pa.table({"id": [8], "amount": [8]}))  # noqa: E731
    asset = orders(warehouse, {"id": [9], "amount": [9]}, checks=[concurrent_check(change)])

    run = warehouse.run(asset, raise_on_error=False)

    failure = run.failure_data_for_node("orders").user_failure_data
    assert failure.metadata["iceberg/error"].value == "CommitConflictError"
    assert failure.metadata["iceberg/retryable"].value is True
    assert (warehouse.rows("orders", "id"), refs(warehouse)) == ([(1,), (2,), (8,)], {"main"})


def daily(warehouse: Warehouse, rows: Callable[[str], dict[str, list[Any]]], checks: Any) -> Any:
    @audited_asset(
        checks=checks,
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        metadata={"partition_expr": "day"},
    )
    def orders(context: dg.AssetExecutionContext) -> Any:
        days = [rows(key) for key in context.partition_keys]
        return warehouse.frame({name: [value for day in days for value in day[name]] for name in days[0]})

    return orders


def one_row(amount: int) -> Callable[[str], dict[str, list[Any]]]:
    return lambda key: {"day": [date.fromisoformat(key)], "amount": [amount]}


@pytest.mark.lakes
def test_only_the_partition_is_checked_and_other_partitions_may_change_meanwhile(warehouse: Warehouse) -> None:
    seen: list[int] = []

    def counts(rows: pa.Table) -> bool:
        seen.append(rows.num_rows)
        return amounts_are_positive(rows)

    asset = daily(warehouse, one_row(5), [counts])
    for key in ("2024-01-01", "2024-01-02"):
        warehouse.run(asset, key)
    change = lambda: warehouse.run(daily(warehouse, one_row(6), [counts]), "2024-01-02")  # noqa: E731

    warehouse.run(daily(warehouse, one_row(7), [concurrent_check(change)]), "2024-01-01")
    refused = warehouse.run(daily(warehouse, one_row(-1), [counts]), "2024-01-02", raise_on_error=False)

    assert (refused.success, set(seen)) == (False, {1})
    assert warehouse.rows("orders") == [(date(2024, 1, 1), 7), (date(2024, 1, 2), 6)]


def test_a_range_of_partitions_is_audited_and_published_at_once(warehouse: Warehouse) -> None:
    checks = [row_count_between(3, 3), not_null("day", "amount"), unique("day")]
    warehouse.run(daily(warehouse, one_row(1), [row_count_between(1)]), "2024-01-01")
    before = len(main_history(warehouse))

    run = warehouse.run(daily(warehouse, one_row(2), checks), key_range=("2024-01-01", "2024-01-03"))

    assert [amount for _, amount in warehouse.rows("orders")] == [2, 2, 2]
    assert len(main_history(warehouse)) == before + 1
    assert sorted(event.partition for event in run.asset_materializations_for_node("orders")) == [
        "2024-01-01",
        "2024-01-02",
        "2024-01-03",
    ]


def test_an_upsert_is_audited(warehouse: Warehouse) -> None:
    settings: Any = {"write_mode": "upsert", "upsert_keys": ["id"]}
    warehouse.run(orders(warehouse, GOOD, **settings))

    assert not warehouse.run(orders(warehouse, {"id": [1], "amount": [-5]}, **settings), raise_on_error=False).success
    assert warehouse.rows("orders") == [(1, 5), (2, 7)]
    warehouse.run(orders(warehouse, {"id": [1, 3], "amount": [6, 8]}, **settings))

    assert warehouse.rows("orders") == [(1, 6), (2, 7), (3, 8)]


@dataclass
class Outcome:
    """What Pandera's and Great Expectations' results have in common."""

    success: bool


def test_a_check_gets_what_it_asks_for_and_may_return_what_it_likes(warehouse: Warehouse) -> None:
    seen: dict[str, Any] = {}

    def as_polars(rows: pl.DataFrame) -> Outcome:
        seen["polars"] = rows.shape
        return Outcome(rows.height == 2)

    def as_frame(rows: warehouse.frame_type) -> dg.AssetCheckResult:  # type: ignore[name-defined]
        seen["frame"] = warehouse.to_arrow(rows).num_rows
        return dg.AssetCheckResult(passed=False, severity=WARN, metadata={"found": 2})

    def as_stream(rows: pa.RecordBatchReader) -> bool:
        seen["stream"] = sum(batch.num_rows for batch in rows)
        return True

    def as_table(table) -> bool:  # noqa: ANN001 - an AuditedTable without an annotation
        seen["previous"] = table.previous().scan(["id"]).num_rows
        return table.branch in refs(warehouse)

    warehouse.run(orders(warehouse, {"id": [1, 2, 3], "amount": [1, 1, 1]}))
    checks = [as_stream, as_table, as_frame, as_polars]

    run = warehouse.run(orders(warehouse, GOOD, checks=checks))

    assert results(run) == {"as_polars": True, "as_frame": False, "as_stream": True, "as_table": True}
    assert seen == {"polars": (2, 2), "frame": 2, "stream": 2, "previous": 3}


def test_a_retry_audits_what_the_first_attempt_wrote(warehouse: Warehouse) -> None:
    attempts: list[int] = []

    def breaks_once(table: AuditedTable) -> bool:
        attempts.append(table.snapshot.snapshot_id)
        if len(attempts) == 1:
            raise dg.RetryRequested(max_retries=1)
        return True

    run = warehouse.run(orders(warehouse, GOOD, GOOD, checks=[breaks_once]))

    assert run.success
    assert len(set(attempts)) == 1
    assert warehouse.rows("orders") == [(1, 5), (2, 7)]


CHECKS: dict[str, tuple[AuditCheck, dict[str, list[Any]], dict[str, int]]] = {
    "not_null": (not_null("id"), {"id": [None, 1, None]}, {"rows_failing": 2}),
    "unique": (unique("id"), {"id": [1, 1, 2, 3, 3, 3]}, {"rows_checked": 6, "rows_failing": 5, "keys_failing": 2}),
    "accepted_values": (accepted_values("id", [1, 2]), {"id": [1, 2, 3, None]}, {"rows_failing": 1}),
    "row_count_between": (row_count_between(2), {"id": [1]}, {"rows_checked": 1}),
    "row_count_change_within": (row_count_change_within(0.5), {"id": [1, 2, 3]}, {"rows_checked": 3, "rows_before": 1}),
    "matches_schema": (matches_schema({"id": "string"}), {"id": [1]}, {"columns_failing": 1}),
    "freshness_within": (
        freshness_within("at", timedelta(hours=1)),
        {"at": [datetime(2024, 1, 1, tzinfo=UTC)]},
        {},
    ),
}


@pytest.mark.parametrize(("check", "rows", "counts"), CHECKS.values(), ids=CHECKS)
def test_a_ready_made_check_counts_what_fails(
    warehouse: Warehouse, check: AuditCheck, rows: dict[str, list[Any]], counts: dict[str, int]
) -> None:
    first = {name: [values[0] or 1] for name, values in rows.items()}
    warehouse.run(orders(warehouse, first, checks=[row_count_between(1)]))

    run = warehouse.run(orders(warehouse, rows, checks=[check]), raise_on_error=False)

    (evaluation,) = run.get_asset_check_evaluations()
    found = {key: value.value for key, value in evaluation.metadata.items()}
    assert not evaluation.passed
    assert {key: found[f"iceberg/{key}"] for key in counts} == counts


def test_an_asset_that_cannot_be_audited_says_so(arrow_warehouse: ArrowWarehouse) -> None:
    with pytest.raises(ValidationError, match="got no checks"):
        audited_asset(checks=[])
    with pytest.raises(ValidationError, match="called 'amounts_are_positive'"):
        audited_asset(checks=[amounts_are_positive, amounts_are_positive])
    with pytest.raises(ValidationError, match="generator"):

        @audited_asset(checks=[amounts_are_positive])
        def stream() -> Any:
            yield pa.table({})

    run = arrow_warehouse.run(orders(arrow_warehouse, GOOD, checks=[lambda_returning_text]), raise_on_error=False)
    (evaluation,) = run.get_asset_check_evaluations()
    assert "returned a str" in (evaluation.description or "")
    assert not arrow_warehouse.exists("orders")


def lambda_returning_text(table: AuditedTable) -> str:
    return str(table.identifier)

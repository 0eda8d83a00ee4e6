"""Policies of maintenance, and what it reports."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from floe_dagster_iceberg.models import (
    CompactionPolicy,
    CompactionStrategy,
    CompactionStrategyType,
    ExpiryPolicy,
    Guardrail,
    HealthTier,
    MaintenanceBudget,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    ManifestPolicy,
    OrphanPolicy,
    PlanReason,
    RetentionPolicy,
    TableHealth,
    TableIdentifier,
    Threshold,
)

TABLE = TableIdentifier(namespace="bronze", name="events")
NOW = datetime(2024, 1, 8, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def plan(**arguments: Any) -> MaintenancePlan:
    return MaintenancePlan(
        **{
            "table": TABLE,
            "operation": MaintenanceOperation.COMPACTION,
            "engine": MaintenanceEngine.SPARK,
            "reason": PlanReason.RECOMMENDED,
            **arguments,
        }
    )


def health(**arguments: Any) -> TableHealth:
    return TableHealth(table=TABLE, tier=HealthTier.FILES, measured_at=NOW, **arguments)


def test_a_policy_without_arguments_maintains_every_table_carefully() -> None:
    policy = MaintenancePolicy()

    assert (policy.tables, policy.engine, policy.dry_run) == (("*",), MaintenanceEngine.AUTO, False)
    assert (policy.expiry.max_age, policy.expiry.min_snapshots_to_keep) == (7 * DAY, 10)
    assert (policy.orphans.older_than, policy.orphans.grace, policy.orphans.max_share) == (7 * DAY, 7 * DAY, 0.2)
    assert policy.compaction.to_strategy() == CompactionStrategy()
    assert policy.budget == MaintenanceBudget(max_rewrite_bytes=None, max_duration=None)


@pytest.mark.parametrize(
    ("policy", "floor", "beyond", "message", "guardrail"),
    [
        (ExpiryPolicy, {"max_age": DAY}, {"max_age": DAY - HOUR}, "max_age of 23 hours", "expiry_age"),
        (OrphanPolicy, {"older_than": 3 * DAY}, {"older_than": 2 * DAY}, "older_than of 2 days", "orphan_age"),
        (OrphanPolicy, {"max_share": 0.2}, {"max_share": 0.21}, "max_share 0.21", "orphan_share"),
    ],
)
def test_a_floor_holds_unless_its_guardrail_is_overridden(
    policy: type[BaseModel], floor: dict[str, Any], beyond: dict[str, Any], message: str, guardrail: str
) -> None:
    assert policy(**floor)
    with pytest.raises(ValidationError, match=f"{message} is .* name '{guardrail}' in .*overrides"):
        policy(**beyond)
    assert policy.model_validate({**beyond, "overrides": [guardrail]})


def test_a_floor_holds_inside_a_policy_as_well() -> None:
    with pytest.raises(ValidationError, match="running readers would lose their snapshot"):
        MaintenancePolicy.model_validate({"expiry": {"max_age": "PT1H"}})


@pytest.mark.parametrize(
    ("policy", "guardrail"),
    [(ExpiryPolicy, "orphan_age"), (CompactionPolicy, "gc_disabled"), (ManifestPolicy, "expiry_age")],
)
def test_a_guardrail_of_another_operation_cannot_be_overridden(policy: type[BaseModel], guardrail: str) -> None:
    with pytest.raises(
        ValidationError, match=f"{policy.__name__} has no guardrail '{guardrail}' to override: known are"
    ):
        policy.model_validate({"overrides": [guardrail]})


def test_every_guardrail_belongs_to_an_operation() -> None:
    overridable = ExpiryPolicy.guardrails | OrphanPolicy.guardrails | RetentionPolicy.guardrails

    # A legal hold gives way to nothing.
    assert overridable == set(Guardrail) - {Guardrail.LEGAL_HOLD}


@pytest.mark.parametrize(
    ("model", "bad"),
    [
        (ExpiryPolicy, {"max_age": -DAY, "overrides": ["expiry_age"]}),
        (ExpiryPolicy, {"min_snapshots_to_keep": 0}),
        (ExpiryPolicy, {"max_snapshots_per_commit": 0}),
        (OrphanPolicy, {"older_than": -DAY, "overrides": ["orphan_age"]}),
        (OrphanPolicy, {"grace": -HOUR}),
        (RetentionPolicy, {"max_age": 23 * HOUR}),
        (RetentionPolicy, {"max_age": 400_000 * DAY}),
        (RetentionPolicy, {"max_share": 0}),
        (RetentionPolicy, {"timezone": "Mars/Olympus"}),
        (RetentionPolicy, {"max_age": DAY, "overrides": ["legal_hold"]}),
        (OrphanPolicy, {"max_share": 0}),
        (OrphanPolicy, {"max_share": 1.1, "overrides": ["orphan_share"]}),
        (CompactionPolicy, {"min_interval": -HOUR}),
        (CompactionPolicy, {"min_input_files": 1}),
        (CompactionPolicy, {"small_file_ratio": 0}),
        (CompactionPolicy, {"small_file_ratio": 1}),
        (CompactionPolicy, {"target_file_size_bytes": 1024}),
        (CompactionPolicy, {"max_concurrent_file_group_rewrites": 101}),
        (CompactionPolicy, {"partition_filter": True}),
        (ManifestPolicy, {"min_manifests": 1}),
        (ManifestPolicy, {"target_manifest_size_bytes": 1}),
        (Threshold, {"warn": -1, "error": 1}),
        (MaintenanceBudget, {"max_rewrite_bytes": 0}),
        (MaintenanceBudget, {"max_duration": timedelta(0)}),
        (MaintenancePolicy, {"tables": []}),
        (MaintenancePolicy, {"tables": ["a b"]}),
        (MaintenancePolicy, {"tables": "bronze.*"}),
        (MaintenancePolicy, {"engine": "trino"}),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_name(model: type[BaseModel], bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        model.model_validate({**bad})


def test_a_check_warns_before_it_fails() -> None:
    assert Threshold(warn=1, error=1)
    with pytest.raises(ValidationError, match=r"warn 2.0 is above error 1.0"):
        Threshold(warn=2, error=1)


def test_a_compaction_policy_names_columns_exactly_when_it_arranges() -> None:
    policy = CompactionPolicy(strategy=CompactionStrategyType.Z_ORDER, sort_columns=["a"])

    assert policy.to_strategy().sort_columns == ("a",)
    with pytest.raises(ValidationError, match="sort needs sort_columns"):
        CompactionPolicy(strategy=CompactionStrategyType.SORT)
    with pytest.raises(ValidationError, match="bin_pack takes no sort_columns"):
        CompactionPolicy(sort_columns=["a"])


def test_values_of_a_partition_filter_show_neither_in_the_repr_nor_in_errors() -> None:
    bad: dict[str, Any] = {"compaction": {"partition_filter": "name = 'canary'", "min_input_files": 0}}

    assert "canary" not in repr(MaintenancePolicy(compaction=CompactionPolicy(partition_filter="name = 'canary'")))
    with pytest.raises(ValidationError) as raised:
        MaintenancePolicy.model_validate(bad)
    assert "canary" not in str(raised.value)


def test_health_derives_shares_from_counts() -> None:
    measured = health(
        data_files=8, small_files=6, delete_files=2, total_bytes=1000, oldest_snapshot_at=NOW - 3 * DAY, snapshots=4
    )

    assert (measured.small_file_share, measured.delete_ratio) == (0.75, 0.25)
    assert measured.average_file_size_bytes == 100
    assert measured.oldest_snapshot_age == 3 * DAY


def test_health_of_an_empty_table_has_no_division_by_zero() -> None:
    measured = health(small_files=0)

    assert (measured.small_file_share, measured.delete_ratio, measured.average_file_size_bytes) == (0, 0, 0)


def test_what_was_not_measured_is_unknown_and_not_zero() -> None:
    measured = health(data_files=8)

    assert (measured.small_files, measured.small_file_share, measured.manifests) == (None, None, None)
    assert (measured.file_sizes, measured.oldest_snapshot_age) == (None, None)


def test_a_timestamp_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="measured_at"):
        TableHealth(table=TABLE, tier=HealthTier.SUMMARY, measured_at=NOW.replace(tzinfo=None))


def test_a_plan_counts_its_files() -> None:
    assert plan(files=["a", "b", "c"]).input_files == 3


@pytest.mark.parametrize("reason", PlanReason)
def test_only_a_recommended_plan_is_acted_upon(reason: PlanReason) -> None:
    blocked_by = "gc.enabled is false. Set it to true." if reason is PlanReason.BLOCKED else None

    assert plan(reason=reason, blocked_by=blocked_by).is_actionable is (reason is PlanReason.RECOMMENDED)


@pytest.mark.parametrize("bad", [{"reason": "blocked"}, {"blocked_by": "gc.enabled=false"}])
def test_a_plan_says_what_blocks_it_exactly_when_it_is_blocked(bad: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="if, and only if, it is blocked"):
        plan(**bad)


@pytest.mark.parametrize(("status", "error"), [("failed", None), ("done", "no space left")])
def test_a_result_carries_an_error_exactly_when_it_failed(status: str, error: str | None) -> None:
    with pytest.raises(ValidationError, match="if, and only if, it failed"):
        MaintenanceResult(
            table=TABLE,
            operation=MaintenanceOperation.MANIFESTS,
            engine=MaintenanceEngine.SPARK,
            status=MaintenanceStatus(status),
            started_at=NOW,
            error=error,
        )

import operator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from floe_dagster_iceberg.artifacts import CompiledArtifacts, EnforcementLevel, Governance
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.policy import EffectivePolicy, PolicySource, PolicySources
from floe_dagster_iceberg.maintenance.settings import DEFAULT_CRONS, MaintenanceSettings
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    ExpiryPolicy,
    Guardrail,
    MaintenanceBudget,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePolicy,
    TableIdentifier,
)

ORDERS = TableIdentifier(namespace="bronze", name="orders")


def decided(effective: EffectivePolicy, name: str) -> tuple[Any, PolicySource]:
    return operator.attrgetter(name)(effective.policy), effective.sources[name]


def test_without_sources_the_defaults_of_the_package_hold() -> None:
    effective = PolicySources().resolve()

    assert effective.policy == MaintenancePolicy()
    assert set(effective.sources.values()) == {PolicySource.DEFAULT}


@pytest.mark.requirement("S2-FR-024", "S2-C5", "S0-I2", "S0-D5")
@pytest.mark.parametrize("hours", [25, 48, 24 * 90.5])
def test_governance_gives_the_snapshot_age_in_exact_hours(hours: float) -> None:
    artifacts = CompiledArtifacts.from_dict({"governance": {"default_ttl_hours": hours, "snapshot_keep_last": 3}})
    effective = PolicySources(governance=artifacts.governance).resolve()

    assert decided(effective, "expiry.max_age") == (timedelta(hours=hours), PolicySource.GOVERNANCE)
    assert decided(effective, "expiry.min_snapshots_to_keep") == (3, PolicySource.GOVERNANCE)


def test_later_sources_win_value_by_value() -> None:
    sources = PolicySources(
        governance=Governance(snapshot_max_age=timedelta(days=2)),
        artifacts={"expiry": {"min_snapshots_to_keep": 4}, "compaction": {"min_input_files": 7}, "engine": "spark"},
        code=MaintenancePolicy(expiry=ExpiryPolicy(max_age=timedelta(days=9))),
    )
    effective = sources.with_run(engine=MaintenanceEngine.PYICEBERG).resolve(
        ORDERS, {"floe.maintenance.compaction.min-input-files": "11", "floe.maintenance.expiry.max-age": "3d"}
    )

    assert decided(effective, "expiry.max_age") == (timedelta(days=9), PolicySource.CODE)
    assert decided(effective, "expiry.min_snapshots_to_keep") == (4, PolicySource.ARTIFACTS)
    assert decided(effective, "compaction.min_input_files") == (11, PolicySource.TABLE)
    assert decided(effective, "engine") == (MaintenanceEngine.PYICEBERG, PolicySource.RUN)
    assert decided(effective, "orphans.grace") == (timedelta(days=7), PolicySource.DEFAULT)


def test_a_default_that_code_repeats_counts_as_decided_by_code() -> None:
    sources = PolicySources(
        artifacts={"compaction": {"min_input_files": 7}},
        code=MaintenancePolicy(compaction=CompactionPolicy(min_input_files=5)),
    )

    assert decided(sources.resolve(), "compaction.min_input_files") == (5, PolicySource.CODE)


@pytest.mark.parametrize(
    ("text", "age"),
    [("36h", timedelta(hours=36)), ("2w", timedelta(weeks=2)), ("1.5 d", timedelta(hours=36)), ("P4D", timedelta(4))],
)
def test_a_table_property_writes_durations_as_people_do(text: str, age: timedelta) -> None:
    effective = PolicySources().resolve(ORDERS, {"floe.maintenance.expiry.max-age": text})

    assert effective.policy.expiry.max_age == age


def test_a_table_property_lists_values_with_commas() -> None:
    properties = {
        "floe.maintenance.compaction.strategy": "sort",
        "floe.maintenance.compaction.sort-columns": "region, day",
        "floe.maintenance.orphans.enabled": "false",
        "floe.maintenance.thresholds.small-files.warn": "3",
    }
    policy = PolicySources().resolve(ORDERS, properties).policy

    assert policy.compaction.sort_columns == ("region", "day")
    assert not policy.orphans.enabled
    assert policy.thresholds.small_files.warn == 3
    assert policy.thresholds.small_files.error == 1000


def test_other_tools_properties_and_maintenances_own_notes_are_no_settings() -> None:
    properties = {"write.format.default": "parquet", "floe.maintenance.last-compaction": "2026-01-01T00:00:00Z"}

    assert PolicySources().resolve(ORDERS, properties).policy == MaintenancePolicy()


@pytest.mark.parametrize(
    ("key", "guess"),
    [
        ("floe.maintenance.expiry.max-aeg", "Did you mean 'floe.maintenance.expiry.max-age'?"),
        ("floe.maintenance.budget.max-rewrite-bytes", ""),
        ("floe.maintenance.dry-run", ""),
        ("floe.maintenance.expiry.governance-min-age", ""),
    ],
)
def test_a_table_property_that_is_no_setting_is_refused(key: str, guess: str) -> None:
    with pytest.raises(
        ValidationError, match=f"'{key}' of table 'bronze.orders' is not a maintenance setting"
    ) as refused:
        PolicySources().resolve(ORDERS, {key: "1d"})

    assert guess in str(refused.value)


def test_a_bad_value_is_named_with_its_source() -> None:
    with pytest.raises(ValidationError, match=r"'bronze.orders' is not valid. expiry \(table property\): max_age"):
        PolicySources().resolve(ORDERS, {"floe.maintenance.expiry.max-age": "5m"})
    with pytest.raises(ValidationError, match=r"compaction.min_input_files \(artifacts\)"):
        PolicySources(artifacts={"compaction": {"min_input_files": "many"}}).resolve()


def test_a_filter_of_a_bad_policy_shows_no_data_value() -> None:
    artifacts = {"compaction": {"partition_filter": "customer = 'CANARY", "min_input_files": 0}}

    with pytest.raises(ValidationError) as refused:
        PolicySources(artifacts=artifacts).resolve()

    assert "CANARY" not in str(refused.value)


@pytest.mark.requirement("S2-FR-024", "S0-I2")
def test_strict_governance_refuses_to_keep_less() -> None:
    strict = Governance(snapshot_max_age=timedelta(days=5), enforcement=EnforcementLevel.STRICT)
    sources = PolicySources(governance=strict)

    assert sources.resolve().policy.expiry.governance_min_age == timedelta(days=5)
    assert sources.resolve(ORDERS, {"floe.maintenance.expiry.max-age": "6d"}).warning is None
    with pytest.raises(ValidationError, match="orders: Maintenance keeps less than governance allows"):
        sources.resolve(ORDERS, {"floe.maintenance.expiry.max-age": "4d"})


@pytest.mark.parametrize("level", ["off", "warn", "strict"])
def test_governance_alone_deletes_no_row(level: str) -> None:
    governance = {"data_retention_days": 90, "default_ttl_hours": 48, "policy_enforcement_level": level}
    sources = PolicySources(governance=CompiledArtifacts.from_dict({"governance": governance}).governance)

    assert sources.resolve().policy.retention.max_age is None
    followed = sources.resolve(ORDERS, {"floe.maintenance.retention.follow-governance": "true"})
    assert decided(followed, "retention.max_age") == (timedelta(days=90), PolicySource.GOVERNANCE)
    assert decided(followed, "expiry.max_age") == (timedelta(hours=48), PolicySource.GOVERNANCE)


def test_a_table_sets_its_own_retention_and_strict_governance_refuses_a_shorter_one() -> None:
    strict = Governance(data_retention_days=90, enforcement=EnforcementLevel.STRICT)
    own = {"floe.maintenance.retention.max-age": "100d", "floe.maintenance.retention.follow-governance": "true"}

    effective = PolicySources(governance=strict).resolve(ORDERS, own)

    assert decided(effective, "retention.max_age") == (timedelta(days=100), PolicySource.TABLE)
    assert effective.policy.retention.governance_min_age == timedelta(days=90)
    with pytest.raises(ValidationError, match="rows would be deleted after 30 days, governance requires 90 days"):
        PolicySources(governance=strict).resolve(ORDERS, {"floe.maintenance.retention.max-age": "30d"})


def test_governance_below_the_packages_floor_needs_the_floor_to_be_switched_off_by_name() -> None:
    hasty = Governance(snapshot_max_age=timedelta(hours=12))

    with pytest.raises(ValidationError, match=r"expiry \(governance\): .* name 'expiry_age' in expiry.overrides"):
        PolicySources(governance=hasty).resolve()
    allowed = PolicySources(governance=hasty, artifacts={"expiry": {"overrides": ["expiry_age"]}}).resolve()
    assert allowed.policy.expiry.max_age == timedelta(hours=12)


def test_strict_governance_cannot_be_overridden_in_code() -> None:
    strict = Governance(snapshot_max_age=timedelta(days=5), enforcement=EnforcementLevel.STRICT)
    bold = ExpiryPolicy(
        max_age=timedelta(days=2),
        governance_min_age=timedelta(0),
        overrides=[Guardrail.GOVERNANCE_RETENTION],
    )

    with pytest.raises(ValidationError, match="governance requires 5 days"):
        PolicySources(governance=strict, code=MaintenancePolicy(expiry=bold)).resolve()


@pytest.mark.parametrize(
    ("level", "warned"), [(EnforcementLevel.WARN, True), (EnforcementLevel.OFF, False)], ids=["warn", "off"]
)
def test_weaker_governance_warns_or_says_nothing(level: EnforcementLevel, *, warned: bool) -> None:
    governance = Governance(snapshot_keep_last=20, enforcement=level)
    effective = PolicySources(governance=governance, artifacts={"expiry": {"min_snapshots_to_keep": 2}}).resolve()

    assert effective.policy.expiry.min_snapshots_to_keep == 2
    assert (effective.warning is not None) is warned


def test_a_run_decides_only_what_it_sets() -> None:
    sources = PolicySources(code=MaintenancePolicy(dry_run=True, tables=["gold.*"]))
    effective = sources.with_run(tables=("silver.*",), dry_run=None).resolve()

    assert decided(effective, "tables") == (("silver.*",), PolicySource.RUN)
    assert decided(effective, "dry_run") == (True, PolicySource.CODE)


def test_artifacts_give_policy_schedules_and_sensor() -> None:
    settings = MaintenanceSettings.from_artifacts(
        {
            "timezone": "Europe/Berlin",
            "tables": ["bronze.*"],
            "budget": {"max_rewrite_bytes": 1000, "max_duration": "2h"},
            "compaction": {"enabled": True, "cron": "30 2 * * *", "min_input_files": 3},
            "snapshot_expiry": {"timezone": "UTC", "max_age": "3d"},
            "compaction_sensor": {"enabled": True},
        }
    )
    policy = PolicySources(artifacts=settings.policy).resolve().policy

    assert settings.sensor.enabled
    assert settings.schedules[MaintenanceOperation.COMPACTION].model_dump() == {
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "enabled": True,
        "resources": None,
    }
    assert settings.schedules[MaintenanceOperation.SNAPSHOT_EXPIRY].timezone == "UTC"
    assert policy.expiry.max_age == timedelta(days=3)
    assert policy.budget == MaintenanceBudget(max_rewrite_bytes=1000, max_duration=timedelta(hours=2))
    assert (policy.tables, policy.compaction.min_input_files) == (("bronze.*",), 3)


@pytest.mark.requirement("S2-FR-032", "S2-C3")
def test_no_schedule_runs_unless_the_artifacts_say_so() -> None:
    silent = MaintenanceSettings.from_artifacts({}).schedules
    configured = MaintenanceSettings.from_artifacts({"enabled": True, "orphans": {"enabled": False}}).schedules

    assert {which: schedule.cron for which, schedule in silent.items()} == DEFAULT_CRONS
    assert not any(schedule.enabled for schedule in silent.values())
    assert {which for which, schedule in configured.items() if not schedule.enabled} == {
        MaintenanceOperation.ORPHAN_FILES
    }


@pytest.mark.parametrize(
    ("maintenance", "complaint"),
    [
        ({"timezone": "Mars/Base"}, "maintenance.timezone: time zone 'Mars/Base' is unknown"),
        ({"compaction": {"cron": 5}}, "maintenance.compaction.cron: Input should be a valid string"),
        ({"compactoin": {}}, "maintenance.compactoin: Extra inputs are not permitted (did you mean 'compaction'?)"),
        (
            {"compaction_sensr": {}},
            "compaction_sensr: Extra inputs are not permitted (did you mean 'compaction_sensor'",
        ),
        (
            {"expiry": {"max_aeg": "7d"}},
            "maintenance.expiry.max_aeg: Extra inputs are not permitted (did you mean 'max_age'?)",
        ),
        (
            {"compaction_sensor": {"interval_seconds": 3}},
            "interval_seconds: Input should be greater than or equal to 30",
        ),
        ({"compaction": "daily"}, "maintenance.compaction must be a mapping, not str"),
        ({"expiry": {}, "snapshot_expiry": {}}, "has both 'snapshot_expiry' and 'expiry'"),
        (
            {"table_health": {"tier": "files"}},
            "table_health.tier: Extra inputs are not permitted (known: cron, timezone",
        ),
    ],
)
def test_a_bad_maintenance_setting_is_named_by_its_path(maintenance: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError) as refused:
        MaintenanceSettings.from_artifacts(maintenance)

    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("artifacts", "sentence"),
    [
        ({"expiry": {"max_age": "soon"}}, "expiry.max_age (artifacts): Input should be a duration such as '36h'"),
        ({"expiry": {"max_age": "5m"}}, "expiry (artifacts): max_age of 5 minutes is below the floor of 1 day"),
        ({"compaction": {"target_file_size_bytes": "lots"}}, "Input should be a size such as '512MB', '1GiB'"),
        ({"compaction": {"target_file_size_bytes": "1KB"}}, "Input should be greater than or equal to 1048576"),
        ({"engine": "sparc"}, "engine (artifacts): Input should be 'auto', 'pyiceberg' or 'spark'"),
        ({"dry_run": "perhaps"}, "dry_run (artifacts): Input should be a valid boolean"),
        ({"tables": ["a b"]}, "tables.0 (artifacts): String should match pattern"),
        (
            {"thresholds": {"snapshots": {"wran": 5}}},
            "thresholds.snapshots.wran (artifacts): Extra inputs are not permitted (did you mean 'warn'?)",
        ),
        ({"compaction": {"min_input_files": "x", "small_file_ratio": 2}}, "Input should be less than 1; compaction."),
    ],
)
def test_a_value_that_is_refused_is_reported_with_what_it_must_be(artifacts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PolicySources(artifacts=artifacts).resolve()

    assert sentence in str(refused.value)
    assert not str(refused.value).endswith("..")


@pytest.mark.parametrize(("text", "size"), [("512MB", 512_000_000), ("1 GiB", 2**30), ("2000000", 2_000_000)])
def test_sizes_are_written_as_people_do(text: str, size: int) -> None:
    artifacts = {"budget": {"max_rewrite_bytes": text}}

    assert PolicySources(artifacts=artifacts).resolve().policy.budget.max_rewrite_bytes == size


AGE, KEEP = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
DAY_MS = 86_400_000


def test_icebergs_own_properties_decide_where_no_other_source_does() -> None:
    properties = {AGE: str(30 * DAY_MS), KEEP: "3"}
    alone = PolicySources().resolve(ORDERS, properties)
    decided_above = PolicySources(artifacts={"expiry": {"max_age": "9d"}}).resolve(ORDERS, properties)

    assert decided(alone, "expiry.max_age") == (timedelta(days=30), PolicySource.ICEBERG)
    assert decided(alone, "expiry.min_snapshots_to_keep") == (3, PolicySource.ICEBERG)
    assert decided(decided_above, "expiry.max_age") == (timedelta(days=9), PolicySource.ARTIFACTS)
    assert decided(decided_above, "expiry.min_snapshots_to_keep") == (3, PolicySource.ICEBERG)


@pytest.mark.parametrize("text", ["60000", "-1", "never", ""])
def test_an_age_of_icebergs_that_is_below_our_floor_or_no_number_does_not_count(text: str) -> None:
    effective = PolicySources().resolve(ORDERS, {AGE: text, KEEP: "0"})

    assert decided(effective, "expiry.max_age") == (timedelta(days=7), PolicySource.DEFAULT)
    assert decided(effective, "expiry.min_snapshots_to_keep") == (10, PolicySource.DEFAULT)


def test_the_largest_age_there_is_means_never() -> None:
    age = PolicySources().resolve(ORDERS, {AGE: str(2**63 - 1)}).policy.expiry.max_age

    assert age > timedelta(days=36_000)
    assert datetime.now(UTC) - age

"""The maintenance assets in real runs, on real tables."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, Definitions
from support.http_stub import refused_url
from support.maintenance_lake import GROUP, NeglectedLake, metadata_of, run_asset

from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
from floe_dagster_iceberg.models import CompactionPolicy, ExpiryPolicy, Guardrail, MaintenanceBudget, MaintenancePolicy
from floe_dagster_iceberg.resources import IcebergResource

OPERATIONS = ["compaction", "snapshot_expiry", "manifests", "orphan_files"]
EAGER = MaintenancePolicy(
    compaction=CompactionPolicy(min_input_files=2),
    expiry=ExpiryPolicy(max_age=timedelta(0), min_snapshots_to_keep=2, overrides=[Guardrail.EXPIRY_AGE]),
)


@pytest.fixture
def neglected(tmp_path: Path) -> NeglectedLake:
    (tmp_path / "lake").mkdir()
    return NeglectedLake(tmp_path / "lake")


def definitions(lake: NeglectedLake, policy: MaintenancePolicy = EAGER) -> Definitions:
    return Definitions.merge(Definitions(resources={"iceberg": lake.iceberg}), build_maintenance_definitions(policy))


def noted_run(lake: NeglectedLake) -> tuple[str | None, str | None]:
    """The run and the asset that the newest snapshot names."""
    summary = lake.table("bronze.orders").current_snapshot().summary  # type: ignore[union-attr]
    return summary["dagster.run-id"], summary["dagster.asset-key"]  # type: ignore[index]


@pytest.mark.requirement("D6")
def test_the_assets_are_in_one_group_with_kinds_descriptions_and_a_pool(neglected: NeglectedLake) -> None:
    graph = definitions(neglected).resolve_asset_graph()

    for name in ["table_health", *OPERATIONS]:
        node = graph.get(AssetKey([GROUP, name]))
        assert node.group_name == GROUP
        assert "iceberg" in node.kinds
        assert node.description
        assert node.pools == (set() if name == "table_health" else {GROUP})


@pytest.mark.requirement("D6", "S2-FR-030", "S2-FR-031")
def test_compaction_puts_files_together_and_shows_before_and_after(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=6)
    before = neglected.table("bronze.orders").metadata.current_snapshot_id

    result = run_asset(definitions(neglected), "compaction")
    metadata = metadata_of(result, "compaction")

    assert noted_run(neglected) == (result.run_id, f"{GROUP}/compaction")
    assert neglected.files("bronze.orders") == 1
    assert neglected.ids("bronze.orders") == list(range(6))
    assert metadata["iceberg/files_before"] == 6
    assert metadata["iceberg/files_after"] == 1
    assert metadata["iceberg/small_files_before"] == 6
    assert metadata["iceberg/tables_done"] == 1
    assert metadata["iceberg/bytes_before"] > metadata["iceberg/bytes_after"] > 0
    assert metadata["iceberg/duration"] > 0
    assert "| bronze.orders | done | 6 → 1 |" in metadata["iceberg/results"]
    assert str(before) in metadata["iceberg/results"]
    assert str(neglected.table("bronze.orders").metadata.current_snapshot_id) in metadata["iceberg/results"]


@pytest.mark.requirement("D6", "S2-FR-024")
def test_expiry_lets_old_snapshots_go_and_shows_how_many(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=6)

    metadata = metadata_of(run_asset(definitions(neglected), "snapshot_expiry"), "snapshot_expiry")

    assert neglected.snapshots("bronze.orders") == 2
    assert (metadata["iceberg/snapshots_before"], metadata["iceberg/snapshots_after"]) == (6, 2)
    assert metadata["iceberg/snapshots_expired"] == 4
    assert metadata["iceberg/overrides"] == "expiry_age"


@pytest.mark.requirement("D6")
def test_health_counts_everything_and_draws_the_file_sizes(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=3)
    neglected.fill("silver.orders", files=2)
    before = neglected.fingerprint()

    metadata = metadata_of(run_asset(definitions(neglected), "table_health"), "table_health")

    assert metadata["iceberg/tables"] == 2
    assert metadata["iceberg/files"] == metadata["iceberg/small_files"] == metadata["iceberg/snapshots"] == 5
    assert metadata["iceberg/file_sizes"].startswith("![Data files by size](data:image/svg+xml;base64,")
    assert "| bronze.orders | 3 | 3 |" in metadata["iceberg/health"]
    assert neglected.fingerprint() == before


def test_a_cheaper_look_plots_no_number_that_it_did_not_read(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=2)

    metadata = metadata_of(run_asset(definitions(neglected), "table_health", {"tier": "summary"}), "table_health")

    assert metadata["iceberg/files"] == 2
    assert metadata.keys().isdisjoint({"iceberg/small_files", "iceberg/manifests", "iceberg/file_sizes"})


@pytest.mark.requirement("D6")
def test_the_launchpad_picks_tables_engine_and_dry_run(neglected: NeglectedLake) -> None:
    for table in ("bronze.orders", "bronze.customers", "silver.orders"):
        neglected.fill(table, files=3)

    run = run_asset(definitions(neglected), "compaction", {"tables": ["bronze.o*", "silver.*"], "engine": "pyiceberg"})

    assert metadata_of(run, "compaction")["iceberg/tables"] == 2
    assert [neglected.files(name) for name in ("bronze.orders", "bronze.customers", "silver.orders")] == [1, 3, 1]
    assert "| tables | bronze.o*, silver.* | run config |" in metadata_of(run, "compaction")["iceberg/policy"]


@pytest.mark.requirement("D6")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(neglected: NeglectedLake, name: str) -> None:
    neglected.fill("bronze.orders", files=6)
    before = neglected.fingerprint()

    metadata = metadata_of(run_asset(definitions(neglected), name, {"dry_run": True}), name)

    assert neglected.fingerprint() == before
    assert metadata["iceberg/dry_run"] is True
    assert metadata["iceberg/tables_done"] == 0
    if name == "compaction":
        assert metadata["iceberg/planned_files"] == 6
        assert metadata["iceberg/tables_planned"] == 1


def test_the_launchpad_brings_orphans_back_from_quarantine(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=6)
    orphan = Path(neglected.table("bronze.orders").location().removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_bytes(b"orphaned")
    os.utime(orphan, (0, 0))
    run_asset(definitions(neglected), "orphan_files")
    assert not orphan.exists()

    counted = metadata_of(
        run_asset(definitions(neglected), "orphan_files", {"restore": True, "dry_run": True}), "orphan_files"
    )
    assert "1 file would move back from quarantine." in counted["iceberg/results"]
    assert not orphan.exists()
    run_asset(definitions(neglected), "orphan_files", {"restore": True})
    assert (orphan.read_bytes(), orphan.stat().st_mtime) == (b"orphaned", 0)


def test_a_second_run_finds_nothing_to_do(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=3)
    run_asset(definitions(neglected), "compaction")
    before = neglected.fingerprint()

    metadata = metadata_of(run_asset(definitions(neglected), "compaction"), "compaction")

    assert metadata["iceberg/tables_skipped"] == 1
    assert neglected.fingerprint() == before


def test_missing_and_empty_tables_are_skipped_with_the_reason(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.empty", files=0)

    run = run_asset(definitions(neglected), "compaction", {"tables": ["bronze.empty", "bronze.gone"]})

    results = metadata_of(run, "compaction")["iceberg/results"]
    assert "| bronze.empty | skipped |" in results
    assert "The table is empty." in results
    assert "The catalog has no such table." in results


@pytest.mark.requirement("S2-E6")
def test_a_broken_table_does_not_stop_the_others(neglected: NeglectedLake) -> None:
    for table in ("bronze.a", "bronze.broken", "bronze.z"):
        neglected.fill(table, files=3)
    neglected.lose_metadata("bronze.broken")

    run = run_asset(definitions(neglected), "compaction")

    metadata = metadata_of(run, "compaction")
    assert (metadata["iceberg/tables_done"], metadata["iceberg/tables_failed"]) == (2, 1)
    assert [neglected.files("bronze.a"), neglected.files("bronze.z")] == [1, 1]
    assert metadata["iceberg/results"].splitlines()[2].startswith("| bronze.broken | failed |")
    [check] = run.get_asset_check_evaluations()
    assert not check.passed
    assert check.metadata["iceberg/failed"].value == ["bronze.broken"]


@pytest.mark.parametrize(
    ("tables", "config"),
    [(["bronze.broken"], {}), (["bronze.a", "bronze.broken"], {"fail_on_error": True})],
    ids=["every table failed", "one failed and that was to fail the run"],
)
def test_the_run_fails_after_all_tables_had_their_turn(
    neglected: NeglectedLake, tables: list[str], config: dict[str, bool]
) -> None:
    for table in tables:
        neglected.fill(table, files=3)
    neglected.lose_metadata("bronze.broken")

    run = run_asset(definitions(neglected), "compaction", config, succeeds=False)

    [failure] = run.get_step_failure_events()
    description = failure.step_failure_data.user_failure_data.description
    assert f"compaction failed for 1 of {len(tables)} tables: bronze.broken." in description
    if "bronze.a" in tables:
        assert neglected.files("bronze.a") == 1


def test_a_catalog_that_cannot_be_reached_fails_the_run_and_may_be_retried() -> None:
    with refused_url() as refused:
        iceberg = IcebergResource(catalog_type="rest", catalog_uri=refused, warehouse="w")
        unreachable = Definitions.merge(Definitions(resources={"iceberg": iceberg}), build_maintenance_definitions())
        run = run_asset(unreachable, "table_health", succeeds=False)

    [failure] = run.get_step_failure_events()
    failure_data = failure.step_failure_data.user_failure_data
    assert failure_data.metadata["iceberg/error"].value == "CatalogConnectionError"
    assert failure_data.metadata["iceberg/retryable"].value is True


def test_a_table_can_switch_an_operation_off(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=3, properties={"floe.maintenance.compaction.enabled": "false"})

    metadata = metadata_of(run_asset(definitions(neglected), "compaction"), "compaction")

    assert neglected.files("bronze.orders") == 3
    assert "Switched off by table property." in metadata["iceberg/results"]
    assert "| compaction.enabled of bronze.orders | no | table property |" in metadata["iceberg/policy"]


def test_a_table_with_an_unknown_setting_fails_and_the_others_do_not(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=3)
    neglected.fill("bronze.typo", files=3, properties={"floe.maintenance.expiry.max-aeg": "3d"})

    metadata = metadata_of(run_asset(definitions(neglected), "compaction"), "compaction")

    assert neglected.files("bronze.orders") == 1
    assert "Did you mean 'floe.maintenance.expiry.max-age'?" in metadata["iceberg/results"]


def test_a_byte_budget_goes_to_the_tables_that_gain_most(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.few", files=2)
    neglected.fill("bronze.many", files=9)
    policy = EAGER.model_copy(update={"budget": MaintenanceBudget(max_rewrite_bytes=6_000)})

    metadata = metadata_of(run_asset(definitions(neglected, policy), "compaction"), "compaction")

    assert [neglected.files("bronze.many"), neglected.files("bronze.few")] == [1, 2]
    assert metadata["iceberg/bytes_removed"] <= 6_000
    assert "| bronze.few | skipped |" in metadata["iceberg/results"]


def test_when_the_time_is_up_no_further_table_is_begun(neglected: NeglectedLake) -> None:
    for table in ("bronze.a", "bronze.b"):
        neglected.fill(table, files=2)
    policy = EAGER.model_copy(update={"budget": MaintenanceBudget(max_duration=timedelta(milliseconds=1))})

    metadata = metadata_of(run_asset(definitions(neglected, policy), "compaction"), "compaction")

    assert metadata["iceberg/tables_skipped"] >= 1
    assert "the next run continues" in metadata["iceberg/results"]


def test_progress_is_in_the_log(neglected: NeglectedLake) -> None:
    for table in ("bronze.a", "bronze.b"):
        neglected.fill(table, files=3)

    with DagsterInstance.ephemeral() as instance:
        run = run_asset(definitions(neglected), "compaction", instance=instance)
        log = [entry.user_message for entry in instance.all_logs(run.run_id)]

    assert any("compaction, 1 of 2: bronze.a done. 3 files" in line for line in log)
    assert any("compaction, 2 of 2: bronze.b done." in line for line in log)


def test_everything_at_once_runs_in_order_and_makes_nothing_look_out_of_date(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=4)
    everything = definitions(neglected)

    run = everything.resolve_implicit_global_asset_job_def().execute_in_process()

    order = [event.step_key for event in run.get_step_success_events()]
    assert order == [f"{GROUP}__{name}" for name in ["table_health", *OPERATIONS]]
    assert neglected.ids("bronze.orders") == [0, 1, 2, 3]

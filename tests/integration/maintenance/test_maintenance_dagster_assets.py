"""The maintenance assets in real runs, on real tables."""

import os
import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    FloatMetadataValue,
    IntMetadataValue,
    TableMetadataValue,
)
from support.http_stub import refused_url
from support.maintenance_lake import GROUP, NeglectedLake, metadata_of, run_asset

from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
from floe_dagster_iceberg.models import CompactionPolicy, ExpiryPolicy, Guardrail, MaintenanceBudget, MaintenancePolicy
from floe_dagster_iceberg.resources import IcebergResource

OPERATIONS = ["retention", "compaction", "snapshot_expiry", "manifests", "orphan_files"]
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
    assert re.search(r"\| bronze.orders \| done \| 6 files .* became 1 .*\. \| 6 → 1 \|", metadata["iceberg/results"])
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
    assert "iceberg/tables_done" not in metadata
    if name == "compaction":
        assert (metadata["iceberg/planned_files"], metadata["iceberg/tables_planned"]) == (6, 1)


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


def test_missing_and_empty_tables_of_a_policy_are_skipped_with_the_reason(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.empty", files=0)
    policy = MaintenancePolicy(tables=["bronze.empty", "bronze.gone", "gold.*"])

    run = run_asset(definitions(neglected, policy), "compaction")

    results = metadata_of(run, "compaction")["iceberg/results"]
    assert "| bronze.empty | skipped |" in results
    assert "The table is empty." in results
    assert "The catalog has no such table." in results


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["bronz.*"], "No table matches 'bronz.*'. Tables are matched as 'namespace.table'; namespaces are bronze."),
        (["bronze.order"], "Table 'bronze.order' not found in the catalog. Did you mean 'bronze.orders'?"),
    ],
    ids=["glob", "name"],
)
def test_a_selection_in_the_launchpad_without_any_table_fails_the_run(
    neglected: NeglectedLake, tables: list[str], message: str
) -> None:
    neglected.fill("bronze.orders", files=1)

    run = run_asset(definitions(neglected), "compaction", {"tables": tables}, succeeds=False)

    [failure] = run.get_step_failure_events()
    assert message in failure.step_failure_data.user_failure_data.description


def test_a_mistake_in_one_of_several_names_fails_the_check_and_not_the_others(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=3)

    run = run_asset(definitions(neglected), "compaction", {"tables": ["bronze.orders", "bronze.gone"]})

    [check] = run.get_asset_check_evaluations()
    assert check.metadata["iceberg/failed"].value == ["bronze.gone"]
    assert neglected.files("bronze.orders") == 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dry_run_says_where_there_is_nothing_to_do(neglected: NeglectedLake, name: str) -> None:
    neglected.fill("bronze.orders", files=1)

    metadata = metadata_of(run_asset(definitions(neglected), name, {"dry_run": True}), name)

    assert "| bronze.orders | nothing to do |" in metadata["iceberg/results"]
    assert "iceberg/tables_planned" not in metadata


@pytest.mark.parametrize("tables", [["*"], ["`o dd`.*", "bronze.`v1.0`"]], ids=str)
def test_tables_of_other_names_are_maintained(neglected: NeglectedLake, tables: list[str]) -> None:
    names, catalog = [("o dd", "two words"), ("bronze", "v1.0")], neglected.manager.catalog
    for name in names:
        catalog.create_namespace_if_not_exists(name[:-1])
        table = catalog.create_table(name, pa.schema([("id", pa.int64())]))
        for _ in range(3):
            table.append(pa.table({"id": [1]}))

    for operation in OPERATIONS:
        metadata = metadata_of(run_asset(definitions(neglected), operation, {"tables": tables}), operation)
        assert (metadata["iceberg/tables"], metadata["iceberg/tables_failed"]) == (2, 0)

    assert [len(catalog.load_table(name).inspect.files()) for name in names] == [1, 1]


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
    assert float(metadata["iceberg/bytes_removed"].removesuffix(" KiB")) <= 6_000 / 1024
    assert "| bronze.few | over budget |" in metadata["iceberg/results"]


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

    # Tables are worked on side by side: either may be done first.
    done = [line for line in log if re.search(r"compaction, \d of 2: ", line)]
    assert sorted(re.findall(r"bronze\.[ab] done\. 3 files", " ".join(done))) == [
        "bronze.a done. 3 files",
        "bronze.b done. 3 files",
    ]
    assert ["1 of 2" in done[0], "2 of 2" in done[1]] == [True, True]


def test_everything_at_once_runs_in_order_and_makes_nothing_look_out_of_date(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=4)
    everything = definitions(neglected)

    run = everything.resolve_implicit_global_asset_job_def().execute_in_process()

    order = [event.step_key for event in run.get_step_success_events()]
    assert order == [f"{GROUP}__{name}" for name in ["table_health", *OPERATIONS]]
    assert neglected.ids("bronze.orders") == [0, 1, 2, 3]


def materialize_all(definitions: Definitions, config: dict[str, bool] | None = None) -> ExecuteInProcessResult:
    """What the UI's button does: Dagster's own job for all assets, without a configuration of theirs."""
    run_config = {"ops": {f"{GROUP}__compaction": {"config": config}}} if config else {}
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process(run_config=run_config)


def test_materialize_all_changes_no_table(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=6)
    before = neglected.fingerprint()

    run = materialize_all(definitions(neglected))

    assert neglected.fingerprint() == before
    metadata = metadata_of(run, "compaction")
    assert (metadata["iceberg/dry_run"], metadata["iceberg/tables_planned"]) == (True, 1)
    assert "launch job iceberg_maintenance_compaction_job" in metadata["iceberg/how_to_run"]
    assert "iceberg/how_to_run" not in metadata_of(run, "table_health")


def test_what_was_decided_holds_for_materialize_too(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=6)

    run = materialize_all(
        definitions(neglected, EAGER.model_copy(update={"expiry": ExpiryPolicy()})), {"dry_run": False}
    )
    assert neglected.files("bronze.orders") == 1
    assert metadata_of(run, "compaction")["iceberg/dry_run"] is False

    neglected.fill("bronze.customers", files=6)
    decided = MaintenancePolicy(compaction=CompactionPolicy(min_input_files=2), dry_run=False)
    materialize_all(definitions(neglected, decided))
    assert neglected.files("bronze.customers") == 1


def test_the_launchpad_of_a_job_is_filled_and_can_be_launched_as_it_is(neglected: NeglectedLake) -> None:
    spark_only = {"floe.maintenance.engine": "spark"}
    neglected.fill("bronze.orders", files=6)
    neglected.fill("silver.orders", files=6, properties=spark_only)
    job = definitions(neglected, MaintenancePolicy(tables=["bronze.*", "silver.*"])).resolve_job_def(
        f"{GROUP}_compaction_job"
    )

    filled = job.run_config["ops"][f"{GROUP}__compaction"]["config"]
    run = job.execute_in_process(run_config=job.run_config)

    assert filled == {"tables": ["bronze.*", "silver.*"], "dry_run": False, "engine": "auto"}
    results = metadata_of(run, "compaction")["iceberg/results"]
    assert "| bronze.orders | done |" in results
    # What the launchpad is filled with does not override the table's own engine, which is not there.
    assert "| silver.orders | blocked |" in results


@pytest.mark.parametrize("name", ["table_health", *OPERATIONS])
def test_an_event_has_its_table_first_and_few_numbers(neglected: NeglectedLake, name: str) -> None:
    neglected.fill("bronze.idle", files=1)
    neglected.fill("bronze.orders", files=6)

    planned, event = (
        run_asset(definitions(neglected), name, config).asset_materializations_for_node(f"{GROUP}__{name}")[0]
        for config in ({"dry_run": True}, {})
    )

    first, table = next(iter(event.metadata.items()))
    assert first == ("iceberg/health" if name == "table_health" else "iceberg/results")
    assert isinstance(table, TableMetadataValue)
    assert table.records[0].data["table"] == (
        "bronze.orders" if name in ("table_health", "compaction", "snapshot_expiry") else "bronze.idle"
    )
    # The page of an asset plots every number that one of its events has.
    shown = [*planned.metadata.items(), *event.metadata.items()]
    plotted = {key for key, value in shown if isinstance(value, IntMetadataValue | FloatMetadataValue)}
    assert 2 <= len(plotted) <= 8


def test_only_what_was_decided_is_listed_of_the_policy(neglected: NeglectedLake) -> None:
    neglected.fill("bronze.orders", files=1)

    by_default = metadata_of(run_asset(definitions(neglected, MaintenancePolicy()), "compaction"), "compaction")
    decided = metadata_of(run_asset(definitions(neglected), "compaction"), "compaction")["iceberg/policy"]

    assert "iceberg/policy" not in by_default
    assert decided.splitlines()[2:] == ["| compaction.min_input_files | 2 | code |"]


def test_the_kinds_name_spark_only_where_it_is_certain() -> None:
    def kinds(policy: MaintenancePolicy) -> set[str]:
        defs = build_maintenance_definitions(policy, spark_resource_key="pyspark")
        specs = [spec for each in defs.assets or () if isinstance(each, AssetsDefinition) for spec in each.specs]
        return next(spec.kinds for spec in specs if spec.key.path[-1] == "compaction")

    assert kinds(MaintenancePolicy()) == {"iceberg"}
    assert kinds(MaintenancePolicy(engine="spark")) == {"iceberg", "spark"}

"""Maintenance leaves a span for every public method on both engines, and for every procedure of Spark's."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from dagster import Definitions, materialize
from support.maintenance_orphans import leave_orphan
from support.maintenance_tables import DAY, EAGER, ORDERS, later, make_orders
from support.maintenance_upkeep import Upkeep
from support.span_tree import SOME, SpanRecorder, SpanTree

from floe_dagster_iceberg.errors import IcebergError, NoSuchTableError
from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, TableIdentifier
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark import statements as write
from floe_dagster_iceberg.spark.procedures import SparkProcedures

COMPACTION = MaintenanceOperation.COMPACTION
OF_TABLE = {"catalog.name": "floe", "table.identifier": ORDERS, "namespace": "bronze"}
GONE = {"catalog.name": "floe", "table.identifier": "bronze.gone", "namespace": "bronze"}
PYICEBERG = {"engine": "pyiceberg"}


def load(of_table: dict[str, str] = OF_TABLE, error: str | None = None) -> SpanTree:
    return SpanTree("iceberg.load_table", {"operation": "load_table", **PYICEBERG, **of_table}, error)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    return SpanRecorder.of_everything(monkeypatch)


def public(place: Any) -> set[str]:
    """Public methods of a class, or functions that a module defines itself."""
    module = place.__name__ if inspect.ismodule(place) else place.__module__
    own = inspect.getmembers(place, inspect.isfunction)
    return {name for name, function in own if name[0] != "_" and function.__module__ == module}


def test_a_new_public_method_of_maintenance_needs_a_span_here() -> None:
    assert public(TableMaintenance) == {"health", "plan", "execute", "restore_orphans"}


@pytest.mark.requirement("S2-US7.1", "S2-FR-041", "S2-SC-007")
def test_measuring_planning_and_doing_leave_their_spans(upkeep: Upkeep, recorder: SpanRecorder) -> None:
    make_orders(upkeep.manager, batches=3, days=2)
    recorder.clear()

    upkeep.maintenance().health(ORDERS, EAGER)
    upkeep.plan(COMPACTION)
    upkeep.execute(COMPACTION)

    engine = {"engine": upkeep.engine.value}
    commit = {
        MaintenanceEngine.PYICEBERG: SpanTree(
            "iceberg.commit", {"operation": "commit", "commit.attempts": 1, **OF_TABLE}
        ),
        MaintenanceEngine.SPARK: SpanTree(
            "iceberg.rewrite_data_files", {"operation": "rewrite_data_files", **engine, **OF_TABLE}
        ),
    }[upkeep.engine]
    what = {"maintenance.operation": "compaction", **OF_TABLE, **engine}
    done = {
        "maintenance.status": "done",
        "files.removed": 6,
        "bytes.removed": SOME,
        "files.added": 2,
        "bytes.added": SOME,
        "snapshots.expired": 0,
        "snapshot.id": SOME,
    }
    measured = {"operation": "measure_health", "snapshot.id": SOME, "data_files": 6, **PYICEBERG, **OF_TABLE}
    assert recorder.trees() == [
        SpanTree("iceberg.measure_health", measured, children=[load()]),
        SpanTree(
            "iceberg.plan_maintenance",
            {"operation": "plan_maintenance", "plan.reason": "recommended", **what},
            children=[load()],
        ),
        SpanTree(
            "iceberg.maintain_table", {"operation": "maintain_table", **what, **done}, children=[load(), commit, load()]
        ),
    ]


@pytest.mark.requirement("S2-US7.1")
def test_a_rewritten_snapshot_leads_to_its_trace(upkeep: Upkeep, recorder: SpanRecorder) -> None:
    make_orders(upkeep.manager, batches=3, days=2)
    recorder.clear()

    upkeep.execute(COMPACTION)

    assert {upkeep.manager.get_current_snapshot(ORDERS).summary["floe.trace-id"]} <= recorder.trace_ids()


def test_orphans_that_come_back_leave_a_span(upkeep: Upkeep, recorder: SpanRecorder) -> None:
    make_orders(upkeep.manager, batches=1, days=1)
    leave_orphan(upkeep.manager)
    TableMaintenance(upkeep.manager).execute(MaintenanceOperation.ORPHAN_FILES, ORDERS, EAGER)
    recorder.clear()

    upkeep.maintenance().restore_orphans(ORDERS)

    attributes = {"operation": "restore_orphans", "files.restored": 1, **PYICEBERG, **OF_TABLE}
    assert recorder.trees() == [SpanTree("iceberg.restore_orphans", attributes, children=[load()])]


@pytest.mark.requirement("S2-US7.3", "S2-FR-041", "S2-SC-007")
@pytest.mark.parametrize("method", sorted(public(TableMaintenance)))
def test_what_fails_leaves_its_span(upkeep: Upkeep, recorder: SpanRecorder, method: str) -> None:
    maintenance = upkeep.maintenance()
    if method in {"health", "restore_orphans"}:
        with pytest.raises(NoSuchTableError):
            getattr(maintenance, method)("bronze.gone", *([EAGER] if method == "health" else []))
    elif method == "plan":
        with pytest.raises(NoSuchTableError):
            maintenance.plan(COMPACTION, "bronze.gone", EAGER)
    else:
        # It raises nothing: a run goes on with the next table.
        assert maintenance.execute(COMPACTION, "bronze.gone", EAGER).error

    names = {"health": "measure_health", "plan": "plan_maintenance", "execute": "maintain_table"}
    (tree,) = [tree for tree in recorder.trees() if tree.name != "iceberg.create_namespace"]
    assert (tree.name, tree.error) == (f"iceberg.{names.get(method, method)}", "NoSuchTableError")
    assert tree.attributes.items() >= GONE.items()
    assert tree.children == [load(GONE, error="NoSuchTableError")]


PROCEDURES = {
    "rewrite_data_files": lambda run, table, schema: run.rewrite_data_files(table, EAGER.compaction, schema=schema),
    "rewrite_position_delete_files": lambda run, table, _: run.rewrite_position_delete_files(table, EAGER.compaction),
    "rewrite_manifests": lambda run, table, _: run.rewrite_manifests(table),
    "expire_snapshots": lambda run, table, _: run.expire_snapshots(table, ()),
    "find_orphan_files": lambda run, table, _: run.find_orphan_files(table, older_than=later(-30 * DAY)),
    "create_changelog_view": lambda run, table, _: run.create_changelog_view(table, "changes", start=None, end=1),
    "set_properties": lambda run, table, _: run.set_properties(table, {"a": "b"}),
}


def test_a_new_action_of_spark_needs_a_span_here() -> None:
    assert public(SparkProcedures) == PROCEDURES.keys()
    # Their spans are in the behaviour suite and in test_spark_jobs.py. The last one only arranges a frame.
    assert public(write) == {"append", "replace", "delete", "merge", "arrange"}


@pytest.mark.requirement("S2-US7.1", "S2-US7.3", "S2-FR-041", "S2-SC-007")
def test_each_procedure_of_spark_leaves_its_span(spark_upkeep: Upkeep, recorder: SpanRecorder) -> None:
    table = make_orders(spark_upkeep.manager, batches=1, days=1)
    assert spark_upkeep.session is not None
    procedures = SparkProcedures(spark_upkeep.session, "floe")
    for name, call in PROCEDURES.items():
        span = "iceberg.remove_orphan_files" if name == "find_orphan_files" else f"iceberg.{name}"
        recorder.clear()

        call(procedures, TableIdentifier.from_string(ORDERS), table.schema())
        with pytest.raises(IcebergError) as failure:
            call(procedures, TableIdentifier.from_string("bronze.gone"), table.schema())

        operation = {"operation": span.removeprefix("iceberg."), "engine": "spark"}
        done, failed = recorder.trees()
        assert done == SpanTree(span, operation | {"table.identifier": ORDERS, "namespace": "bronze"})
        assert (failed.name, failed.attributes["table.identifier"]) == (span, "bronze.gone")
        assert failed.error
        assert failure.value.__cause__ is not None


@pytest.mark.requirement("S2-US7.1", "S2-FR-041")
def test_a_maintenance_asset_is_one_trace_with_its_run(tmp_path: Path, recorder: SpanRecorder) -> None:
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    iceberg.table_manager.create_namespace("bronze")
    make_orders(iceberg.table_manager, batches=3, days=1)
    recorder.clear()
    definitions: Definitions = build_maintenance_definitions(EAGER)
    (compaction,) = [each for each in definitions.assets or () if each.key.path[-1] == "compaction"]

    result = materialize([compaction], resources={"iceberg": iceberg})

    (root,) = recorder.trees()
    of_run = {
        "dagster.asset_key": "iceberg_maintenance/compaction",
        "dagster.run_id": result.run_id,
        "dagster.step_key": "iceberg_maintenance__compaction",
    }
    attributes = {"operation": "run_maintenance", "maintenance.asset": "compaction", "tables": 1}
    assert (root.name, root.attributes) == ("iceberg.run_maintenance", attributes | of_run)
    (done,) = [child for child in root.children if child.name == "iceberg.maintain_table"]
    assert done.attributes.items() >= (of_run | {"maintenance.status": "done"}).items()
    assert len(recorder.trace_ids()) == 1

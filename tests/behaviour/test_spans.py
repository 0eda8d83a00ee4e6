"""What a run leaves in traces: one tree for each output and input, from which one finds the run and the snapshot."""

import inspect
import logging
import re
from typing import Any

import pytest
from dagster import AssetsDefinition, ExecuteInProcessResult, StaticPartitionsDefinition, asset
from support.span_tree import SOME, SpanRecorder, SpanTree
from support.warehouse import Warehouse

from floe_dagster_iceberg import audited_asset, not_null
from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager, IcebergIOManagerBase
from floe_dagster_iceberg.models import snapshot_properties

REGIONS = StaticPartitionsDefinition(["eu", "us"])
OF_TABLE = {"catalog.name": "floe", "table.identifier": "public.sales", "namespace": "public"}
# They are computed from definitions and touch no table.
SILENT = {"engines", "get_table_identifier", "table_of", "table_of_asset"}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, warehouse: Warehouse) -> SpanRecorder:
    """Records from now on; connecting to the catalog has been done."""
    assert warehouse.iceberg.catalog is not None
    return SpanRecorder.of_everything(monkeypatch)


def sales(warehouse: Warehouse, region: str = "eu") -> AssetsDefinition:
    @asset(partitions_def=REGIONS, metadata={"partition_expr": "region"})
    def sales() -> Any:
        return warehouse.frame({"region": [region, region], "amount": [1, 2]})

    return sales


def of_run(result: ExecuteInProcessResult, step: str = "sales") -> dict[str, str]:
    return {
        "dagster.asset_key": "sales",
        "dagster.partition_key": "eu",
        "dagster.run_id": result.run_id,
        "dagster.step_key": step,
    }


def test_a_new_public_method_of_the_io_managers_needs_a_span_here() -> None:
    for kind in (IcebergIOManagerBase, IcebergIOManager):
        ours = {
            name
            for name, function in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") and function.__module__.startswith("floe_dagster_iceberg")
        }
        assert ours == {"handle_output", "load_input"} | SILENT


@pytest.mark.requirement("S2-US7.1", "S2-FR-041", "S2-FR-042", "S2-SC-007")
def test_a_first_output_and_a_second_one_leave_their_spans(warehouse: Warehouse, recorder: SpanRecorder) -> None:
    written = {
        "operation": "handle_output",
        "engine": warehouse.engine,
        "write.mode": "overwrite",
        "commit.strategy": "fast_append",
        "commit.attempts": 1,
        "deduplicated": False,
        "snapshot.id": SOME,
        "records.added": 2,
        "files.added": 1,
        "bytes.added": SOME,
        **OF_TABLE,
    }
    first, second = (warehouse.run(sales(warehouse), "eu") for _ in range(2))

    created, replaced = recorder.trees()
    assert created == SpanTree(
        "iceberg.handle_output",
        written
        | of_run(first)
        | {"table.created": True, "records.removed": 0, "files.removed": 0, "snapshot.operation": "append"}
        | ({"snapshot.operation": "overwrite"} if warehouse.engine == "spark" else {}),
        children=parts(warehouse, of_run(first), creates=True),
    )
    assert replaced == SpanTree(
        "iceberg.handle_output",
        written
        | of_run(second)
        | {"table.created": False, "records.removed": 2, "files.removed": 1, "snapshot.operation": "overwrite"},
        children=parts(warehouse, of_run(second)),
    )


def parts(warehouse: Warehouse, run: dict[str, str], *, creates: bool = False) -> list[SpanTree]:
    """What a write is made of: one commit, but for Spark's, which are PyIceberg's for the table and its own."""
    commit = SpanTree("iceberg.commit", {"operation": "commit", "commit.attempts": 1, **OF_TABLE, **run})
    # Only Polaris' plugin shows what it does under its own name.
    of_namespace = {"operation": "create_namespace", "catalog.name": "floe", "namespace": "public", "properties": ()}
    polaris = warehouse.iceberg.catalog_type == "polaris" and creates
    namespace = [SpanTree("polaris.create_namespace", of_namespace | run)] if polaris else []
    if warehouse.engine == "arrow":
        return [*namespace, commit]
    create = SpanTree("iceberg.create_table", {"operation": "create_table", "engine": "pyiceberg", **OF_TABLE, **run})
    overwrite = SpanTree("iceberg.overwrite", {"operation": "overwrite", "engine": "spark", **OF_TABLE, **run})
    return [*namespace, *([create] if creates else []), commit, overwrite]


@pytest.mark.requirement("S2-US7.1", "S2-FR-041", "S2-SC-007")
def test_an_input_leaves_its_spans(warehouse: Warehouse, recorder: SpanRecorder) -> None:
    @asset(partitions_def=REGIONS)
    def report(sales: warehouse.frame_type) -> None:  # type: ignore[name-defined]
        assert warehouse.to_arrow(sales).num_rows == 2

    upstream = sales(warehouse)
    warehouse.run(upstream, "eu")
    recorder.clear()

    result = warehouse.run([upstream, report], "eu", selection=[report])

    run = of_run(result, "report")
    load = {"operation": "load_table", "engine": "pyiceberg", **OF_TABLE, **run}
    read = {
        "arrow": SpanTree(
            "iceberg.scan",
            {
                "operation": "scan",
                "engine": "pyiceberg",
                "records.read": 2,
                "bytes.read": SOME,
                **OF_TABLE,
                **run,
            },
        ),
        "spark": SpanTree("iceberg.open_frame", {"operation": "open_frame", "engine": "spark", **OF_TABLE, **run}),
    }[warehouse.engine]
    assert recorder.trees() == [
        SpanTree(
            "iceberg.load_input",
            {"operation": "load_input", "engine": warehouse.engine, **OF_TABLE, **run},
            children=[SpanTree("iceberg.load_table", load), read],
        )
    ]


@pytest.mark.requirement("S2-US7.3", "S2-FR-041", "S2-SC-007")
def test_an_output_that_is_refused_leaves_its_span(warehouse: Warehouse, recorder: SpanRecorder) -> None:
    result = warehouse.run(sales(warehouse, region="us"), "eu", raise_on_error=False)

    (tree,) = recorder.trees()
    assert (tree.name, tree.error) == ("iceberg.handle_output", "RowsOutsidePartitionError")
    assert tree.attributes == {
        "operation": "handle_output",
        "engine": warehouse.engine,
        "write.mode": "overwrite",
        "commit.strategy": "fast_append",
        **OF_TABLE,
        **of_run(result),
    }


@pytest.mark.requirement("S2-FR-041")
@pytest.mark.parametrize(
    ("settings", "action"), [({"write_mode": "append"}, "append"), ({"upsert_keys": "id"}, "upsert")]
)
def test_each_way_to_write_has_its_spans(
    warehouse: Warehouse, recorder: SpanRecorder, settings: dict[str, Any], action: str
) -> None:
    @asset(metadata=iceberg_settings(**settings))
    def people() -> Any:
        return warehouse.frame({"id": [1, 2]})

    for _ in range(2):
        warehouse.run(people)

    *_, tree = recorder.trees()
    assert tree.attributes["write.mode"] == action
    engines = {"arrow": ["iceberg.commit"], "spark": ["iceberg.commit", f"iceberg.{action}"]}
    assert [child.name for child in tree.children] == engines[warehouse.engine]


@pytest.mark.requirement("S2-US7.3", "S2-FR-041")
def test_a_frame_that_breaks_off_leaves_its_spans(warehouse: Warehouse, recorder: SpanRecorder) -> None:
    @asset
    def people() -> Any:
        return warehouse.broken_frame({"id": [1, 2]})

    warehouse.run(people, raise_on_error=False)

    (tree,) = recorder.trees()
    failed = [child.name for child in tree.children if child.error]
    assert tree.error is not None
    assert failed == {"arrow": [], "spark": ["iceberg.append"]}[warehouse.engine]
    assert not warehouse.exists("people")


@pytest.mark.requirement("S2-US7.3", "S2-FR-041", "S2-SC-007")
def test_an_input_without_a_table_leaves_its_spans(warehouse: Warehouse, recorder: SpanRecorder) -> None:
    @asset(partitions_def=REGIONS)
    def report(sales: warehouse.frame_type) -> None:  # type: ignore[name-defined]
        del sales

    result = warehouse.run([sales(warehouse), report], "eu", selection=[report], raise_on_error=False)

    run = of_run(result, "report")
    loading = {"operation": "load_table", "engine": "pyiceberg", **OF_TABLE, **run}
    assert recorder.trees() == [
        SpanTree(
            "iceberg.load_input",
            {"operation": "load_input", "engine": warehouse.engine, **OF_TABLE, **run},
            error="NoSuchTableError",
            children=[SpanTree("iceberg.load_table", loading, error="NoSuchTableError")],
        )
    ]


@pytest.mark.requirement("S2-US7.1")
def test_a_snapshot_leads_to_its_trace_and_its_run(warehouse: Warehouse, recorder: SpanRecorder) -> None:
    result = warehouse.run(sales(warehouse), "eu")

    (trace_id,) = recorder.trace_ids()
    summary = warehouse.table("sales").metadata.current_snapshot().summary
    assert (summary[snapshot_properties.TRACE_ID], summary["dagster.run-id"]) == (trace_id, result.run_id)
    (materialization,) = result.asset_materializations_for_node("sales")
    assert materialization.metadata["iceberg/trace_id"].value == trace_id


@pytest.mark.requirement("S2-US7.1")
def test_a_snapshot_of_an_audited_asset_leads_to_the_trace_of_its_write(
    warehouse: Warehouse, recorder: SpanRecorder
) -> None:
    @audited_asset(checks=[not_null("region")], partitions_def=REGIONS, metadata={"partition_expr": "region"})
    def sales() -> Any:
        return warehouse.frame({"region": ["eu"], "amount": [1]})

    result = warehouse.run(sales, "eu")

    (written,) = recorder.named("iceberg.write_for_audit")
    table = warehouse.table("sales").metadata
    assert written.attributes["engine"] == warehouse.engine
    assert written.attributes["dagster.run_id"] == result.run_id
    assert written.attributes["snapshot.id"] == table.current_snapshot_id
    (materialization,) = result.asset_materializations_for_node("sales")
    trace_id = table.current_snapshot().summary[snapshot_properties.TRACE_ID]
    assert trace_id in recorder.trace_ids()
    assert materialization.metadata["iceberg/trace_id"].value == trace_id


@pytest.mark.requirement("S2-FR-043")
def test_dagster_shows_one_sentence_for_each_output(
    warehouse: Warehouse, recorder: SpanRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    result = warehouse.run(sales(warehouse), "eu")

    (entry,) = [entry for entry in warehouse.instance.all_logs(result.run_id) if "snapshot" in entry.user_message]
    snapshot = warehouse.table("sales").metadata.current_snapshot_id
    assert (entry.level, entry.step_key) == (20, "sales")
    # As in: public.sales eu: 2 rows in 1 file (1.2 KiB), snapshot 6625, 0.02 s
    assert re.fullmatch(
        rf"public\.sales eu: 2 rows in 1 file \([\d.]+ K?i?B\), snapshot {snapshot}, \d+\.\d\d s", entry.user_message
    )
    (record,) = [record for record in caplog.records if hasattr(record, "iceberg")]
    (trace_id,) = recorder.trace_ids()
    fields = record.iceberg
    assert (fields["event"], fields["records_added"], fields["trace_id"]) == ("iceberg.handle_output", 2, trace_id)
    assert fields["dagster_run_id"] == result.run_id


def test_dagster_shows_one_sentence_for_each_input(warehouse: Warehouse) -> None:
    @asset
    def report(sales: Any) -> Any:
        return sales

    warehouse.run(sales(warehouse), "eu")
    result = warehouse.run([sales(warehouse), report], selection=[report])

    (entry,) = [
        each for each in warehouse.instance.all_logs(result.run_id) if each.user_message.startswith("public.sales")
    ]
    assert re.fullmatch(
        r"public\.sales \S+: (2 rows read|opened as pyspark\S*DataFrame), \d+\.\d\d s", entry.user_message
    )


def test_dagster_shows_one_sentence_for_an_output_that_fails(
    warehouse: Warehouse, caplog: pytest.LogCaptureFixture
) -> None:
    @asset
    def items() -> Any:
        return 7

    caplog.set_level(logging.WARNING)
    result = warehouse.run(items, raise_on_error=False)

    (entry,) = [each for each in warehouse.instance.all_logs(result.run_id) if each.level == logging.WARNING]
    assert entry.user_message.startswith("iceberg.handle_output failed: The value of asset 'items' is of type int")
    assert "event=" not in entry.user_message
    (record,) = [record for record in caplog.records if hasattr(record, "iceberg")]
    assert (record.iceberg["status"], record.iceberg["error_type"]) == ("error", "ValidationError")

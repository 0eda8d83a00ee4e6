"""What operations of the manager report besides the spans that the contract tests compare: counts, log events."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import structlog
from structlog.testing import capture_logs
from support.lake import Lake
from support.span_tree import SpanRecorder

from floe_dagster_iceberg.errors import FloeStorageError, NoSuchTableError, ValidationError
from floe_dagster_iceberg.models import WriteConfig, WriteMode, snapshot_properties
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.telemetry import setup

TABLE = "bronze.orders"
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
Call = Callable[[IcebergTableManager], object]


@pytest.fixture
def traced(lake: Lake, recorder: SpanRecorder) -> IcebergTableManager:
    """A manager with its own spans, beside a table with rows."""
    quiet = IcebergTableManager(lake.catalog)
    quiet.create_table(TABLE, ROWS.schema)
    quiet.append(TABLE, ROWS)
    return IcebergTableManager(lake.catalog, tracer=recorder.tracer)


@pytest.mark.requirement("S2-FR-042", "S1-T069-76")
def test_a_write_reports_mode_strategy_and_counts(traced: IcebergTableManager, recorder: SpanRecorder) -> None:
    traced.append(TABLE, ROWS)
    traced.upsert(TABLE, ROWS.slice(0, 1), ["id"])
    snapshot = traced.write_data(TABLE, ROWS, WriteConfig(mode=WriteMode.OVERWRITE, commit_strategy="merge_commit"))

    attributes = [tree.attributes for tree in recorder.trees()]
    assert [(span["write.mode"], span["commit.strategy"], span["records.added"]) for span in attributes] == [
        ("append", "fast_append", 3),
        ("upsert", "fast_append", 0),
        ("overwrite", "merge_commit", 3),
    ]
    assert (attributes[-1]["snapshot.id"], attributes[-1]["records.removed"]) == (snapshot.snapshot_id, 6)


@pytest.mark.requirement("S2-US7.3", "S2-FR-041")
@pytest.mark.parametrize("call", [lambda manager: manager.append(5, ROWS), lambda manager: manager.write_data(TABLE)])
def test_a_call_that_is_invalid_has_a_span_as_well(
    traced: IcebergTableManager, recorder: SpanRecorder, call: Call
) -> None:
    with pytest.raises((FloeStorageError, TypeError)) as failure:
        call(traced)

    (tree,) = recorder.trees()
    assert tree.error == failure.type.__name__


@pytest.mark.requirement("S2-US7.1")
def test_each_snapshot_leads_to_the_trace_that_made_it(
    lake: Lake, traced: IcebergTableManager, recorder: SpanRecorder
) -> None:
    traced.append(TABLE, ROWS)
    traced.delete(TABLE, "id = 1")
    traced.overwrite(TABLE, ROWS)

    # The first snapshot was made without a tracer.
    first, *others = lake.table(TABLE).metadata.snapshots
    assert snapshot_properties.TRACE_ID not in first.summary.additional_properties
    assert {snapshot.summary[snapshot_properties.TRACE_ID] for snapshot in others} == recorder.trace_ids()
    assert len(recorder.trace_ids()) == 3


@pytest.mark.requirement("S2-FR-043")
def test_each_operation_is_one_log_event_with_its_duration(lake: Lake) -> None:
    with capture_logs() as events:
        manager = IcebergTableManager(lake.catalog, logger=structlog.get_logger())
        manager.create_table(TABLE, ROWS.schema)
        manager.append(TABLE, ROWS)
        with pytest.raises(NoSuchTableError):
            manager.scan("bronze.nothing")
    structlog.reset_defaults()

    assert [(event["event"], event["log_level"], event["status"]) for event in events] == [
        ("iceberg.create_table", "info", "ok"),
        ("iceberg.append", "info", "ok"),
        ("iceberg.scan", "warning", "error"),
    ]
    assert all(event["duration_seconds"] >= 0 for event in events)
    assert [event["table_identifier"] for event in events] == [TABLE, TABLE, "bronze.nothing"]
    assert (events[1]["write_mode"], events[1]["records_added"]) == ("append", 3)
    assert (events[2]["error_type"], "bronze.nothing" in events[2]["message"]) == ("NoSuchTableError", True)


@pytest.mark.requirement("S2-FR-043")
def test_a_log_event_has_the_fields_and_the_ids_of_its_span(lake: Lake, recorder: SpanRecorder) -> None:
    with capture_logs() as events:
        manager = IcebergTableManager(lake.catalog, tracer=recorder.tracer, logger=structlog.get_logger())
        manager.create_table(TABLE, ROWS.schema)
    structlog.reset_defaults()

    (event,), (span,) = events, recorder.exporter.get_finished_spans()
    fields = {name.replace(".", "_"): value for name, value in (span.attributes or {}).items()}
    ids = {"trace_id": f"{span.context.trace_id:032x}", "span_id": f"{span.context.span_id:016x}"}
    rest = {"event": span.name, "log_level": "info", "duration_seconds": event["duration_seconds"]}
    assert event == fields | ids | rest


@pytest.mark.requirement("S2-FR-043")
def test_without_structlog_the_events_go_to_pythons_logging(
    lake: Lake, manager: IcebergTableManager, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="floe_dagster_iceberg"):
        manager.create_table(TABLE, ROWS.schema)

    assert lake.catalog.table_exists(TABLE)
    assert [record.name for record in caplog.records] == ["floe_dagster_iceberg"]
    assert "event='iceberg.create_table'" in caplog.text
    assert f"table_identifier='{TABLE}'" in caplog.text


@pytest.fixture
def _json(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(setup._process, "log_format", None)
    monkeypatch.setenv(setup.FORMAT_VARIABLE, "json")
    return


@pytest.mark.requirement("S2-FR-043")
@pytest.mark.usefixtures("_json")
def test_events_are_json_if_asked_for(manager: IcebergTableManager, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="floe_dagster_iceberg"):
        manager.create_table(TABLE, ROWS.schema)
        setup.set_log_format("console")
        manager.list_tables("bronze")

    first, second = caplog.messages
    event = json.loads(first)
    assert (event["event"], event["level"], event["table_identifier"]) == ("iceberg.create_table", "info", TABLE)
    assert second.startswith("event='iceberg.list_tables'")


def test_an_unknown_log_format_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"'xml' is not known\. Use one of: console, json"):
        setup.set_log_format("xml")  # type: ignore[arg-type]


def test_an_error_prints_nothing_of_its_own(tmp_path: Path) -> None:
    script = (
        "from floe_dagster_iceberg import IcebergResource, errors\n"
        "try: IcebergResource().table_manager.load_table('shop.gone')\n"
        "except errors.NoSuchTableError: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("", "")

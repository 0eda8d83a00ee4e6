"""Every operation leaves one span, one log event and its numbers, and none of them shows a data value."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
import structlog
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from services.lake import Lake
from structlog.testing import capture_logs

from floe_dagster_iceberg.errors import CatalogConnectionError, FloeStorageError, NoSuchTableError
from floe_dagster_iceberg.models import SchemaChange, SchemaChangeType, SchemaEvolution, WriteConfig, WriteMode
from floe_dagster_iceberg.table.manager import IcebergTableManager

TABLE = "bronze.orders"
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
ADD_NOTE = SchemaEvolution(
    changes=[SchemaChange(change_type=SchemaChangeType.ADD_COLUMN, column_name="note", new_type="string")]
)


class Unreachable:
    """A catalog plugin that nobody can reach."""

    name = "unreachable"

    def connect(self, config: Mapping[str, str]) -> Any:
        raise ConnectionError(f"no way there with {len(config)} properties")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(lake: Lake, spans: InMemorySpanExporter) -> IcebergTableManager:
    """A manager with its own spans, beside a table with a few snapshots and refs."""
    quiet = IcebergTableManager(lake.catalog)
    quiet.create_table(TABLE, ROWS.schema)
    quiet.append(TABLE, ROWS)
    quiet.create_tag(TABLE, "v1")
    quiet.append(TABLE, ROWS, branch="staging")
    return IcebergTableManager(lake.catalog, tracer=tracer_into(spans))


def tracer_into(spans: InMemorySpanExporter) -> Any:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


Call = Callable[[IcebergTableManager], object]
CALLS: dict[str, Call] = {
    "append": lambda manager: manager.append(TABLE, ROWS),
    "compact_table": lambda manager: manager.compact_table(TABLE),
    "create_branch": lambda manager: manager.create_branch(TABLE, "b"),
    "create_namespace": lambda manager: manager.create_namespace("silver"),
    "create_table": lambda manager: manager.create_table("bronze.other", ROWS.schema),
    "create_table_if_not_exists": lambda manager: manager.create_table_if_not_exists(TABLE, ROWS.schema),
    "create_tag": lambda manager: manager.create_tag(TABLE, "t"),
    "delete": lambda manager: manager.delete(TABLE, "id = 1"),
    "drop_namespace": lambda manager: manager.drop_namespace("empty"),
    "drop_table": lambda manager: manager.drop_table(TABLE),
    "evolve_partition_spec": lambda manager: manager.evolve_partition_spec(TABLE, add=["name"]),
    "evolve_schema": lambda manager: manager.evolve_schema(TABLE, ADD_NOTE),
    "expire_snapshots": lambda manager: manager.expire_snapshots(TABLE),
    "fast_forward": lambda manager: manager.fast_forward(TABLE, "main", "staging"),
    "get_current_snapshot": lambda manager: manager.get_current_snapshot(TABLE),
    "list_namespaces": lambda manager: manager.list_namespaces(),
    "list_snapshots": lambda manager: manager.list_snapshots(TABLE),
    "list_tables": lambda manager: manager.list_tables("bronze"),
    "load_table": lambda manager: manager.load_table(TABLE),
    "namespace_exists": lambda manager: manager.namespace_exists("bronze"),
    "overwrite": lambda manager: manager.overwrite(TABLE, ROWS),
    "register_table": lambda manager: manager.register_table(
        "bronze.again", manager.catalog.load_table(TABLE).metadata_location
    ),
    "remove_ref": lambda manager: manager.remove_ref(TABLE, "v1"),
    "rollback_to_snapshot": lambda manager: manager.rollback_to_snapshot(
        TABLE, manager.catalog.load_table(TABLE).metadata.snapshots[0].snapshot_id
    ),
    "rollback_to_timestamp": lambda manager: manager.rollback_to_timestamp(TABLE, datetime.now(UTC)),
    "scan": lambda manager: manager.scan(TABLE),
    "scan_batches": lambda manager: manager.scan_batches(TABLE).read_all(),
    "table_exists": lambda manager: manager.table_exists(TABLE),
    "upsert": lambda manager: manager.upsert(TABLE, ROWS, ["id"]),
    "write_data": lambda manager: manager.write_data(TABLE, ROWS),
}
# It does nothing by itself; what is called on it has spans.
SILENT = {"manage_snapshots"}


def span_name(method: str) -> str:
    return f"iceberg.{method.removesuffix('_if_not_exists')}"


def test_every_public_method_is_called_here() -> None:
    public = {name for name, _ in inspect.getmembers(IcebergTableManager, inspect.isfunction) if name[0] != "_"}

    assert public == CALLS.keys() | SILENT


@pytest.mark.requirement("S2-US7.1", "S2-FR-041", "S2-FR-042", "S2-SC-007", "S1-T069-76", "S3-5")
@pytest.mark.parametrize("method", CALLS)
def test_each_operation_has_one_span_with_its_name_table_and_status(
    lake: Lake, traced: IcebergTableManager, spans: InMemorySpanExporter, method: str
) -> None:
    lake.catalog.create_namespace("empty")

    CALLS[method](traced)

    (span,) = spans.get_finished_spans()
    assert span.name == span_name(method)
    assert span.status.status_code is StatusCode.OK
    assert span.attributes["operation"] == method.removesuffix("_if_not_exists")
    assert span.attributes["status"] == "ok"
    assert "table.identifier" in span.attributes or "namespace" in span.attributes
    assert span.end_time > span.start_time


@pytest.mark.requirement("S2-US7.3", "S2-FR-041", "S2-SC-007")
@pytest.mark.parametrize("method", [method for method in CALLS if "catalog" not in inspect.getsource(CALLS[method])])
def test_each_failure_has_one_span_with_its_kind_and_reason(spans: InMemorySpanExporter, method: str) -> None:
    manager = IcebergTableManager(Unreachable(), tracer=tracer_into(spans))

    with pytest.raises(CatalogConnectionError):
        CALLS[method](manager)

    (span,) = spans.get_finished_spans()
    (event,) = span.events
    assert (span.name, span.status.status_code) == (span_name(method), StatusCode.ERROR)
    assert span.attributes["status"] == "error"
    assert event.attributes["exception.type"] == "CatalogConnectionError"
    assert "unreachable" in event.attributes["exception.message"] == span.status.description


@pytest.mark.requirement("S2-FR-042", "S1-T069-76")
def test_a_write_tells_mode_strategy_and_counts(traced: IcebergTableManager, spans: InMemorySpanExporter) -> None:
    traced.append(TABLE, ROWS)
    traced.upsert(TABLE, ROWS.slice(0, 1), ["id"])
    snapshot = traced.write_data(TABLE, ROWS, WriteConfig(mode=WriteMode.OVERWRITE, commit_strategy="merge_commit"))

    told = [dict(span.attributes) for span in spans.get_finished_spans()]
    assert [(span["write.mode"], span["commit.strategy"]) for span in told] == [
        ("append", "fast_append"),
        ("upsert", "fast_append"),
        ("overwrite", "merge_commit"),
    ]
    assert [span["records.added"] for span in told] == [3, 0, 3]
    assert (
        told[-1]
        | {
            "table.identifier": TABLE,
            "snapshot.id": snapshot.snapshot_id,
            "snapshot.operation": "overwrite",
            "files.added": 1,
        }
        == told[-1]
    )


@pytest.mark.requirement("S2-US7.3", "S2-FR-041")
@pytest.mark.parametrize("call", [lambda manager: manager.append(5, ROWS), lambda manager: manager.write_data(TABLE)])
def test_a_call_that_makes_no_sense_has_a_span_as_well(
    traced: IcebergTableManager, spans: InMemorySpanExporter, call: Call
) -> None:
    with pytest.raises((FloeStorageError, TypeError)):
        call(traced)

    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


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
    assert (events[1]["write_mode"], events[2]["error"]) == ("append", "NoSuchTableError")


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


class BrokenLogger:
    """A logger whose every word fails."""

    def info(self, *_: object, **__: object) -> None:
        raise OSError("the log is full")

    warning = info


@pytest.mark.parametrize("logger", [BrokenLogger(), logging.getLogger("plain")], ids=["broken", "standard library"])
def test_a_logger_that_fails_does_not_make_a_commit_fail(lake: Lake, logger: object) -> None:
    manager = IcebergTableManager(lake.catalog, logger=logger)
    manager.create_table(TABLE, ROWS.schema)

    manager.append(TABLE, ROWS)

    assert len(lake.rows(TABLE)) == 3
    with pytest.raises(NoSuchTableError):
        manager.append("bronze.nothing", ROWS)


@pytest.fixture(scope="module")
def numbers() -> Iterator[InMemoryMetricReader]:
    """What the process counts; OpenTelemetry lets a provider be set only once."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


def points(reader: InMemoryMetricReader, metric: str) -> dict[tuple[object, ...], Any]:
    data = reader.get_metrics_data()
    return {
        tuple(point.attributes.values()): point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for found in scope.metrics
        if found.name == metric
        for point in found.data.data_points
    }


@pytest.mark.requirement("S2-US7.2")
def test_counts_latencies_and_error_rates_can_be_queried(
    manager: IcebergTableManager, numbers: InMemoryMetricReader
) -> None:
    manager.create_table(TABLE, ROWS.schema)
    for _ in range(3):
        manager.append(TABLE, ROWS)
    for _ in range(2):
        with pytest.raises(NoSuchTableError):
            manager.append("bronze.nothing", ROWS)

    operations, errors = points(numbers, "iceberg.operations"), points(numbers, "iceberg.errors")
    assert operations["append", "ok"].value == 3
    assert operations["append", "error"].value == 2
    assert errors["append", "NoSuchTableError"].value == 2
    assert points(numbers, "iceberg.operation.duration")[("append",)].count == 5

"""Whatever is wrong with exporters, loggers and readers of numbers, the work is done and reported as done."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import asset, materialize
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from support.lake import Lake

from floe_dagster_iceberg.errors import NoSuchTableError
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.telemetry import metrics

TABLE = "bronze.orders"
ROWS = pa.table({"id": [1, 2, 3]})


class FailsAtTheBeginning(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise OSError(f"no span may begin: {span.name} in {parent_context}")


class FailsAtTheEnd(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise OSError(f"no span may end: {span.name}")


class Unreachable(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError(f"the collector is away, and {len(spans)} spans are lost")


class BrokenLogger:
    """A logger whose every word fails."""

    def info(self, *_: object, **__: object) -> None:
        raise OSError("the log is full")

    warning = debug = info


class BrokenInstrument:
    def add(self, *_: object, **__: object) -> None:
        raise OSError("no metrics")

    record = set = add


PROCESSORS = [FailsAtTheBeginning(), FailsAtTheEnd(), SimpleSpanProcessor(Unreachable())]


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: type(processor).__name__)
def test_spans_that_fail_do_not_make_a_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: SpanProcessor
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(processor)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")

    @asset
    def numbers() -> pa.Table:
        return ROWS

    @asset
    def total(numbers: pa.Table) -> None:
        assert numbers.num_rows == 3

    result = materialize([numbers, total], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)})

    assert result.success
    assert iceberg.catalog.load_table("public.numbers").scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("logger", [BrokenLogger(), logging.getLogger("plain")], ids=["broken", "standard library"])
def test_a_logger_that_fails_does_not_make_a_commit_fail(lake: Lake, logger: object) -> None:
    manager = IcebergTableManager(lake.catalog, logger=logger)
    manager.create_table(TABLE, ROWS.schema)

    manager.append(TABLE, ROWS)

    assert len(lake.rows(TABLE)) == 3
    with pytest.raises(NoSuchTableError):
        manager.append("bronze.nothing", ROWS)


def test_metrics_that_cannot_be_recorded_do_not_make_a_commit_fail(
    lake: Lake, manager: IcebergTableManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_operations", "_durations", "_errors", "_records_written", "_bytes_written"):
        monkeypatch.setattr(metrics, name, BrokenInstrument())
    manager.create_table(TABLE, ROWS.schema)

    manager.append(TABLE, ROWS)

    assert len(lake.rows(TABLE)) == 3


def test_a_logger_of_pythons_own_gets_the_events(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="my.pipeline"):
        IcebergTableManager(lake.catalog, logger=logging.getLogger("my.pipeline")).create_table(TABLE, ROWS.schema)

    assert [(record.name, "iceberg.create_table" in record.message) for record in caplog.records] == [
        ("my.pipeline", True)
    ]

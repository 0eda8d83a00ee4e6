"""Data values stay out of spans, logs, errors and reprs, whatever goes right or wrong."""

import traceback
import uuid
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs
from support.lake import Lake
from support.rival_writer import rival_writer

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.models import WriteConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes

# Values that must not turn up anywhere. They are made here, so that no line of source code holds them.
CANARY = f"canary-{uuid.uuid4().hex}"
NUMBER = uuid.uuid4().int % 10**15 + 10**15
PEOPLE = pa.table({"id": [NUMBER, 2], "name": [CANARY, "b"]})


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def tracer_into(spans: InMemorySpanExporter) -> Any:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


def stale_overwrite(manager: IcebergTableManager, lake: Lake) -> None:
    stale = lake.table("bronze.people")
    with rival_writer(lake) as rival:
        rival.append("bronze.people", PEOPLE)
    manager.overwrite(stale, PEOPLE, overwrite_filter=f"name = '{CANARY}'")


def scan_without_files(manager: IcebergTableManager, lake: Lake) -> None:
    for path in lake.data_files():
        path.unlink()
    manager.scan("bronze.people", row_filter=f"name = '{CANARY}'")


def write_without_space(manager: IcebergTableManager, lake: Lake) -> None:
    table = lake.table("bronze.people")
    lake.warehouse.rename(lake.warehouse.with_name("gone"))
    lake.warehouse.write_text("no folder")
    manager.append(table, PEOPLE)


def upsert_many(manager: IcebergTableManager, rows: dict[str, Any], keys: list[str]) -> None:
    manager.upsert("bronze.people", pa.table(rows), keys)


LEAKS: dict[str, Callable[[IcebergTableManager, Lake], object]] = {
    "append": lambda manager, _: manager.append("bronze.people", PEOPLE),
    "filter": lambda manager, _: manager.scan("bronze.people", row_filter=f"name = '{CANARY}' and id = {NUMBER}"),
    "overwrite": lambda manager, _: manager.overwrite("bronze.people", PEOPLE, overwrite_filter=f"id = {NUMBER}"),
    "upsert": lambda manager, _: manager.upsert("bronze.people", PEOPLE, ["name"]),
    "delete": lambda manager, _: manager.delete("bronze.people", f"name = '{CANARY}'"),
    "compaction": lambda manager, _: manager.compact_table("bronze.people"),
    "filter that is none": lambda manager, _: manager.scan("bronze.people", row_filter=f"name == = '{CANARY}'"),
    "filter of another type": lambda manager, _: manager.delete("bronze.people", f"id = '{CANARY}'"),
    "filter in a config": lambda manager, _: manager.write_data(
        "bronze.people", PEOPLE, mode="append", overwrite_filter=f"name = '{CANARY}'"
    ),
    "no filter at all": lambda manager, _: manager.write_data(
        "bronze.people", PEOPLE, mode="overwrite", overwrite_filter={"type": "eq", "term": CANARY}
    ),
    "repeated key": lambda manager, _: upsert_many(manager, {"name": [CANARY, CANARY]}, ["name"]),
    "missing key": lambda manager, _: upsert_many(manager, {"name": [CANARY], "id": pa.nulls(1)}, ["id"]),
    "another type": lambda manager, _: manager.append("bronze.people", pa.table({"id": [CANARY]})),
    "lost digits": lambda manager, _: manager.append(
        "bronze.people", pa.table({"at": pa.array([NUMBER * 1000 + 1], pa.timestamp("ns"))})
    ),
    "mixed pandas": lambda manager, _: manager.append("bronze.people", pd.DataFrame({"id": [1, CANARY]})),
    "conflict": stale_overwrite,
    "missing file": scan_without_files,
    "storage that fails": write_without_space,
}


@pytest.mark.requirement("S2-FR-044")
@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_no_data_value_is_in_spans_logs_errors_and_reprs(
    lake: Lake, spans: InMemorySpanExporter, leak: Callable[[IcebergTableManager, Lake], object]
) -> None:
    with capture_logs() as events:
        manager = IcebergTableManager(lake.catalog, tracer=tracer_into(spans), logger=structlog.get_logger())
        manager.create_table("bronze.people", PEOPLE.schema)
        manager.append("bronze.people", PEOPLE)
        output = [repr(manager), repr(WriteConfig(mode="overwrite", overwrite_filter=f"name = '{CANARY}'"))]
        try:
            result = leak(manager, lake)
        except FloeStorageError as error:
            output += [*traceback.format_exception(error), repr(error), repr(error.details), repr(error.args)]
        else:
            output.append("" if isinstance(result, pa.Table) else repr(result))
    structlog.reset_defaults()

    output += [repr(events), *map(everything, spans.get_finished_spans())]
    assert [text for text in output if CANARY in text or str(NUMBER) in text] == []


def everything(span: ReadableSpan) -> str:
    return f"{span.name} {dict(span.attributes or {})} {[event.attributes for event in span.events]} {span.to_json()}"

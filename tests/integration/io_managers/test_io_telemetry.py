"""What runs leave behind in spans, logs and events never holds a value of the data."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetIn, AssetsDefinition, ExecuteInProcessResult, StaticPartitionsDefinition, asset, materialize
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource

CANARY = "canary-7f3a9b"
Run = Callable[..., ExecuteInProcessResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    location = {"catalog_uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    io_manager = ArrowIcebergIOManager(iceberg=IcebergResource(**location))

    def run(*assets: AssetsDefinition, **options: Any) -> ExecuteInProcessResult:
        return materialize(assets, resources={"io_manager": io_manager}, raise_on_error=False, **options)

    return run


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return spans


def outside() -> AssetsDefinition:
    @asset(partitions_def=StaticPartitionsDefinition(["eu"]), metadata={"partition_expr": "name"})
    def broken() -> pa.Table:
        return pa.table({"name": [CANARY]})

    return broken


def repeated() -> AssetsDefinition:
    @asset(metadata={"iceberg/upsert_keys": "name"})
    def broken() -> pa.Table:
        return pa.table({"name": [CANARY, CANARY]})

    return broken


def not_a_frame() -> AssetsDefinition:
    @asset
    def broken() -> Any:
        return [CANARY]

    return broken


def unreadable_filter() -> AssetsDefinition:
    @asset(ins={"numbers": AssetIn(metadata={"iceberg/row_filter": f"name = = '{CANARY}'"})})
    def broken(numbers: pa.Table) -> None:
        del numbers

    return broken


def filter_of_another_type() -> AssetsDefinition:
    @asset(ins={"numbers": AssetIn(metadata={"iceberg/row_filter": f"id = '{CANARY}'"})})
    def broken(numbers: pa.Table) -> None:
        del numbers

    return broken


@pytest.mark.requirement("S2-FR-044")
@pytest.mark.parametrize("build", [outside, repeated, not_a_frame, unreadable_filter, filter_of_another_type])
def test_what_goes_wrong_is_reported_without_a_value_of_the_data(
    run: Run, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, build: Callable[[], AssetsDefinition]
) -> None:
    @asset
    def numbers() -> pa.Table:
        return pa.table({"id": [1], "name": [CANARY]})

    broken = build()
    key = "eu" if broken.partitions_def is not None else None
    with caplog.at_level(logging.DEBUG):
        run(numbers)
        result = run(numbers, broken, selection=[broken], partition_key=key)

    assert not result.success
    output = [str(event) for event in result.all_events if not event.is_successful_output]
    output += [span.to_json() for span in spans.get_finished_spans()]
    assert CANARY not in "\n".join([*output, caplog.text])

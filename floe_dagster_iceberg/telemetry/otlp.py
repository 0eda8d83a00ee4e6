"""Spans and metrics to a collector, by the OpenTelemetry SDK. The only module that loads it.

A collector that is away costs a process one failed attempt of a few seconds when it ends, and
nothing while it works: sending is left to threads that never keep a process alive.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from floe_dagster_iceberg.secrets import resolve_secret, resolve_text
from floe_dagster_iceberg.telemetry.setup import TelemetrySettings

# The SDK ignores the time limit of a flush; the limit of one request is the only one that holds.
_REQUEST_SECONDS: Final = 3.0
# Long enough that the end of a run does not ask a second time, short enough for a collector that restarts.
_REST_SECONDS: Final = 10.0


class ExportBackoff:
    """Whether a collector is asked: not for a while after it failed, by spans and metrics alike."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Whether it failed a timestamp ago."""
        return time.monotonic() < self._until

    def learn(self, *, answered: bool) -> None:
        """Take note of how a request ended."""
        self._until = 0.0 if answered else time.monotonic() + _REST_SECONDS


class _Spans(OTLPSpanExporter):
    def __init__(self, backoff: ExportBackoff, **options: Any) -> None:
        super().__init__(**options)
        self._patience = backoff

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._patience.is_exhausted:
            return SpanExportResult.FAILURE
        result = super().export(spans)
        self._patience.learn(answered=result is SpanExportResult.SUCCESS)
        return result


class _Metrics(OTLPMetricExporter):
    def __init__(self, backoff: ExportBackoff, **options: Any) -> None:
        super().__init__(**options)
        self._patience = backoff

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        if self._patience.is_exhausted:
            return MetricExportResult.FAILURE
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self._patience.learn(answered=result is MetricExportResult.SUCCESS)
        return result


@dataclass(frozen=True)
class Pipelines:
    """The providers of this process that are ours; None where somebody else's was there."""

    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None

    def flush(self) -> None:
        """Send what has not been sent yet."""
        if self.tracer_provider is not None:
            self.tracer_provider.force_flush()
        if self.meter_provider is not None:
            self.meter_provider.force_flush()

    def close(self) -> None:
        """Send what has not been sent yet, and end the threads."""
        if self.tracer_provider is not None:
            self.tracer_provider.shutdown()
        if self.meter_provider is not None:
            self.meter_provider.shutdown(timeout_millis=_REQUEST_SECONDS * 1000)


def open_pipelines(settings: TelemetrySettings, *, spans: bool, numbers: bool) -> Pipelines:
    """Set the providers that are free; no request is made yet.

    Args:
        settings: The collector, and what it is reported about this process.
        spans: Whether spans are ours to send.
        numbers: Whether metrics are ours to send.

    Raises:
        SecretNotFoundError: A header or the address refers to something that is not there.
    """
    backoff, endpoint = ExportBackoff(), resolve_text(settings.endpoint)
    # gRPC takes names in lower case only.
    headers = tuple(
        (header.name.lower(), f"{header.scheme} {resolve_secret(header.secret)}".strip()) for header in settings.headers
    )
    options = {"endpoint": endpoint, "headers": headers, "timeout": _REQUEST_SECONDS}
    # Processes of one run count at the same time; what they count must not look like one counter that jumps.
    resource = Resource.create({SERVICE_INSTANCE_ID: uuid.uuid4().hex, **settings.resource})
    tracer_provider = _open_tracer_provider(settings, resource, _Spans(backoff, **options)) if spans else None
    meter_provider = None
    if numbers:
        reader = PeriodicExportingMetricReader(_Metrics(backoff, **options))
        meter_provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    if tracer_provider is not None:
        trace.set_tracer_provider(tracer_provider)
    if meter_provider is not None:
        metrics.set_meter_provider(meter_provider)
    return Pipelines(tracer_provider, meter_provider)


def _open_tracer_provider(settings: TelemetrySettings, resource: Resource, exporter: _Spans) -> TracerProvider:
    sampler = ParentBased(TraceIdRatioBased(settings.sampling_ratio))
    # Not on exit by itself: the SDK would wait half a minute for a collector that is away.
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider

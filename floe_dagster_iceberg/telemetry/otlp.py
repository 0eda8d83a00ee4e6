"""Export of spans and metrics to a collector. The only module that loads the OpenTelemetry SDK.

A collector that is down costs a process one failed attempt of a few seconds when it ends, and nothing
before: daemon threads do the sending.
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
# Long enough that the end of a run makes no second attempt, short enough for a collector that restarts.
_BACKOFF_SECONDS: Final = 10.0


class ExportBackoff:
    """Pauses requests to a collector after one failed, for spans and metrics alike."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_active(self) -> bool:
        """Whether a request has just failed."""
        return time.monotonic() < self._until

    def record(self, *, succeeded: bool) -> None:
        """Record how a request ended."""
        self._until = 0.0 if succeeded else time.monotonic() + _BACKOFF_SECONDS


class _Spans(OTLPSpanExporter):
    def __init__(self, backoff: ExportBackoff, **options: Any) -> None:
        super().__init__(**options)
        self._backoff = backoff

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._backoff.is_active:
            return SpanExportResult.FAILURE
        result = super().export(spans)
        self._backoff.record(succeeded=result is SpanExportResult.SUCCESS)
        return result


class _Metrics(OTLPMetricExporter):
    def __init__(self, backoff: ExportBackoff, **options: Any) -> None:
        super().__init__(**options)
        self._backoff = backoff

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        if self._backoff.is_active:
            return MetricExportResult.FAILURE
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self._backoff.record(succeeded=result is MetricExportResult.SUCCESS)
        return result


@dataclass(frozen=True)
class Pipelines:
    """The providers that this package has set; None where one was set already."""

    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None

    def flush(self) -> None:
        """Send pending spans and metrics."""
        if self.tracer_provider is not None:
            self.tracer_provider.force_flush()
        if self.meter_provider is not None:
            self.meter_provider.force_flush()

    def close(self) -> None:
        """Send pending spans and metrics, and stop the threads."""
        if self.tracer_provider is not None:
            self.tracer_provider.shutdown()
        if self.meter_provider is not None:
            self.meter_provider.shutdown(timeout_millis=_REQUEST_SECONDS * 1000)


def open_pipelines(settings: TelemetrySettings, *, spans: bool, numbers: bool) -> Pipelines:
    """Set a provider for spans and one for metrics, as asked for; no request is made yet.

    Raises:
        SecretNotFoundError: A header or the address refers to a secret that does not exist.
    """
    backoff, endpoint = ExportBackoff(), resolve_text(settings.endpoint)
    # gRPC only accepts lower-case names.
    headers = tuple(
        (header.name.lower(), f"{header.scheme} {resolve_secret(header.secret)}".strip()) for header in settings.headers
    )
    options = {"endpoint": endpoint, "headers": headers, "timeout": _REQUEST_SECONDS}
    # Processes of one run count concurrently; together they must not look like one counter that jumps.
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
    # We shut it down ourselves: the SDK would wait half a minute for a collector that is down.
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider

"""A collector: a real gRPC server that speaks OTLP's protocol and keeps what it is sent."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2 as metrics_pb2,
    metrics_service_pb2_grpc as metrics_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2, trace_service_pb2_grpc as trace_grpc


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived."""

    name: str
    span_id: str
    parent_id: str
    trace_id: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    status: int
    message: str


@dataclass
class Receiver:
    """What arrived so far.

    Attributes:
        endpoint: Where to send.
        headers: Headers of all requests.
        sent: All requests as bytes.
    """

    endpoint: str = ""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    _traces: list[Any] = field(default_factory=list)
    _metrics: list[Any] = field(default_factory=list)

    def spans(self) -> list[ReceivedSpan]:
        return [
            ReceivedSpan(
                name=span.name,
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                trace_id=span.trace_id.hex(),
                attributes=_plain(span.attributes),
                resource=_plain(group.resource.attributes),
                status=span.status.code,
                message=span.status.message,
            )
            for request in self._traces
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, tuple[str, list[Mapping[str, Any]]]]:
        """Kind of each metric, and the attributes of all of its points."""
        found: dict[str, tuple[str, list[Mapping[str, Any]]]] = {}
        for request in self._metrics:
            for group in request.resource_metrics:
                for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
                    kind = metric.WhichOneof("data")
                    points = [_plain(point.attributes) for point in getattr(metric, kind).data_points]
                    found.setdefault(metric.name, (kind, []))[1].extend(points)
        return found

    def metric_resources(self) -> list[Mapping[str, Any]]:
        return [_plain(group.resource.attributes) for request in self._metrics for group in request.resource_metrics]

    def keep(self, request: Any, context: grpc.ServicerContext, requests: list[Any]) -> None:
        self.headers.append({key: str(value) for key, value in context.invocation_metadata()})
        self.sent.append(request.SerializeToString())
        requests.append(request)

    @classmethod
    @contextmanager
    def start(cls) -> Iterator["Receiver"]:
        """A collector on a free port of this machine, until the block ends."""
        receiver = cls()
        server = grpc.server(ThreadPoolExecutor(max_workers=2))
        trace_grpc.add_TraceServiceServicer_to_server(_Traces(receiver), server)
        metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(receiver), server)
        receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield receiver
        finally:
            server.stop(grace=None).wait()


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the protocol's name
        self._receiver.keep(request, context, self._receiver._traces)
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the protocol's name
        self._receiver.keep(request, context, self._receiver._metrics)
        return metrics_pb2.ExportMetricsServiceResponse()


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}

"""Spans, metrics and structured logs of every public operation. Never raises, never shows a data value."""

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from opentelemetry import metrics, trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.models import SnapshotInfo

SCOPE = "floe_dagster_iceberg"

M = TypeVar("M", bound=Callable[..., Any])

_meter = metrics.get_meter(SCOPE)
_operations = _meter.create_counter("iceberg.operations", description="Operations on tables, by name and status.")
_errors = _meter.create_counter("iceberg.errors", description="Failed operations, by name and error type.")
_durations = _meter.create_histogram("iceberg.operation.duration", unit="s", description="Time of an operation.")


class Telemetry:
    """Where one manager's spans and log events go."""

    def __init__(self, tracer: Tracer | None = None, logger: Any = None) -> None:
        self._tracer, self._logger = tracer, logger

    @contextmanager
    def operation(self, name: str, attributes: dict[str, Any]) -> Iterator[Span]:
        """A span around an operation, with its outcome, duration and a log event."""
        tracer = self._tracer or trace.get_tracer(SCOPE)
        started = time.perf_counter()
        with tracer.start_as_current_span(
            f"iceberg.{name}", attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                self._failed(span, name, attributes, error, time.perf_counter() - started)
                raise
            self._succeeded(span, name, attributes, time.perf_counter() - started)

    def _succeeded(self, span: Span, name: str, attributes: dict[str, Any], seconds: float) -> None:
        span.set_attribute("status", "ok")
        span.set_status(Status(StatusCode.OK))
        _operations.add(1, {"operation": name, "status": "ok"})
        _durations.record(seconds, {"operation": name})
        self._log("info", name, attributes, status="ok", duration_seconds=round(seconds, 4))

    def _failed(self, span: Span, name: str, attributes: dict[str, Any], error: BaseException, seconds: float) -> None:
        kind = type(error).__name__
        # Only our own messages are known to hold no data value and no secret.
        message = str(error) if isinstance(error, FloeStorageError) else kind
        span.set_attribute("status", "error")
        span.set_status(Status(StatusCode.ERROR, message))
        span.add_event("exception", {"exception.type": kind, "exception.message": message})
        _operations.add(1, {"operation": name, "status": "error"})
        _errors.add(1, {"operation": name, "error": kind})
        _durations.record(seconds, {"operation": name})
        self._log(
            "warning", name, attributes, status="error", error=kind, message=message, duration_seconds=round(seconds, 4)
        )

    def _log(self, level: str, name: str, attributes: dict[str, Any], **fields: Any) -> None:
        fields = {key.replace(".", "_"): value for key, value in attributes.items()} | fields
        # What happened to the table has happened; a logger that fails must not make it look otherwise.
        with suppress(Exception):
            getattr(self._logger or _default_logger(), level)(f"iceberg.{name}", **fields)


def traced(name: str, describe: Callable[..., dict[str, Any]]) -> Callable[[M], M]:
    """Wrap a method of something that has `_telemetry` in a span.

    Args:
        name: The operation; the span is `iceberg.<name>`.
        describe: Span attributes from the method's own arguments.
    """

    def decorate(method: M) -> M:
        @functools.wraps(method)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            telemetry: Telemetry = self._telemetry
            with telemetry.operation(name, {"operation": name, **_described(describe, args, kwargs)}) as span:
                result = method(self, *args, **kwargs)
                if isinstance(result, SnapshotInfo):
                    describe_snapshot(span, result)
                return result

        return cast("M", wrapper)

    return decorate


def _described(describe: Callable[..., dict[str, Any]], args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        return describe(*args, **kwargs)
    except (AttributeError, TypeError, ValueError):
        # Arguments that make no sense: the method itself says so, inside the span.
        return {}


def annotate(attribute: str, value: str) -> None:
    """Put something on the span of the running operation that its arguments alone do not tell."""
    trace.get_current_span().set_attribute(attribute, value)


def describe_snapshot(span: Span, snapshot: SnapshotInfo) -> None:
    """Put what a commit did on its span."""
    span.set_attribute("snapshot.id", snapshot.snapshot_id)
    span.set_attribute("snapshot.operation", snapshot.operation.value)
    span.set_attribute("records.added", snapshot.added_records)
    span.set_attribute("files.added", snapshot.added_files)


def _default_logger() -> Any:
    """The user's structlog if configured, else Python's logging, so that Dagster shows the events."""
    import structlog  # noqa: PLC0415 - a quarter of a second that loading a code location should not pay

    if structlog.is_configured():
        return structlog.get_logger(SCOPE)
    return _stdlib_logger()


@functools.cache
def _stdlib_logger() -> Any:
    import structlog  # noqa: PLC0415 - as above

    return structlog.wrap_logger(
        logging.getLogger(SCOPE),
        processors=[structlog.stdlib.filter_by_level, structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.stdlib.BoundLogger,
    )

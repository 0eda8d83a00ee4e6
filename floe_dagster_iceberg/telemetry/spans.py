"""Operations: their spans, attributes, metrics and log events. Telemetry never fails the work."""

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from opentelemetry import context as otel_context, trace
from opentelemetry.trace import NonRecordingSpan, Span, Status, StatusCode, Tracer, format_span_id, format_trace_id

from floe_dagster_iceberg.models import MaintenanceResult, SnapshotInfo, TableIdentifier, snapshot_properties
from floe_dagster_iceberg.models.identifiers import join_parts, namespace_of
from floe_dagster_iceberg.secrets import message_of, redact_attributes
from floe_dagster_iceberg.telemetry import attributes as attrs, metrics
from floe_dagster_iceberg.telemetry.setup import find_listener, start_prepared

_running: ContextVar["Operation | None"] = ContextVar("floe_operation", default=None)


class Operation:
    """A running operation: the name of its span, its attributes so far, and the operation that it is part of."""

    def __init__(self, name: str, span: Span, tracer: Tracer | None, attributes: dict[str, Any]) -> None:
        self.name, self.attributes = name, attributes
        self.parent = _running.get()
        self.sentence: str | None = None
        """What the operation did, for people who read a log; its duration is added."""
        self._span, self.tracer = span, tracer
        self._error: BaseException | None = None

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; those that are None are left out."""
        for name, value in attributes.items():
            if value is not None:
                self.attributes[name] = value

    def fail(self, error: BaseException) -> None:
        """Mark the operation as failed although it returns."""
        self._error = error

    @property
    def trace_id(self) -> str | None:
        """Hexadecimal id of the trace; None without one."""
        context = self._span.get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else None

    def finish(self, error: BaseException | None, seconds: float, logger: Any, *, is_logged: bool) -> None:
        """End the span, count the operation and log it."""
        error = error or self._error
        outcome: dict[str, Any] = {attrs.STATUS: "ok" if error is None else "error"}
        if error is not None:
            outcome[attrs.ERROR_TYPE] = type(error).__name__
            if (attempts := getattr(error, "attempts", None)) is not None:
                outcome[attrs.ATTEMPTS] = attempts
        self.attributes.update(outcome)
        # The work is done; an exporter or a logger that fails must not fail it.
        with suppress(Exception):
            try:
                if self._span.is_recording():
                    self._span.set_attributes(redact_attributes(self.attributes))
                    self._span.set_status(Status(StatusCode.OK) if error is None else _failed(self._span, error))
            finally:
                self._span.end()
        # Polaris' part of an operation is not the operation.
        counted = self.name.removeprefix("iceberg.")
        metrics.count_operation(counted, seconds, error_type=outcome.get(attrs.ERROR_TYPE))
        if is_logged:
            with suppress(Exception):
                self._log(error, seconds, logger)

    def _log(self, error: BaseException | None, seconds: float, logger: Any) -> None:
        # The failure of a part may be expected by its caller, which reports it otherwise.
        level = logging.DEBUG if self.parent is not None else logging.INFO if error is None else logging.WARNING
        write = find_listener(logger, level)
        if write is None:
            return
        fields = {**redact_attributes(self.attributes), "duration_seconds": round(seconds, 4)}
        if error is not None:
            fields["message"] = message_of(error)
        elif self.sentence is not None:
            fields["message"] = f"{self.sentence}, {seconds:.2f} s"
        context = self._span.get_span_context()
        if context.is_valid:
            fields |= {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
        write(self.name, **{name.replace(".", "_"): value for name, value in fields.items()})


class Telemetry:
    """Where one object's spans and log events go.

    Args:
        tracer: OpenTelemetry tracer; that of the operation around, else the global one, if not given.
        logger: structlog's or Python's logger; the user's structlog, else Python's logging, if not given.

    Attributes:
        known: Attributes of all operations of the object.
    """

    def __init__(self, tracer: Tracer | None = None, logger: Any = None) -> None:
        self._tracer, self._logger = tracer, logger
        self.known: dict[str, Any] = {}

    @contextmanager
    def operation(
        self, name: str, attributes: Mapping[str, Any] | None = None, *, prefix: str = "iceberg", is_logged: bool = True
    ) -> Iterator[Operation]:
        """Open a span `<prefix>.<name>` and record the outcome, the duration and, unless it is a step, a log event."""
        parent = _running.get()
        tracer = self._tracer or (None if parent is None else parent.tracer)
        initial: dict[str, Any] = {attrs.OPERATION: name}
        if parent is not None:
            # Parts inherit the catalog and the run.
            initial |= {
                key: value
                for key, value in parent.attributes.items()
                if key == attrs.CATALOG or key.startswith(attrs.DAGSTER)
            }
        initial |= {**self.known, **(attributes or {})}
        span = _start_span(tracer, f"{prefix}.{name}")
        operation = Operation(f"{prefix}.{name}", span, tracer, initial)
        outer, token = _running.set(operation), otel_context.attach(trace.set_span_in_context(span))
        started, error = time.perf_counter(), None
        try:
            yield operation
        except BaseException as raised:
            error = raised
            raise
        finally:
            otel_context.detach(token)
            _running.reset(outer)
            # Attributes that became known while the operation ran, such as the catalog's name.
            for key, value in self.known.items():
                operation.attributes.setdefault(key, value)
            operation.finish(error, time.perf_counter() - started, self._logger, is_logged=is_logged)


def step(name: str, attributes: Mapping[str, Any] | None = None) -> AbstractContextManager[Operation]:
    """Open a span for a part of the running operation, without a log event."""
    return _STEPS.operation(name, attributes, is_logged=False)


def running_operation() -> Operation | None:
    """Return the operation that this code is part of."""
    return _running.get()


def annotate(attributes: Mapping[str, Any]) -> None:
    """Add attributes to the running operation."""
    if (operation := _running.get()) is not None:
        operation.set_attributes(attributes)


def describe_table(identifier: object) -> dict[str, Any]:
    """Return the attributes of a table, given as text, identifier or PyIceberg's tuple."""
    match identifier:
        case tuple():
            return {attrs.TABLE: join_parts(identifier), attrs.NAMESPACE: join_parts(identifier[:-1])}
        case TableIdentifier():
            return {attrs.TABLE: str(identifier), attrs.NAMESPACE: identifier.namespace}
        case _:
            return {attrs.TABLE: str(identifier), attrs.NAMESPACE: namespace_of(str(identifier))}


def describe_snapshot(snapshot: SnapshotInfo) -> dict[str, Any]:
    """Return the attributes of a snapshot."""
    return {attrs.SNAPSHOT_ID: snapshot.snapshot_id, attrs.SNAPSHOT_OPERATION: snapshot.operation.value}


def describe_written(snapshot: SnapshotInfo) -> dict[str, Any]:
    """Return the attributes of a commit that changed rows."""
    return {
        **describe_snapshot(snapshot),
        attrs.RECORDS_ADDED: snapshot.added_records,
        attrs.RECORDS_REMOVED: snapshot.deleted_records,
        attrs.FILES_ADDED: snapshot.added_files,
        attrs.FILES_REMOVED: snapshot.deleted_files,
        attrs.BYTES_ADDED: snapshot.added_bytes,
    }


def trace_properties() -> dict[str, str]:
    """Return the snapshot property that links to the current trace; empty without one."""
    context = trace.get_current_span().get_span_context()
    return {snapshot_properties.TRACE_ID: format_trace_id(context.trace_id)} if context.is_valid else {}


def _start_span(tracer: Tracer | None, name: str) -> Span:
    # A span processor of the user may fail; the work must not.
    with suppress(Exception):
        if tracer is None:
            start_prepared()
            tracer = trace.get_tracer(attrs.SCOPE)
        return tracer.start_span(name)
    return NonRecordingSpan(trace.get_current_span().get_span_context())


def _failed(span: Span, error: BaseException) -> Status:
    message = message_of(error)
    span.add_event("exception", {attrs.EXCEPTION_TYPE: type(error).__name__, attrs.EXCEPTION_MESSAGE: message})
    return Status(StatusCode.ERROR, message)


_STEPS = Telemetry()
M = TypeVar("M", bound=Callable[..., Any])
Describe = Callable[..., Mapping[str, Any]]
Report = Callable[[Operation, Any], None]


def set_snapshot_attributes(operation: Operation, result: Any) -> None:
    """Report the snapshot that an operation returned, if it returned one."""
    if isinstance(result, SnapshotInfo):
        operation.set_attributes(describe_snapshot(result))


def set_written_attributes(operation: Operation, result: Any) -> None:
    """Report and count what the snapshot that an operation returned did to the rows."""
    if isinstance(result, SnapshotInfo):
        operation.set_attributes(describe_written(result))
        metrics.count_written(operation.attributes)


def set_maintenance_attributes(operation: Operation, result: Any) -> None:
    """Report and count what maintenance did to a table."""
    if isinstance(result, MaintenanceResult):
        operation.set_attributes(
            {
                attrs.ENGINE: result.engine.value,
                attrs.MAINTENANCE_OPERATION: result.operation.value,
                attrs.MAINTENANCE_STATUS: result.status.value,
                attrs.FILES_REMOVED: result.files_removed,
                attrs.BYTES_REMOVED: result.bytes_removed,
                attrs.FILES_ADDED: result.files_added,
                attrs.BYTES_ADDED: result.bytes_added,
                attrs.SNAPSHOTS_EXPIRED: result.snapshots_expired,
                attrs.SNAPSHOT_ID: result.snapshot_id_after,
            }
        )
        metrics.count_maintenance(result)


def traced(name: str, describe: Describe, *, report: Report = set_snapshot_attributes) -> Callable[[M], M]:
    """Make a method an operation of its object, which has `_telemetry`.

    Args:
        name: The operation; the span is `iceberg.<name>`.
        describe: Attributes from the method's arguments.
        report: Sets attributes from the method's result.
    """

    def open_operation(self: Any, *args: Any, **kwargs: Any) -> AbstractContextManager[Operation]:
        telemetry: Telemetry = self._telemetry
        return telemetry.operation(name, _described(describe, args, kwargs))

    return _run_in(open_operation, report)


def traced_step(name: str, describe: Describe, *, report: Report = set_snapshot_attributes) -> Callable[[M], M]:
    """Make a function a step of the operation that calls it: a span, but no log event.

    Args:
        name: The step; the span is `iceberg.<name>`.
        describe: Attributes from the function's arguments.
        report: Sets attributes from the function's result.
    """

    def open_step(*args: Any, **kwargs: Any) -> AbstractContextManager[Operation]:
        return step(name, _described(describe, args, kwargs))

    return _run_in(open_step, report)


def _run_in(open_operation: Callable[..., AbstractContextManager[Operation]], report: Report) -> Callable[[M], M]:
    def decorate(function: M) -> M:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with open_operation(*args, **kwargs) as operation:
                result = function(*args, **kwargs)
                # The work is done; a report that fails must not fail it.
                with suppress(Exception):
                    report(operation, result)
                return result

        return cast("M", wrapper)

    return decorate


def _described(describe: Describe, args: Any, kwargs: Any) -> Mapping[str, Any]:
    try:
        return describe(*args, **kwargs)
    except (AttributeError, TypeError, ValueError):
        # The arguments are invalid: the function itself raises that, inside the span.
        return {}

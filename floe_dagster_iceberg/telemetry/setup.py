"""Where the spans, metrics and log events of this process go.

`prepare` only stores the settings. The first operation loads the OpenTelemetry SDK and connects to the
collector: code locations load quickly, and a forked process starts its own exporters. Providers that are set
already stay, and so does the environment. Log events go through Python's logging, which is never configured
here, so that Dagster's log viewer shows them. Nothing here fails or delays the work being observed.
"""

import atexit
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from opentelemetry import metrics, trace

from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.secrets import message_of
from floe_dagster_iceberg.telemetry.attributes import SCOPE

if TYPE_CHECKING:
    from floe_dagster_iceberg.telemetry.otlp import Pipelines

LogFormat: TypeAlias = Literal["console", "json"]
FORMAT_VARIABLE: Final = "FLOE_LOG_FORMAT"

_logger = logging.getLogger(SCOPE)


@dataclass(frozen=True)
class SecretHeader:
    """A header whose value is a secret, in any form that `secrets` reads, after a scheme such as `Bearer`."""

    name: str
    secret: str = field(repr=False)
    scheme: str = ""


@dataclass(frozen=True)
class TelemetrySettings:
    """The collector, and the resource attributes of this process.

    Attributes:
        endpoint: Address of an OTLP collector that speaks gRPC, such as `http://collector:4317`.
        resource: Resource attributes of all spans and metrics.
        headers: Headers of every request.
        sampling_ratio: Share of traces that are sent, from 0 to 1. Metrics count everything.
    """

    endpoint: str = field(repr=False)
    resource: Mapping[str, str] = field(default_factory=dict)
    headers: Sequence[SecretHeader] = ()
    sampling_ratio: float = 1.0


class _Process:
    """State of this process: the settings until they are used, then the pipelines."""

    def __init__(self) -> None:
        self.wanted: TelemetrySettings | None = None
        self.pipelines: Pipelines | None = None
        self.log_format: LogFormat | None = None
        self.lock = threading.Lock()


_process = _Process()


def prepare(settings: TelemetrySettings | None) -> None:
    """Let the first operation of this process start telemetry; None cancels that."""
    with _process.lock:
        _process.wanted = settings if _process.pipelines is None else None


def start_prepared() -> None:
    """Start what was prepared; if nothing was, this only reads a variable."""
    if _process.wanted is None:
        return
    with _process.lock:
        if _process.wanted is None:
            return
        try:
            _process.pipelines = _start(_process.wanted)
        finally:
            # Last, so that other threads wait for the provider instead of losing their first span.
            _process.wanted = None


def flush() -> None:
    """Send pending spans and metrics, for a few seconds at most; providers set by others are not flushed."""
    if _process.pipelines is not None:
        # The SDK raises plain exceptions, and a run that did its work must not fail at its end.
        with suppress(Exception):
            _process.pipelines.flush()


def set_log_format(log_format: LogFormat) -> None:
    """Set the format of log events for this process; the default is `$FLOE_LOG_FORMAT`, else 'console'.

    Raises:
        ValidationError: There is no such format.
    """
    if log_format not in get_args(LogFormat):
        raise ValidationError(f"Log format '{log_format}' is not known. Use one of: {', '.join(get_args(LogFormat))}.")
    _process.log_format = log_format


def find_listener(logger: Any, level: int) -> Callable[..., None] | None:
    """Return the function that logs an event and its fields; None if the level is disabled.

    Args:
        logger: structlog's or Python's logger. None: the user's structlog if it is configured, else
            Python's logger of this package.
        level: Level of Python's logging.
    """
    if logger is None:
        # It cannot be configured before it is loaded, and loading it takes a quarter of a second.
        structlog = sys.modules.get("structlog")
        logger = structlog.get_logger(SCOPE) if structlog is not None and structlog.is_configured() else _logger
    if isinstance(logger, logging.Logger):
        # Without a handler, Python would print a warning to standard error, before the exception that says the same.
        if not logger.isEnabledFor(level) or not logger.hasHandlers():
            return None
        logger = _structured(logger, _process.log_format or os.environ.get(FORMAT_VARIABLE))
    listener: Callable[..., None] = getattr(logger, logging.getLevelName(level).lower())
    return listener


def _render(logger: Any, method: str, event: Any) -> Any:
    """A sentence if the event has one, with all fields as attribute `iceberg` of the log record; else all fields."""
    import structlog  # noqa: PLC0415 - as below

    if "message" not in event:
        return structlog.processors.KeyValueRenderer(key_order=["event"])(logger, method, event)
    sentence = event["message"] if event.get("status") == "ok" else f"{event['event']} failed: {event['message']}"
    return (sentence,), {"extra": {"iceberg": dict(event)}}


@functools.cache
def _structured(logger: logging.Logger, log_format: str | None) -> Any:
    import structlog  # noqa: PLC0415 - a quarter of a second that loading a code location should not pay

    if log_format == "json":
        processors: list[Any] = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        processors = [_render]
    return structlog.wrap_logger(logger, processors=processors, wrapper_class=structlog.stdlib.BoundLogger)


def _start(settings: TelemetrySettings) -> "Pipelines | None":
    spans = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    # The API has no public way to see that no meter provider has been set.
    numbers = type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider"
    if not (spans or numbers) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from floe_dagster_iceberg.telemetry.otlp import open_pipelines  # noqa: PLC0415 - a third of a second
    except ImportError as error:
        _logger.warning(
            "The compiled artifacts ask for telemetry, and '%s' is not installed: none is sent. "
            "Install 'floe-dagster-iceberg[telemetry]', or set observability.telemetry.enabled to false.",
            error.name,
        )
        return None
    try:
        pipelines = open_pipelines(settings, spans=spans, numbers=numbers)
    except (FloeStorageError, OSError, RuntimeError, TypeError, ValueError) as error:
        _logger.warning(
            "Telemetry could not be started (%s): none is sent. Check observability.telemetry of the artifacts.",
            message_of(error),
        )
        return None
    atexit.register(_close, pipelines)
    return pipelines


def _close(pipelines: "Pipelines") -> None:
    # The process is ending: a failure cannot be reported any more.
    with suppress(Exception):
        pipelines.close()

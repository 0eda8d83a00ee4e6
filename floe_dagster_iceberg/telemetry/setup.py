"""Where spans and metrics of this process go, when compiled artifacts name a collector.

`prepare` only remembers what is wanted. The OpenTelemetry SDK is loaded, and a collector spoken
to, by the first operation: loading a code location stays quick and quiet, and a process that a
run has forked off starts its own. Providers that somebody else has set stay, and so does the
environment. Nothing here fails or holds up what is being observed.
"""

import atexit
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.secrets import message_of
from floe_dagster_iceberg.telemetry.attributes import SCOPE

if TYPE_CHECKING:
    from floe_dagster_iceberg.telemetry.otlp import Pipelines

_logger = logging.getLogger(SCOPE)


@dataclass(frozen=True)
class SecretHeader:
    """A header whose value is a secret.

    Attributes:
        name: Name of the header.
        secret: The secret, in any of the forms that `secrets` knows.
        scheme: What stands before the secret, such as `Bearer`.
    """

    name: str
    secret: str = field(repr=False)
    scheme: str = ""


@dataclass(frozen=True)
class TelemetrySettings:
    """Which collector, and what it is reported about this process.

    Attributes:
        endpoint: Address of a collector that speaks OTLP over gRPC, such as `http://collector:4317`.
        resource: Resource attributes of all spans and metrics.
        headers: Headers of every request.
        sampling_ratio: Share of traces that are sent, from 0 to 1. Metrics count everything.
    """

    endpoint: str = field(repr=False)
    resource: Mapping[str, str] = field(default_factory=dict)
    headers: Sequence[SecretHeader] = ()
    sampling_ratio: float = 1.0


class _Process:
    """What was asked for and what came of it, once per process."""

    def __init__(self) -> None:
        self.wanted: TelemetrySettings | None = None
        self.pipelines: Pipelines | None = None
        self.lock = threading.Lock()


process = _Process()


def prepare(settings: TelemetrySettings | None) -> None:
    """Let the first operation of this process start telemetry; None takes that back."""
    with process.lock:
        process.wanted = settings if process.pipelines is None else None


def start_prepared() -> None:
    """Start what was prepared, if anything was."""
    with process.lock:
        if process.wanted is None:
            return
        try:
            process.pipelines = _start(process.wanted)
        finally:
            # Last, so that other threads wait for the provider instead of losing their first span.
            process.wanted = None


def flush() -> None:
    """Send what has not been sent yet, for a few seconds at most; only what was started here is flushed."""
    if process.pipelines is not None:
        # The SDK raises plain exceptions, and a run that did its work must not fail at its end.
        with suppress(Exception):
            process.pipelines.flush()


def _start(settings: TelemetrySettings) -> "Pipelines | None":
    spans = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    # The API has no other way to tell that no provider has been set.
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
    # Nobody is left to whom a failure could be told.
    with suppress(Exception):
        pipelines.close()

"""Spans, metrics and structured logs of every public operation. Never raises, never shows a data value."""

from floe_dagster_iceberg.telemetry.attributes import SCOPE
from floe_dagster_iceberg.telemetry.spans import (
    Operation,
    Telemetry,
    annotate,
    describe_snapshot,
    describe_table,
    describe_written,
    running_operation,
    step,
    tell_maintenance,
    tell_snapshot,
    tell_written,
    trace_properties,
    traced,
    traced_step,
)

__all__ = [
    "SCOPE",
    "Operation",
    "Telemetry",
    "annotate",
    "describe_snapshot",
    "describe_table",
    "describe_written",
    "running_operation",
    "step",
    "tell_maintenance",
    "tell_snapshot",
    "tell_written",
    "trace_properties",
    "traced",
    "traced_step",
]

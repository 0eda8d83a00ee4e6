"""Spans, metrics and log events of every public operation. Never raises, never shows a data value."""

from floe_dagster_iceberg.telemetry.attributes import SCOPE
from floe_dagster_iceberg.telemetry.spans import (
    Operation,
    Telemetry,
    annotate,
    describe_table,
    describe_written,
    running_operation,
    set_maintenance_attributes,
    set_written_attributes,
    step,
    trace_properties,
    traced,
    traced_step,
)

__all__ = [
    "SCOPE",
    "Operation",
    "Telemetry",
    "annotate",
    "describe_table",
    "describe_written",
    "running_operation",
    "set_maintenance_attributes",
    "set_written_attributes",
    "step",
    "trace_properties",
    "traced",
    "traced_step",
]

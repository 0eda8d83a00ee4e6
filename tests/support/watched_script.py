"""A process that does one operation, watched by a collector at a given address, and says what telemetry did."""

import atexit
import json
import sys
from typing import Any

from floe_dagster_iceberg.telemetry import Telemetry
from floe_dagster_iceberg.telemetry.setup import TelemetrySettings, flush, prepare


def set_own_provider() -> Any:
    from opentelemetry import trace  # noqa: PLC0415 - only with a provider of its own
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415 - as above

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    return spans


def main(endpoint: str, *, has_own: bool) -> None:
    """Do it, and print the result as the very last thing, after telemetry has been closed."""
    result: dict[str, Any] = {}
    atexit.register(lambda: print(json.dumps(result)))  # noqa: T201
    own = set_own_provider() if has_own else None
    prepare(TelemetrySettings(endpoint))
    with Telemetry().operation("load_table", {"table.identifier": "bronze.orders"}):
        pass
    flush()
    result["sdk_loaded"] = "opentelemetry.sdk.trace" in sys.modules
    result["own_spans"] = 0 if own is None else len(own.get_finished_spans())


if __name__ == "__main__":
    main(sys.argv[1], has_own=sys.argv[2:] == ["own"])

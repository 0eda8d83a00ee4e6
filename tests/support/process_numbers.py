"""The numbers that this process counts. OpenTelemetry lets a provider be set only once, so all tests share one."""

import functools
from dataclasses import dataclass
from typing import Any

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

Point = tuple[str, tuple[tuple[str, Any], ...]]


@dataclass
class ProcessNumbers:
    """What was counted since the last look."""

    reader: InMemoryMetricReader
    _before: dict[Point, float]

    def reset(self) -> None:
        """Begin to count anew."""
        self._before = {point: value for point, (value, _) in self._read().items()}

    def changed(self, metric: str) -> dict[tuple[Any, ...], float]:
        """How much each series of a metric grew; a gauge is what it is now. Keyed by the values of its attributes."""
        found = {}
        for (name, attributes), (value, is_gauge) in self._read().items():
            grown = value - (0 if is_gauge else self._before.get((name, attributes), 0))
            if name == metric and grown:
                found[tuple(attribute for _, attribute in attributes)] = grown
        return found

    def attribute_names(self) -> dict[str, set[str]]:
        """By which attributes each metric is distinguished."""
        names: dict[str, set[str]] = {}
        for metric, attributes in self._read():
            names.setdefault(metric, set()).update(name for name, _ in attributes)
        return names

    def _read(self) -> dict[Point, tuple[float, bool]]:
        data = self.reader.get_metrics_data()
        return {
            (metric.name, tuple(sorted((point.attributes or {}).items()))): _value(metric, point)
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


def _value(metric: Any, point: Any) -> tuple[float, bool]:
    if hasattr(point, "count"):
        return point.count, False
    return point.value, type(metric.data).__name__ == "Gauge"


@functools.cache
def process_numbers() -> ProcessNumbers:
    """The one reader of this process."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return ProcessNumbers(reader, {})

"""Spans as trees, so that a test compares them whole: names, attributes, outcome, parents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer, format_trace_id


class _Some:
    """Equal to every positive number: ids and sizes that no test can know beforehand."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and not isinstance(other, bool) and other > 0

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "SOME"


SOME: Any = _Some()


@dataclass
class SpanTree:
    """One span, and those below it in the order in which they began.

    Attributes:
        name: Its name.
        attributes: All its attributes, but for the status, which must fit the span's own.
        error: Type of the error that it ended with; None when it ended well.
        children: The spans below it.
    """

    name: str
    attributes: Mapping[str, Any]
    error: str | None = None
    children: list["SpanTree"] = field(default_factory=list)


class SpanRecorder:
    """Collects finished spans."""

    def __init__(self) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = provider.get_tracer("test")

    @classmethod
    def of_everything(cls, monkeypatch: pytest.MonkeyPatch) -> "SpanRecorder":
        """A recorder of all spans of the process; OpenTelemetry lets a global provider be set only once."""
        recorder = cls()
        monkeypatch.setattr(trace, "get_tracer", lambda *_, **__: recorder.tracer)
        return recorder

    def trees(self) -> list[SpanTree]:
        """What was recorded; spans that began nothing else come first."""
        spans = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        grown = {span.context.span_id: _tree(span) for span in spans if span.context is not None}
        roots = []
        for span in spans:
            assert span.context is not None
            siblings = grown[span.parent.span_id].children if span.parent is not None else roots
            siblings.append(grown[span.context.span_id])
        return roots

    def named(self, name: str) -> list[SpanTree]:
        """All of a name, wherever they stand."""
        return [tree for root in self.trees() for tree in _flat(root) if tree.name == name]

    def trace_ids(self) -> set[str]:
        spans = self.exporter.get_finished_spans()
        return {format_trace_id(span.context.trace_id) for span in spans if span.context is not None}

    def clear(self) -> None:
        self.exporter.clear()


def _flat(tree: SpanTree) -> list[SpanTree]:
    return [tree, *(found for child in tree.children for found in _flat(child))]


def _tree(span: ReadableSpan) -> SpanTree:
    attributes = dict(span.attributes or {})
    failed = span.status.status_code is StatusCode.ERROR
    assert attributes.pop("status") == ("error" if failed else "ok")
    assert (span.start_time or 0) <= (span.end_time or 0)
    if not failed:
        assert span.status.status_code is StatusCode.OK
        assert span.events == ()
        return SpanTree(span.name, attributes)
    (event,) = span.events
    exception = dict(event.attributes or {})
    assert event.name == "exception"
    assert exception == {"exception.type": attributes.pop("error.type"), "exception.message": span.status.description}
    assert span.status.description
    return SpanTree(span.name, attributes, error=str(exception["exception.type"]))

"""Values that must not turn up anywhere, and all the places where they could.

Made anew for every test, so that no line of source code holds one: a traceback quotes source code.
"""

import io
import logging
import sqlite3
import traceback
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_OWN_LOGGERS = ("floe_dagster_iceberg", "spark", "dagster")


@dataclass(frozen=True)
class Canary:
    """A word and a number that only the data holds."""

    word: str = field(default_factory=lambda: f"canary{uuid.uuid4().hex}")
    number: int = field(default_factory=lambda: uuid.uuid4().int % 10**15 + 10**15)

    def is_in(self, text: str | bytes) -> bool:
        content = text.encode(errors="replace") if isinstance(text, str) else text
        return self.word.encode() in content or str(self.number).encode() in content


@dataclass
class CapturedOutput:
    """Everything that was output during a test, by where it went.

    Attributes:
        folder: All files below it are searched, too.
        log: The records of our own loggers.
        spans: All spans.
        others: Any other output, by name.
    """

    folder: Path
    log: io.StringIO = field(default_factory=io.StringIO)
    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    others: dict[str, str | bytes] = field(default_factory=dict)
    _overlooked: str | None = None

    def places(self) -> Mapping[str, str | bytes]:
        spans = "\n".join(map(_everything, self.spans.get_finished_spans()))
        places = {"log": self.log.getvalue(), "spans": spans, **self.others, **dict(_files(self.folder))}
        return {place: self._without_overlooked(text) for place, text in places.items()}

    def places_with(self, *canaries: Canary) -> list[str]:
        """Where one of them turned up, with what stands around it."""
        places = self.places()
        return [
            f"{place}: {_around(text, canary)}"
            for canary in canaries
            for place, text in places.items()
            if canary.is_in(text)
        ]

    def overlook(self, text: str) -> None:
        """Ignore a text that another program wrote, where it appears in full."""
        self._overlooked = text

    def add_error(self, what: str, error: BaseException) -> None:
        """Everything that an error shows of itself and of what it came from."""
        texts = [*traceback.format_exception(error), repr(error), repr(error.args), repr(vars(error))]
        self.others[what] = "\n".join(texts)

    def _without_overlooked(self, text: str | bytes) -> str | bytes:
        if self._overlooked is None:
            return text
        if isinstance(text, str):
            return text.replace(self._overlooked, "")
        return text.replace(self._overlooked.encode(), b"")


@contextmanager
def capture_output(folder: Path) -> Iterator[CapturedOutput]:
    """Capture our own loggers at every level; files below the folder are read when the places are listed."""
    outputs = CapturedOutput(folder)
    handler = logging.StreamHandler(outputs.log)
    loggers = [logging.getLogger(name) for name in _OWN_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield outputs
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


def provider_into(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All files below a folder; what SQLite keeps compressed is unpacked."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield str(file.relative_to(folder)), file.read_bytes()
        if file.suffix == ".db":
            yield f"{file.relative_to(folder)}, unpacked", b"\n".join(_unpacked(file))


def _everything(span: ReadableSpan) -> str:
    return f"{span.to_json()} {[event.attributes for event in span.events]}"


def _unpacked(file: Path) -> Iterator[bytes]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - a name that SQLite gave
                yield from (_inflated(value) for value in row if isinstance(value, bytes))


def _inflated(value: bytes) -> bytes:
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


def _around(text: str | bytes, canary: Canary) -> str:
    content = text if isinstance(text, str) else text.decode(errors="replace")
    at = next(at for at in (content.find(canary.word), content.find(str(canary.number))) if at >= 0)
    return content[max(0, at - 300) : at + 200]

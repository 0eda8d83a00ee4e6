"""A real HTTP proxy before a real server: it logs requests, makes them wait, and does to them what a test wants."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Self
from urllib.parse import urlsplit

from support.servers.faults import JSON, Fault, FaultPlan, FaultyHandler, LoopbackServer, Seen
from support.servers.request_log import Kind, RequestLog

# Servers hang up on connections that say nothing for long.
_LONGEST_IDLE_SECONDS = 5.0
_UPSTREAM_TIMEOUT_SECONDS = 60.0
_LATE_SECONDS = 0.15
_OWN_TO_A_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "proxy-connection"})


@dataclass(frozen=True)
class Response:
    """The response of a server."""

    status: int
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))


class Upstream:
    """A connection to the server behind, kept for as long as the client keeps its own."""

    def __init__(self, uri: str) -> None:
        self._host = urlsplit(uri).netloc
        self._connection: HTTPConnection | None = None
        self._last_used = 0.0

    def ask(self, seen: Seen) -> Response:
        """Send a request on, and wait for the response."""
        connection = self._open()
        headers = {key: value for key, value in seen.headers.items() if key not in _OWN_TO_A_CONNECTION}
        try:
            connection.request(seen.method, seen.path, body=seen.body or None, headers=headers)
            response = connection.getresponse()
            content = response.read()
        except OSError:
            self.close()
            raise
        self._last_used = time.monotonic()
        kept = {key: value for key, value in response.headers.items() if key.lower() not in _OWN_TO_A_CONNECTION}
        if seen.method != "HEAD":
            kept = {key: value for key, value in kept.items() if key.lower() != "content-length"}
        return Response(response.status, content, kept)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _open(self) -> HTTPConnection:
        if self._connection is not None and time.monotonic() - self._last_used > _LONGEST_IDLE_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = HTTPConnection(self._host, timeout=_UPSTREAM_TIMEOUT_SECONDS)
        return self._connection


class Proxy(FaultPlan):
    """Passes requests on; `respond` is where a proxy with rules of its own has them.

    Attributes:
        latency_seconds: How long every request waits before it is passed on, side by side with others.
        log: The requests so far; proxies may share one.
    """

    def __init__(self, upstream_uri: str, *, latency_seconds: float = 0.0, log: RequestLog | None = None) -> None:
        super().__init__()
        self.upstream_uri = upstream_uri.rstrip("/")
        self.latency_seconds = latency_seconds
        self.log = log if log is not None else RequestLog()
        self.uri = ""

    def kind(self, seen: Seen) -> Kind:
        """What a request is about, for the log."""
        del seen
        return "catalog"

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Serve on a free port of this machine, until the block ends."""
        with LoopbackServer(type("Handler", (_ProxyHandler,), {"proxy": self})) as server:
            self.uri = f"http://{server.address}"
            yield self

    def respond(self, seen: Seen, upstream: Upstream) -> Response:
        """The response to a request."""
        return upstream.ask(seen)

    def error(self, fault: Fault) -> Response:
        """The response that a fault's status stands for."""
        return Response(fault.status, fault.body.encode(), {**JSON, **fault.headers})


class _ProxyHandler(FaultyHandler):
    proxy: Proxy

    def setup(self) -> None:
        super().setup()
        self._upstream = Upstream(self.proxy.upstream_uri)

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = Seen(self.command, self.path, {key.lower(): value for key, value in self.headers.items()}, body)
        self._seen, self._started = seen, time.monotonic()
        self._end(seen)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _handle  # noqa: N815 - the names http.server calls

    def _end(self, seen: Seen) -> None:
        fault = self.proxy.next_fault(seen)
        time.sleep(self.proxy.latency_seconds)
        if fault is None:
            self._send(self.proxy.respond(seen, self._upstream))
            return
        time.sleep(fault.delay_seconds)
        response = None
        if fault.after_work or fault.is_only_slow:
            response = self.proxy.respond(seen, self._upstream)
        self._end_badly(fault, response, seen)

    def _end_badly(self, fault: Fault, response: Response | None, seen: Seen) -> None:
        if not fault.is_only_slow and not fault.status:
            self._log()
        if fault.hang:
            self.hang()
        elif fault.reset:
            self.reset()
        elif fault.late:
            self.reset()
            time.sleep(_LATE_SECONDS)
            self.proxy.respond(seen, self._upstream)
        elif fault.truncated:
            cut = response or Response(200, b'{"metadata-location": "cut off"}')
            self.reply_half(cut.status, cut.content, cut.headers)
        elif fault.status:
            self._send(self.proxy.error(fault))
        elif response is not None:
            self._send(response)

    def _log(self) -> None:
        """Before the client learns of the end: what it asks for next comes after this."""
        self.proxy.log.add(self._seen.method, self._seen.path, self.proxy.kind(self._seen), self._started)

    def _send(self, response: Response) -> None:
        self._log()
        self.reply(response.status, response.content, response.headers)

"""How a request to a server of the tests may end instead of well, and which requests are to."""

import re
import select
import socket
import struct
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

JSON = {"Content-Type": "application/json"}
# Longer than any client of the tests waits.
_LONGEST_HANG_SECONDS = 30.0


@dataclass(frozen=True)
class Fault:
    """How one request ends.

    Attributes:
        status: Respond with this status, `body` and `headers`.
        hang: Say nothing until the client goes away.
        reset: Reset the connection.
        truncated: Promise the whole response, send half of it, and hang up.
        late: Reset the connection now, and do what was asked shortly after.
        after_work: The request reaches the server before that, and what it asks for is done.
        delay_seconds: Wait this long first; a fault of nothing else is latency.
    """

    status: int = 0
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    reset: bool = False
    truncated: bool = False
    late: bool = False
    after_work: bool = False
    delay_seconds: float = 0.0

    @property
    def is_only_slow(self) -> bool:
        return not (self.status or self.hang or self.reset or self.truncated or self.late)

    def after(self) -> "Fault":
        """The same, once the server did what was asked."""
        return replace(self, after_work=True)


HANG = Fault(hang=True)
RESET = Fault(reset=True)
TRUNCATED = Fault(truncated=True)
LATE = Fault(late=True)


@dataclass(frozen=True)
class Seen:
    """A request as it arrived; the names of its headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FaultPlan:
    """What was asked so far, and how requests to come are to end."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._faults: list[tuple[str, re.Pattern[str], Fault, bool]] = []
        self._lock = threading.Lock()

    def fail(self, method: str, path: str, *faults: Fault) -> None:
        """The next requests of that method whose path matches end like this, one fault each."""
        self._faults += [(method, re.compile(path), fault, False) for fault in faults]

    def fail_always(self, method: str, path: str, fault: Fault) -> None:
        """All requests of that method whose path matches end like this, until `recover`."""
        self._faults.append((method, re.compile(path), fault, True))

    def recover(self) -> None:
        """From now on all goes well."""
        self._faults.clear()

    def count(self, method: str, path: str) -> int:
        """How often that was asked."""
        return len([seen for seen in self.seen if seen.method == method and re.search(path, seen.path)])

    def next_fault(self, seen: Seen) -> Fault | None:
        """How this request ends, if not well."""
        with self._lock:
            self.seen.append(seen)
            for index, (method, pattern, fault, stays) in enumerate(self._faults):
                if method == seen.method and pattern.search(seen.path):
                    if not stays:
                        del self._faults[index]
                    return fault
        return None


class FaultyHandler(BaseHTTPRequestHandler):
    """A handler that knows every way to end a request badly."""

    protocol_version = "HTTP/1.1"
    # Headers and body leave in two packets; with Nagle's algorithm the second waits for the client's acknowledgement.
    disable_nagle_algorithm = True

    def reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        """Send a response; a HEAD request gets the length and no body."""
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def reply_half(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        """Promise everything, send half, hang up."""
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def hang(self) -> None:
        """Say nothing until the client goes away."""
        select.select([self.connection], [], [], _LONGEST_HANG_SECONDS)
        self.close_connection = True

    def reset(self) -> None:
        """Break the connection, so that the client notices at once."""
        # Lingering for zero seconds makes closing send a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Keep test output clean."""


class LoopbackServer(ThreadingHTTPServer):
    """A server on a free port of this machine, a thread per connection."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """A client that went away is what these tests are about."""

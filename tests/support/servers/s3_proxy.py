"""A proxy before the S3 server: vends keys for single tables, for a while, and fails on command.

The signature of every request is checked by the server behind, which knows the keys; what a
vended key is good for, and how long, is checked here, as a cloud's token service would.
"""

import itertools
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from support.servers.faults import Fault, Seen
from support.servers.proxy import Proxy, Response, Upstream
from support.servers.request_log import Kind, RequestLog, kind_of_object
from support.servers.s3 import S3Server

XML = {"Content-Type": "application/xml"}
NO_ACCESS = Fault(403)
FULL = Fault(507)
_KEY_ID = re.compile(r"Credential=(?P<id>[^/]+)/")
_CODES = {403: "AccessDenied", 503: "SlowDown", 507: "XMinioStorageFull"}


@dataclass(frozen=True)
class Loan:
    """A vended key: for whom, and until when on the clock of this process."""

    key_id: str
    folder: str
    expires_at: float


class S3Proxy(Proxy):
    """The proxy, and what a test may change about it while it runs.

    Attributes:
        lifetime_seconds: How long keys vended from now on are good.
    """

    def __init__(self, s3: S3Server, *, latency_seconds: float = 0.0, log: RequestLog | None = None) -> None:
        super().__init__(s3.endpoint, latency_seconds=latency_seconds, log=log)
        self.lifetime_seconds = 3600.0
        self._s3 = s3
        self._spare = itertools.cycle(s3.spare_keys)
        self._loans: dict[str, Loan] = {}
        self._lock = threading.Lock()

    @classmethod
    @contextmanager
    def start(cls, s3: S3Server, *, latency_seconds: float = 0.0, log: RequestLog | None = None) -> "Iterator[S3Proxy]":
        """A proxy on a free port of this machine, until the block ends."""
        with cls(s3, latency_seconds=latency_seconds, log=log).serving() as proxy:
            yield proxy

    @property
    def endpoint(self) -> str:
        return self.uri

    @property
    def vended(self) -> list[str]:
        """Everything secret that was vended so far."""
        return [*self._loans, *(secret for _, secret in self._s3.spare_keys)]

    def vend(self, location: str) -> dict[str, str]:
        """Keys that open one table's folder and nothing else, as both engines spell them."""
        token = f"vended-session-{secrets.token_hex(16)}"
        place = urlsplit(location)
        with self._lock:
            key_id, secret = next(self._spare)
            expires_at = time.monotonic() + self.lifetime_seconds
            self._loans[token] = Loan(key_id, f"/{place.netloc}{place.path}", expires_at)
        return {
            "s3.access-key-id": key_id,
            "s3.secret-access-key": secret,
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int((time.time() + self.lifetime_seconds) * 1000)),
            "s3.region": self._s3.region,
            "client.region": self._s3.region,
        }

    def kind(self, seen: Seen) -> Kind:
        return kind_of_object(seen.method, seen.path)

    def respond(self, seen: Seen, upstream: Upstream) -> Response:
        found = _KEY_ID.search(seen.headers.get("authorization", ""))
        if found is not None and found["id"] == self._s3.access_key_id:
            return upstream.ask(seen)
        loan = self._loans.get(seen.headers.get("x-amz-security-token", ""))
        if loan is None or found is None or found["id"] != loan.key_id:
            return s3_error(403, "InvalidAccessKeyId", "that key was not vended")
        if time.monotonic() >= loan.expires_at:
            return s3_error(400, "ExpiredToken", "The provided token has expired.")
        if not _asked_for(seen).startswith(loan.folder):
            return s3_error(403, "AccessDenied", "the key is vended for another table")
        return upstream.ask(seen)

    def error(self, fault: Fault) -> Response:
        return s3_error(fault.status, _CODES.get(fault.status, "InternalError"), "scripted fault")


def s3_error(status: int, code: str, message: str) -> Response:
    """An error as S3 servers word it."""
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Response(status, body.encode(), dict(XML))


def _asked_for(seen: Seen) -> str:
    """The object, or for a listing the place that it begins with."""
    target = urlsplit(seen.path)
    prefix = parse_qs(target.query).get("prefix")
    return f"{target.path.rstrip('/')}/{prefix[0]}" if prefix else unquote(target.path)

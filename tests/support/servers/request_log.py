"""What a proxy passed on: how many requests, of which kind, and how many of them one after the other."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Kind = Literal["data", "manifest", "manifest list", "metadata", "catalog", "listing", "other"]
_LISTING = frozenset({"list-type", "uploads", "prefix"})
_DATA = (".parquet", ".orc", ".puffin")


@dataclass(frozen=True)
class LoggedRequest:
    """A request from its arrival to the last byte of its response, on the clock of this process."""

    method: str
    path: str
    kind: Kind
    started: float
    ended: float

    def __str__(self) -> str:
        return f"{self.method} {self.kind}"


@dataclass
class RequestLog:
    """The requests of one or several proxies, in the order in which they ended."""

    requests: list[LoggedRequest] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, method: str, path: str, kind: Kind, started: float) -> None:
        """Add a request that ends now."""
        with self._lock:
            self.requests.append(LoggedRequest(method, path, kind, started, monotonic()))

    @contextmanager
    def recorded(self) -> Iterator["RequestLog"]:
        """A log of the requests that end during the block; it is complete after the block."""
        with self._lock:
            before = len(self.requests)
        during = RequestLog()
        yield during
        with self._lock:
            during.requests += self.requests[before:]

    @property
    def counts(self) -> dict[str, int]:
        """How many of each method and kind, such as 'GET manifest'."""
        return dict(sorted(Counter(map(str, self.requests)).items()))

    @property
    def depth(self) -> int:
        """How many requests were made one after the other: the longest chain in which each began after the last."""
        return len(longest_chain(self.requests))

    def describe(self) -> str:
        """A line per request: when it began and ended in milliseconds, and what it was."""
        begin = min((request.started for request in self.requests), default=0.0)
        lines = (
            f"{(request.started - begin) * 1000:7.1f} {(request.ended - begin) * 1000:7.1f}  {request}  {request.path}"
            for request in sorted(self.requests, key=lambda request: request.started)
        )
        return "\n".join(lines)


def longest_chain(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """The most requests of which none overlaps another."""
    chain: list[LoggedRequest] = []
    for request in sorted(requests, key=lambda request: request.ended):
        if not chain or request.started >= chain[-1].ended:
            chain.append(request)
    return chain


def kind_of_object(method: str, path: str) -> Kind:
    """What a request to an S3 server is about."""
    target = urlsplit(path)
    if method == "GET" and not _LISTING.isdisjoint(parse_qs(target.query, keep_blank_values=True)):
        return "listing"
    name = target.path.rpartition("/")[2]
    if name.endswith(".metadata.json"):
        return "metadata"
    if name.endswith(".avro"):
        return "manifest list" if name.startswith("snap-") else "manifest"
    return "data" if name.endswith(_DATA) else "other"

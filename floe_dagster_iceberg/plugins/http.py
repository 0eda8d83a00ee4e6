"""HTTP with bounds: every request has time-outs, and only what is safe is sent again.

A request that may have reached the server is repeated only when repeating it changes
nothing: GET and HEAD. Anything else is repeated only when the server refused to look at it
(429) or when no connection came about.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter
from requests.exceptions import ChunkedEncodingError, ConnectTimeout, RequestException, SSLError, Timeout
from requests.exceptions import ConnectionError as NoConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError

from floe_dagster_iceberg.models import RetryConfig

_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Load balancers drop idle connections without a word; what is sent on one of them may or may not arrive.
_LONGEST_IDLE_SECONDS = 30.0


@dataclass(frozen=True)
class HttpPolicy:
    """How long to wait for an answer, and how often to ask."""

    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0
    total_timeout_seconds: float = 180.0
    retry: RetryConfig = field(default_factory=RetryConfig)

    def wait_before(self, attempt: int, *, jitter: float) -> float:
        """Seconds to wait before the attempt of that number; the second attempt is the first that waits.

        Args:
            attempt: Number of the attempt, from 2.
            jitter: Share of the jitter to add, between 0 and 1.
        """
        grown = self.retry.initial_wait_seconds * 2.0 ** (attempt - 2)
        return min(grown + jitter * self.retry.jitter_seconds, self.retry.max_wait_seconds)


class BoundedAdapter(BaseAdapter):
    """Sends through another adapter, within the bounds of a policy."""

    def __init__(
        self,
        inner: BaseAdapter,
        policy: HttpPolicy,
        *,
        repeat_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._inner, self._policy, self._repeat_all = inner, policy, repeat_all
        self._clock, self._sleep = clock, sleep
        self._last_used = clock()

    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]
        """Send a request, again where that is safe, until the policy's attempts or time are used up."""
        deadline = self._clock() + self._policy.total_timeout_seconds
        options.pop("timeout", None)
        attempt = 1
        while True:
            outcome = self._attempt(request, deadline, options)
            attempt += 1
            wait = self._wait_before(attempt, outcome, request)
            if wait is None or self._clock() + wait >= deadline:
                break
            if isinstance(outcome, Response):
                outcome.close()
            self._sleep(wait)
        if isinstance(outcome, RequestException):
            raise outcome
        return outcome

    def close(self) -> None:
        """Give back the connections."""
        self._inner.close()

    def _attempt(
        self, request: PreparedRequest, deadline: float, options: dict[str, Any]
    ) -> Response | RequestException:
        now = self._clock()
        if now - self._last_used > _LONGEST_IDLE_SECONDS:
            self._inner.close()
        left = max(deadline - now, 0.001)
        timeout = (min(self._policy.connect_timeout_seconds, left), min(self._policy.read_timeout_seconds, left))
        try:
            return self._inner.send(request, timeout=timeout, **options)
        except RequestException as error:
            return error
        finally:
            self._last_used = self._clock()

    def _wait_before(
        self, attempt: int, outcome: Response | RequestException, request: PreparedRequest
    ) -> float | None:
        """Seconds until the next attempt, or None when there is to be none."""
        safe = self._repeat_all or request.method in _SAFE_METHODS
        if attempt > self._policy.retry.max_attempts or not _worth_repeating(outcome, safe=safe):
            return None
        asked = _retry_after(outcome)
        # Jitter keeps many clients apart; it protects nothing, so it needs no cryptographic randomness.
        wait = self._policy.wait_before(attempt, jitter=random.random())  # noqa: S311
        return wait if asked is None else min(max(asked, wait), self._policy.retry.max_wait_seconds)


def bound_session(session: Session, policy: HttpPolicy, *, repeat_all: bool = False) -> Session:
    """Put every adapter of a session under a policy, and return the session."""
    for prefix, adapter in list(session.adapters.items()):
        session.mount(prefix, BoundedAdapter(adapter, policy, repeat_all=repeat_all))
    return session


def never_sent(error: BaseException) -> bool:
    """Whether the request cannot have reached the server: there was no connection."""
    reason: Any = error.args[0] if error.args else None
    if isinstance(reason, MaxRetryError):
        reason = reason.reason
    return isinstance(error, ConnectTimeout) or isinstance(reason, NewConnectionError)


def _worth_repeating(outcome: Response | RequestException, *, safe: bool) -> bool:
    if isinstance(outcome, Response):
        return outcome.status_code == _TOO_MANY_REQUESTS or (safe and outcome.status_code == _UNAVAILABLE)
    # A certificate that does not fit will not fit a second later.
    if isinstance(outcome, SSLError):
        return False
    return never_sent(outcome) or (safe and isinstance(outcome, NoConnection | Timeout | ChunkedEncodingError))


def _retry_after(outcome: Response | RequestException) -> float | None:
    if not isinstance(outcome, Response):
        return None
    header = outcome.headers.get("Retry-After", "")
    return float(header) if header.isdecimal() else None

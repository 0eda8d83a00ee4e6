"""HTTP with bounds: every request has time-outs, and only what is safe is sent again.

A request that may have reached the server is repeated only when repeating it changes
nothing: GET and HEAD. Anything else is repeated only when the server refused to look at it
(429) or when no connection came about.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter
from requests.exceptions import (
    ChunkedEncodingError,
    ConnectionError as NoConnection,
    ConnectTimeout,
    RequestException,
    SSLError,
    Timeout,
)
from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential, wait_random
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
        is_safe = self._repeat_all or request.method in _SAFE_METHODS
        out_of_attempts = stop_after_attempt(self._policy.retry.max_attempts)
        options.pop("timeout", None)
        attempts = Retrying(
            retry=lambda state: _is_worth_repeating(_outcome(state), is_safe=is_safe),
            wait=self._wait,
            stop=lambda state: out_of_attempts(state) or self._clock() + state.upcoming_sleep >= deadline,
            before_sleep=_close_response,
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
            sleep=self._sleep,
        )
        response: Response = attempts(self._attempt, request, deadline, options)
        return response

    def close(self) -> None:
        """Give back the connections."""
        self._inner.close()

    def _attempt(self, request: PreparedRequest, deadline: float, options: dict[str, Any]) -> Response:
        now = self._clock()
        if now - self._last_used > _LONGEST_IDLE_SECONDS:
            self._inner.close()
        left = max(deadline - now, 0.001)
        timeout = (min(self._policy.connect_timeout_seconds, left), min(self._policy.read_timeout_seconds, left))
        try:
            return self._inner.send(request, timeout=timeout, **options)
        finally:
            self._last_used = self._clock()

    def _wait(self, state: RetryCallState) -> float:
        """Seconds until the next attempt: more each time, and no less than the server asks for."""
        outcome, limits = _outcome(state), self._policy.retry
        header = outcome.headers.get("Retry-After", "") if isinstance(outcome, Response) else ""
        asked = float(header) if header.isdecimal() else 0.0
        grown = wait_exponential(limits.initial_wait_seconds) + wait_random(0, limits.jitter_seconds)
        return min(max(asked, grown(state)), limits.max_wait_seconds)


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


def _outcome(state: RetryCallState) -> Response | BaseException:
    """What an attempt ended with."""
    if state.outcome is None:
        raise ValueError("The attempt has not ended.")
    return state.outcome.exception() or state.outcome.result()


def _close_response(state: RetryCallState) -> None:
    if isinstance(outcome := _outcome(state), Response):
        outcome.close()


def _is_worth_repeating(outcome: Response | BaseException, *, is_safe: bool) -> bool:
    if isinstance(outcome, Response):
        return outcome.status_code == _TOO_MANY_REQUESTS or (is_safe and outcome.status_code == _UNAVAILABLE)
    # A certificate that does not fit will not fit a second later.
    if not isinstance(outcome, RequestException) or isinstance(outcome, SSLError):
        return False
    return never_sent(outcome) or (is_safe and isinstance(outcome, NoConnection | Timeout | ChunkedEncodingError))

"""Bounds and waits, measured on a clock that the test moves."""

from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pytest
import requests
from requests.adapters import BaseAdapter

from floe_dagster_iceberg._pyiceberg.rest_catalog import BoundedAdapter, HttpPolicy
from floe_dagster_iceberg.models import RetryConfig

POLICY = HttpPolicy(
    connect_timeout_seconds=2,
    read_timeout_seconds=10,
    total_timeout_seconds=60,
    retry=RetryConfig(max_attempts=4, initial_wait_seconds=1, max_wait_seconds=30, jitter_seconds=0),
)


@dataclass
class Wire(BaseAdapter):
    """The end of the line: responds with the listed outcomes, each after the given time."""

    outcomes: list[int | Exception]
    seconds_each: float = 0
    now: float = 1000
    timeouts: list[Any] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    closed: int = 0

    def send(self, request: requests.PreparedRequest, timeout: Any = None, **_: Any) -> requests.Response:  # type: ignore[override]
        self.timeouts.append(timeout)
        self.now += self.seconds_each
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        response = requests.Response()
        response.status_code, response.request, response.raw = outcome, request, BytesIO()
        return response

    def close(self) -> None:
        self.closed += 1

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def ask(self, method: str = "GET", policy: HttpPolicy = POLICY) -> requests.Response:
        adapter = BoundedAdapter(self, policy, clock=lambda: self.now, sleep=self.wait)
        return adapter.send(requests.Request(method, "http://catalog").prepare(), timeout=None)


@pytest.mark.requirement("S3-2")
def test_waits_grow_between_attempts_until_one_succeeds() -> None:
    wire = Wire([503, 429, 503, 200])
    assert wire.ask().status_code == 200
    assert wire.waits == [1, 2, 4]


@pytest.mark.requirement("S3-2")
def test_waits_double_up_to_the_longest_and_jitter_is_added() -> None:
    wire = Wire([503] * 6)
    retry = RetryConfig(max_attempts=5, initial_wait_seconds=1, max_wait_seconds=6, jitter_seconds=0.5)
    wire.ask(policy=HttpPolicy(retry=retry))
    least = [1, 2, 4, 6]
    assert all(wait <= waited <= min(wait + 0.5, 6) for wait, waited in zip(least, wire.waits, strict=True))
    assert wire.waits[:3] != least[:3]


@pytest.mark.requirement("S3-2")
def test_the_last_response_is_handed_on_when_attempts_are_used_up() -> None:
    wire = Wire([503] * 9)
    assert wire.ask().status_code == 503
    assert len(wire.timeouts) == 4


@pytest.mark.requirement("S3-2")
def test_the_last_failure_is_raised_when_attempts_are_used_up() -> None:
    wire = Wire([requests.ConnectTimeout("no")] * 9)
    with pytest.raises(requests.ConnectTimeout):
        wire.ask("POST")
    assert len(wire.timeouts) == 4


@pytest.mark.requirement("S3-2")
def test_no_attempt_begins_after_the_total_time() -> None:
    wire = Wire([requests.ReadTimeout("no")] * 9, seconds_each=29)
    with pytest.raises(requests.ReadTimeout):
        wire.ask()
    assert len(wire.timeouts) == 2
    assert wire.now <= 1000 + 60


@pytest.mark.requirement("S3-2")
def test_every_request_has_both_time_outs_and_they_shrink_with_the_time_left() -> None:
    wire = Wire([503, 503, 503, 200], seconds_each=16)
    wire.ask()
    assert wire.timeouts[0] == (2, 10)
    assert wire.timeouts[2][1] == 10
    assert wire.timeouts[-1] == (2, 5)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500])
def test_a_clear_refusal_is_not_repeated(status: int) -> None:
    wire = Wire([status, 200])
    assert wire.ask().status_code == status


def test_a_wrong_certificate_is_not_repeated() -> None:
    wire = Wire([requests.exceptions.SSLError("no"), 200])
    with pytest.raises(requests.exceptions.SSLError):
        wire.ask()


def test_a_connection_that_was_idle_for_long_is_not_used_again() -> None:
    wire = Wire([200, 200, 200])
    adapter = BoundedAdapter(wire, POLICY, clock=lambda: wire.now, sleep=wire.wait)
    request = requests.Request("POST", "http://catalog").prepare()
    adapter.send(request)
    adapter.send(request)
    assert wire.closed == 0
    wire.now += 600
    adapter.send(request)
    assert wire.closed == 1

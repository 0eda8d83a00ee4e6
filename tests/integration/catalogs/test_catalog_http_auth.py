"""Authentication against a server that checks it: client credentials, fixed tokens, renewal."""

import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.http_stub import RestStub, running_stub
from support.servers.faults import Fault

from floe_dagster_iceberg.errors import CatalogAuthenticationError, CatalogConnectionError
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin
from floe_dagster_iceberg.plugins.registry import open_catalog_plugin

CANARY = "canary-7f3a9b-secret"
TOKENS = "/v1/oauth/tokens"
Polaris = Callable[..., CatalogPlugin]


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RestStub]:
    with running_stub(tmp_path) as stub:
        stub.client = ("analyst", CANARY)
        yield stub


@pytest.fixture
def polaris(stub: RestStub) -> Iterator[Polaris]:
    """Builds Polaris plugins for the stub, and closes them."""
    retry = {"max_attempts": 2, "initial_wait_seconds": 0.1, "max_wait_seconds": 1, "jitter_seconds": 0}
    built = []

    def build(**config: Any) -> CatalogPlugin:
        built.append(
            open_catalog_plugin("polaris", {"uri": stub.url, "warehouse": "analytics", "retry": retry, **config})
        )
        return built[-1]

    yield build
    for plugin in built:
        plugin.shutdown()


@pytest.mark.requirement("S3-1")
def test_client_credentials_open_the_catalog_with_one_token(stub: RestStub, polaris: Polaris) -> None:
    plugin = polaris(client_id="analyst", client_secret=CANARY, scope="PRINCIPAL_ROLE:ANALYST")
    plugin.connect({})
    plugin.create_namespace("sales")
    assert plugin.list_namespaces() == ["sales"]
    (asked,) = [seen for seen in stub.seen if seen.path == TOKENS]
    assert b"scope=PRINCIPAL_ROLE%3AANALYST" in asked.body
    assert b"grant_type=client_credentials" in asked.body


@pytest.mark.requirement("S3-1")
def test_a_token_fetched_before_opens_the_catalog(stub: RestStub, polaris: Polaris) -> None:
    stub.valid_tokens.add("fetched-elsewhere")
    plugin = polaris(token="fetched-elsewhere")
    plugin.connect({})
    assert plugin.list_namespaces() == []
    assert stub.count("POST", TOKENS) == 0


@pytest.mark.requirement("S3-1")
def test_access_delegation_is_asked_for_unless_switched_off(stub: RestStub, polaris: Polaris) -> None:
    header = "x-iceberg-access-delegation"
    polaris(client_id="analyst", client_secret=CANARY).connect({})
    polaris(client_id="analyst", client_secret=CANARY, access_delegation="none").connect({})
    asked, not_asked = [seen.headers for seen in stub.seen if seen.path.startswith("/v1/config")]
    assert asked[header] == "vended-credentials"
    assert header not in not_asked


@pytest.mark.requirement("S3-1")
def test_a_refused_token_is_renewed_once(stub: RestStub, polaris: Polaris) -> None:
    plugin = polaris(client_id="analyst", client_secret=CANARY)
    plugin.connect({})
    stub.valid_tokens.clear()
    assert plugin.list_namespaces() == []
    assert stub.count("POST", TOKENS) == 2


@pytest.mark.requirement("S3-1")
def test_a_token_about_to_expire_is_renewed_before_it_is_refused(stub: RestStub, polaris: Polaris) -> None:
    stub.token_lifetime_seconds = 0
    plugin = polaris(client_id="analyst", client_secret=CANARY)
    plugin.connect({})
    plugin.list_namespaces()
    assert stub.count("POST", TOKENS) == 2


@pytest.mark.requirement("S3-6", "S3-2b")
def test_a_wrong_secret_is_an_authentication_error_that_does_not_show_it(stub: RestStub, polaris: Polaris) -> None:
    wrong = CANARY[::-1]
    with pytest.raises(CatalogAuthenticationError, match="invalid_client") as caught:
        polaris(client_id="analyst", client_secret=wrong).connect({})
    assert stub.count("POST", TOKENS) == 1
    assert wrong not in "".join(traceback.format_exception(caught.value))


@pytest.mark.requirement("S3-2b")
def test_a_refused_fixed_token_is_not_tried_again(stub: RestStub, polaris: Polaris) -> None:
    stub.valid_tokens.add("good-for-now")
    plugin = polaris(token="good-for-now")
    plugin.connect({})
    stub.valid_tokens.clear()
    with pytest.raises(CatalogAuthenticationError):
        plugin.list_namespaces()
    assert stub.count("GET", "/v1/namespaces") == 1


@pytest.mark.requirement("S3-2b")
def test_a_busy_token_endpoint_is_asked_again(stub: RestStub, polaris: Polaris) -> None:
    stub.fail("POST", TOKENS, Fault(503))
    polaris(client_id="analyst", client_secret=CANARY).connect({})
    assert stub.count("POST", TOKENS) == 2


@pytest.mark.requirement("S2-FR-046")
@pytest.mark.parametrize(
    "fault", [Fault(200, body=f'{{"token": "{CANARY}"}}'), Fault(500, body=CANARY), Fault(401, body=CANARY)]
)
def test_what_the_token_endpoint_says_is_not_repeated(
    stub: RestStub, polaris: Polaris, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level(logging.DEBUG)
    stub.fail("POST", TOKENS, *[fault] * 3)
    with pytest.raises((CatalogConnectionError, CatalogAuthenticationError)) as caught:
        polaris(client_id="analyst", client_secret=CANARY).connect({})
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert CANARY not in caplog.text


@pytest.mark.requirement("S2-FR-046")
def test_a_server_that_echoes_the_token_does_not_get_it_into_a_traceback(stub: RestStub, polaris: Polaris) -> None:
    stub.valid_tokens.add(CANARY)
    plugin = polaris(token=CANARY)
    plugin.connect({})
    stub.fail(
        "GET", "/v1/namespaces", Fault(403, body=f'{{"error": {{"message": "no {CANARY}", "type": "x", "code": 1}}}}')
    )
    with pytest.raises(CatalogAuthenticationError) as caught:
        plugin.list_namespaces()
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.requirement("S3-5")
def test_authenticating_and_creating_a_namespace_are_traced_without_secrets(
    polaris: Polaris, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    polaris(client_id="analyst", client_secret=CANARY, scope="PRINCIPAL_ROLE:A").create_namespace(
        "sales", {"a": CANARY}
    )
    finished = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    known = {"catalog.name": "floe", "status": "ok"}
    assert finished == {
        "polaris.authenticate": {"operation": "authenticate", "scope": "PRINCIPAL_ROLE:A", **known},
        "polaris.create_namespace": {
            "operation": "create_namespace",
            "namespace": "sales",
            "properties": ("a",),
            **known,
        },
    }


def test_a_catalog_without_authentication_is_sent_none(stub: RestStub) -> None:
    stub.client = None
    plugin = open_catalog_plugin("rest", {"uri": stub.url})
    plugin.connect({})
    plugin.shutdown()
    assert all("authorization" not in seen.headers for seen in stub.seen)

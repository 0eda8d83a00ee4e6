"""Five ways to write a secret, one way to hide it."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from floe_dagster_iceberg.errors import SecretNotFoundError
from floe_dagster_iceberg.secrets import (
    NamedSecret,
    SecretReference,
    SecretValue,
    redact,
    redact_properties,
    redaction,
    resolve_properties,
    resolve_secret,
    resolve_text,
    secret_as_text,
)

CANARY = "canary-5e1d-secret"
FORMS: list[Any] = [
    CANARY,
    "${POLARIS_SECRET}",
    "{{ env_var('POLARIS_SECRET') }}",
    {"source": "env", "name": "POLARIS_SECRET"},
    {"secret_ref": "polaris-secret"},
]


@pytest.fixture(autouse=True)
def _nothing_seen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_seen", set())


@pytest.mark.requirement("S2-FR-046")
@pytest.mark.parametrize("form", FORMS, ids=["plain", "shell", "dbt", "reference", "named"])
def test_a_secret_is_found_in_the_environment_in_every_form(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARIS_SECRET", CANARY)
    assert resolve_secret(form) == CANARY
    assert resolve_secret(secret_as_text(form)) == CANARY


@pytest.mark.requirement("S2-FR-046")
@pytest.mark.parametrize(
    ("reference", "file"),
    [
        ({"secret_ref": "polaris-secret"}, "polaris-secret"),
        ({"source": "kubernetes", "name": "polaris", "key": "client-secret"}, "polaris/client-secret"),
    ],
)
def test_a_reference_is_found_among_the_mounted_secrets(
    reference: dict[str, str], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOE_SECRETS_DIR", str(tmp_path))
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(f"{CANARY}\n")
    assert resolve_secret(reference) == CANARY


def test_the_environment_wins_over_the_mounted_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("FLOE_SECRET_POLARIS_CLIENT_SECRET", CANARY)
    (tmp_path / "polaris").mkdir()
    (tmp_path / "polaris" / "client-secret").write_text("older")
    assert resolve_secret({"source": "kubernetes", "name": "polaris", "key": "client-secret"}) == CANARY


@pytest.mark.requirement("S2-FR-046")
@pytest.mark.parametrize("form", FORMS[1:], ids=["shell", "dbt", "reference", "named"])
def test_a_missing_secret_is_named(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_SECRETS_DIR", str(tmp_path))
    with pytest.raises(SecretNotFoundError, match=r"(?i)polaris.secret"):
        resolve_secret(form)


def test_a_reference_cannot_leave_the_secrets_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_SECRETS_DIR", str(tmp_path / "secrets"))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "elsewhere").write_text(CANARY)
    with pytest.raises(SecretNotFoundError):
        resolve_secret({"secret_ref": "../elsewhere"})


def test_dbts_default_stands_in_for_a_missing_variable() -> None:
    assert resolve_text("{{ env_var('NOT_SET_ANYWHERE', 'fallback') }}") == "fallback"


def test_variables_are_replaced_inside_longer_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARIS_HOST", "polaris")
    assert resolve_text("http://${POLARIS_HOST}:8181/api") == "http://polaris:8181/api"


def test_json_that_is_no_reference_stays_as_it_is() -> None:
    key = '{"type": "service_account", "private_key": "x"}'
    assert resolve_secret(key) == key


class Settings(BaseModel):
    secret: SecretValue


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("plain", SecretStr),
        ({"source": "vault", "name": "a"}, SecretReference),
        ({"name": "a", "key": "b"}, SecretReference),
        ({"secret_ref": "a"}, NamedSecret),
    ],
)
def test_a_field_takes_every_form(given: Any, kind: type) -> None:
    assert isinstance(Settings(secret=given).secret, kind)


@pytest.mark.requirement("S2-FR-046")
def test_a_resolved_secret_is_masked_wherever_it_turns_up() -> None:
    resolve_secret("sl/ash+canary")
    assert redact("GET /?a=sl/ash+canary and sl%2Fash%2Bcanary") == "GET /?a=*** and ***"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://app:hunter2@db/lake", "postgresql://app:***@db/lake"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer ***"),
        ("s3.secret-access-key=abc123, region=x", "s3.secret-access-key=***, region=x"),
        ('{"client_secret": "abc", "scope": "x"}', '{"client_secret": "***", "scope": "x"}'),
        ("Table bronze.orders not found", "Table bronze.orders not found"),
    ],
)
def test_what_looks_like_a_secret_is_masked_without_having_been_seen(text: str, masked: str) -> None:
    assert redact(text) == masked


def test_properties_are_shown_without_their_secrets() -> None:
    shown = redact_properties(
        {"s3.secret-access-key": "abc", "uri": "postgresql://u:pw@h/d", "s3.endpoint": "http://x"}
    )
    assert shown == {"s3.secret-access-key": "***", "uri": "postgresql://u:***@h/d", "s3.endpoint": "http://x"}


def test_values_of_secret_keys_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", CANARY)
    resolve_properties({"s3.secret-access-key": "${KEY}", "s3.region": "eu-central-1"})
    assert redact(f"{CANARY} in eu-central-1") == "*** in eu-central-1"

"""Redaction of text, attributes and exceptions.

Masked are all secrets that were resolved or issued, and everything that looks like a secret. Data values look
like any other word, so exceptions that may quote them keep only their type: those of libraries that handle
rows, and those that hold a server's response.
"""

import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any, Final
from urllib.parse import quote

import pydantic
from pydantic_core import InitErrorDetails, PydanticCustomError

from floe_dagster_iceberg.errors import FloeStorageError

REDACTED: Final = "***"
LEFT_OUT: Final = "(omitted: it may quote data or the response of a server)"

# One expression that Python and Java both read: Spark takes it as spark.redaction.regex.
REDACTION_REGEX: Final = (
    "(?i)secret|password|passwd|token|credential|authorization|connection[-_.]?string|sas[-_.]"
    "|(access|account|private|encryption|api)[-_.]?key"
)

# Masking shorter values would garble every message.
_SHORTEST_MASKED: Final = 4
_SECRET_KEY: Final = re.compile(REDACTION_REGEX)
# Secrets in the text of others: a URL's password, an HTTP header, a key and its value.
_URL_PASSWORD: Final = re.compile(r"(?P<before>\w[\w+.-]*://[^/\s:@]*:)[^/\s@]+@")
_HTTP_AUTH: Final = re.compile(r"(?i)\b(?P<before>bearer|basic)\s+[\w~+/.=-]{8,}")
_KEY_AND_VALUE: Final = re.compile(
    r"(?i)(?P<before>[\w.-]*(?:secret|password|passwd|token|credential|access[-_.]key)[\w.-]*[\"']?\s*[:=]\s*[\"']?)"
    r"[^\s\"',;&}]+"
)
# After these words PyIceberg quotes a response that it cannot parse, and PyArrow that of S3.
_RESPONSES: Final = re.compile(
    r"(?P<before>Could not decode json payload:|Received unexpected JSON Payload:|during \w+ operation:).*", re.DOTALL
)
# Libraries whose exceptions quote data values.
_HANDLES_ROWS: Final = frozenset({"numpy", "pandas", "polars", "pyarrow"})
# Libraries whose exceptions quote queries, and data in them.
_RUNS_QUERIES: Final = frozenset({"pyspark", "py4j", "sqlalchemy"})
_LONGEST_MESSAGE: Final = 200
_seen: set[str] = set()


def remember_secret(value: str) -> None:
    """Let `redact` mask this value from now on, also when it is percent-encoded."""
    if len(value) >= _SHORTEST_MASKED:
        _seen.update((value, quote(value, safe="")))


def is_secret_key(key: str) -> bool:
    """Whether a property of this name holds a secret."""
    return _SECRET_KEY.search(key) is not None


def redact(text: str) -> str:
    """Mask every secret seen so far, and everything that looks like one."""
    # Longest first: a secret that contains another must not leave its tail behind.
    for secret in sorted(_seen, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    # Called for every attribute of every span; hardly any matches these expressions.
    if "@" in text:
        text = _URL_PASSWORD.sub(rf"\g<before>{REDACTED}@", text)
    if len(text.split(maxsplit=1)) > 1:
        text = _HTTP_AUTH.sub(rf"\g<before> {REDACTED}", text)
    if ":" in text or "=" in text:
        text = _KEY_AND_VALUE.sub(rf"\g<before>{REDACTED}", text)
    return text


def redact_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Copy properties for display: secret-looking keys are masked, other values redacted."""
    return {key: REDACTED if is_secret_key(key) else redact(value) for key, value in properties.items()}


def redact_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the attributes of a span or a log event, without secrets."""
    return {name: redact(value) if isinstance(value, str) else value for name, value in attributes.items()}


def message_of(error: BaseException) -> str:
    """Return the message of our own errors, which hold no data values; of others, only the type."""
    return redact(str(error)) if isinstance(error, FloeStorageError) else type(error).__name__


def describe_failure(error: BaseException) -> str:
    """Type and message of an error, for a report; the message of a library's as far as it cannot quote data."""
    kind = type(error).__name__
    if isinstance(error, FloeStorageError):
        return redact(f"{kind}: {error}")
    may_quote = quotes_data(error) or _holds_response(error) or isinstance(error, pydantic.ValidationError)
    if may_quote or type(error).__module__.partition(".")[0] in _RUNS_QUERIES:
        return f"{kind} {LEFT_OUT}"
    lines = scrub_text(str(error)).strip().splitlines()
    return f"{kind}: {shorten(lines[0], _LONGEST_MESSAGE, placeholder=' …')}" if lines else kind


def scrub_text(text: str) -> str:
    """Mask secrets, and cut off a server's response that a library quotes."""
    return redact(_RESPONSES.sub(rf"\g<before> {LEFT_OUT}", text))


def scrub_exception(error: BaseException) -> BaseException:
    """Redact a library's exception and its causes.

    Returns:
        The same exception, changed in place, or a copy of a Pydantic one, whose text cannot be changed.
    """
    if isinstance(error, pydantic.ValidationError):
        return _without_inputs(error)
    if quotes_data(error) or _holds_response(error):
        status = _status_of(error)
        error.args = (LEFT_OUT if status is None else f"HTTP {status}",)
        vars(error).pop("__notes__", None)
    else:
        error.args = tuple(scrub_text(str(arg)) if isinstance(arg, str | BaseException) else arg for arg in error.args)
    if isinstance(error, OSError) and error.strerror:
        error.strerror = scrub_text(error.strerror)
    if error.__cause__ is not None:
        error.__cause__ = scrub_exception(error.__cause__)
    elif error.__context__ is not None:
        error.__context__ = scrub_exception(error.__context__)
    return error


def quotes_data(error: BaseException) -> bool:
    """Whether an exception comes from a library that quotes data values."""
    return type(error).__module__.partition(".")[0] in _HANDLES_ROWS and not isinstance(error, OSError)


def _holds_response(error: BaseException) -> bool:
    if isinstance(error, FloeStorageError):
        return False
    return _status_of(error) is not None or _status_of(error.__cause__) is not None


def _status_of(error: BaseException | None) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _without_inputs(error: pydantic.ValidationError) -> pydantic.ValidationError:
    details: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError("refused", "{reason}", {"reason": entry["msg"]}),
            "loc": entry["loc"],
            "input": None,
        }
        for entry in error.errors(include_input=False, include_context=False, include_url=False)
    ]
    return pydantic.ValidationError.from_exception_data(error.title, details, hide_input=True)

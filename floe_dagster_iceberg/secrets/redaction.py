"""What must not be shown, and how it is taken out: the one place for texts, attributes and exceptions.

Secrets are masked wherever they turn up: every value that was resolved or issued is remembered, and
whatever looks like a secret is masked, too. Values of the data cannot be told from other words, so of
an exception that may quote them nothing is kept but its type: those of the libraries that handle rows,
and those that stand for the answer of a server.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import pydantic
from pydantic_core import InitErrorDetails, PydanticCustomError

from floe_dagster_iceberg.errors import FloeStorageError

REDACTED: Final = "***"
LEFT_OUT: Final = "(left out: it may quote data or the answer of a server)"

# One expression that Python and Java both read: Spark takes it as spark.redaction.regex.
REDACTION_REGEX: Final = (
    "(?i)secret|password|passwd|token|credential|authorization|connection[-_.]?string|sas[-_.]"
    "|(access|account|private|encryption|api)[-_.]?key"
)

# A shorter value is no secret worth the name, and masking it would garble every message.
_SHORTEST_MASKED: Final = 4
_SECRET_KEY: Final = re.compile(REDACTION_REGEX)
# What a secret looks like in text that we did not write: a URL's password, an HTTP header, a key and its value.
_URL_PASSWORD: Final = re.compile(r"(?P<before>\w[\w+.-]*://[^/\s:@]*:)[^/\s@]+@")
_HTTP_AUTH: Final = re.compile(r"(?i)\b(?P<before>bearer|basic)\s+[\w~+/.=-]{8,}")
_KEY_AND_VALUE: Final = re.compile(
    r"(?i)(?P<before>[\w.-]*(?:secret|password|passwd|token|credential|access[-_.]key)[\w.-]*[\"']?\s*[:=]\s*[\"']?)"
    r"[^\s\"',;&}]+"
)
# Behind these words PyIceberg puts the whole response when it cannot read it, and PyArrow what S3 had to say.
_ANSWERS: Final = re.compile(
    r"(?P<before>Could not decode json payload:|Received unexpected JSON Payload:|during \w+ operation:).*", re.DOTALL
)
# Libraries whose exceptions quote the values they stumble over.
_HANDLES_ROWS: Final = frozenset({"numpy", "pandas", "polars", "pyarrow"})
_seen: set[str] = set()


def remember_secret(value: str) -> None:
    """From now on `redact` masks this value, also when it is percent-encoded."""
    if len(value) >= _SHORTEST_MASKED:
        _seen.update((value, quote(value, safe="")))


def is_secret_key(key: str) -> bool:
    """Whether a property of this name holds a secret."""
    return _SECRET_KEY.search(key) is not None


def redact(text: str) -> str:
    """Mask every secret seen so far, and whatever looks like one."""
    # Longest first: a secret that contains another must not leave its tail behind.
    for secret in sorted(_seen, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    # Every attribute of every span passes here, and hardly any has what these expressions look for.
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
    """Copy what a span or a log event tells, without secrets."""
    return {name: redact(value) if isinstance(value, str) else value for name, value in attributes.items()}


def message_of(error: BaseException) -> str:
    """What may be told of an error: only our own messages are known to hold no data value."""
    return redact(str(error)) if isinstance(error, FloeStorageError) else type(error).__name__


def scrub_text(text: str) -> str:
    """Mask secrets, and cut off the answer of a server that a library quotes."""
    return redact(_ANSWERS.sub(rf"\g<before> {LEFT_OUT}", text))


def scrub_exception(error: BaseException) -> BaseException:
    """Clean a library's exception and those it came from, in place where that is possible.

    Returns:
        The same exception, or for a Pydantic one a copy: those print the values they
        refused, and their text cannot be edited.
    """
    if isinstance(error, pydantic.ValidationError):
        return _without_inputs(error)
    if quotes_data(error) or _is_answer(error):
        error.args = (_summary(error),)
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
    """Whether an exception comes from a library that quotes the rows it stumbles over."""
    return type(error).__module__.partition(".")[0] in _HANDLES_ROWS and not isinstance(error, OSError)


def _is_answer(error: BaseException) -> bool:
    """Whether an exception stands for the answer of a server."""
    if isinstance(error, FloeStorageError):
        return False
    return _status_of(error) is not None or _status_of(error.__cause__) is not None


def _summary(error: BaseException) -> str:
    status = _status_of(error)
    return LEFT_OUT if status is None else f"HTTP {status}"


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

"""Exceptions of other libraries without what must not be shown: response bodies and secrets."""

from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core import ValidationError as PydanticError

from floe_dagster_iceberg.secrets import redact

# PyIceberg puts the whole response after these words when it cannot read it.
_BODY_MARKERS = ("Could not decode json payload:", "Received unexpected JSON Payload:")


def scrub_exception(error: BaseException) -> BaseException:
    """Clean an exception and those it came from, in place where that is possible.

    Returns:
        The same exception, or for a Pydantic one a copy: those print the values they
        refused, and their text cannot be edited.
    """
    if isinstance(error, PydanticError):
        return _without_inputs(error)
    error.args = tuple(scrub_text(str(arg)) if isinstance(arg, str | BaseException) else arg for arg in error.args)
    if isinstance(error, OSError) and error.strerror:
        error.strerror = scrub_text(error.strerror)
    if error.__cause__ is not None:
        error.__cause__ = scrub_exception(error.__cause__)
    elif error.__context__ is not None:
        error.__context__ = scrub_exception(error.__context__)
    return error


def scrub_text(text: str) -> str:
    """Mask secrets and cut off the response body that PyIceberg quotes."""
    for marker in _BODY_MARKERS:
        before, found, _ = text.partition(marker)
        if found:
            return f"{redact(before)}{marker} (left out)"
    return redact(text)


def _without_inputs(error: PydanticError) -> PydanticError:
    details: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError("refused", "{reason}", {"reason": entry["msg"]}),
            "loc": entry["loc"],
            "input": None,
        }
        for entry in error.errors(include_input=False, include_context=False, include_url=False)
    ]
    return PydanticError.from_exception_data(error.title, details, hide_input=True)

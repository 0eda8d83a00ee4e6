"""Spark's exceptions as causes that may be shown, and its log: where something failed, not a word about the data.

Spark's messages quote rows, literals and whole plans, and cannot be edited. What stands for them is made
of what Spark keeps apart from its words: conditions, call sites, classes, stack frames.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, QueryContextType

from floe_dagster_iceberg.secrets import LEFT_OUT

_JAVA_CLASSES: Final = re.compile(
    r"(?:^: |^Caused by: |^)(?P<name>(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error))\b", re.MULTILINE
)
_PYTHON_FRAMES: Final = re.compile(
    r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)$', re.MULTILINE
)
_PYTHON_CLASS: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Exit))(?:: |$)", re.MULTILINE)
# In a log: behind a condition, behind the class of an exception, and from a traceback on, the words are its own.
_QUOTED: Final = re.compile(
    r"(?P<before>\[[A-Z][A-Z0-9_.]+\]"
    r"|(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)\b:"
    r"|\bTraceback \(most recent call last\):).*",
    re.DOTALL,
)
_MOST_SHOWN: Final = 5


class SparkCauseError(Exception):
    """Stands for an exception of Spark where errors are shown.

    Attributes:
        original: What Spark raised, words and all. It stays in this process.
    """

    def __init__(self, original: BaseException) -> None:
        self.original = original
        super().__init__(
            f"{'; '.join(_facts(original))}. Spark's own words are left out: they may quote rows. "
            "In this process they are in the attribute 'original'."
        )


def shown(error: BaseException | None) -> BaseException | None:
    """What to name as the cause of an error of ours, with the frames in which Spark failed."""
    if not isinstance(error, PySparkException | Py4JError):
        return error
    return SparkCauseError(error).with_traceback(error.__traceback__)


def without_quotes(text: str) -> str:
    """A line of Spark's log without the words of an exception that it quotes."""
    return _QUOTED.sub(rf"\g<before> {LEFT_OUT}", text)


def _facts(error: BaseException) -> Iterator[str]:
    yield type(error).__name__
    # A JVM that is gone has no answers.
    with suppress(Py4JError, OSError):
        if isinstance(error, PySparkException):
            yield from _said_by_spark(error)
    text = ""
    with suppress(Py4JError, OSError):
        text = str(error)
    if classes := list(islice(dict.fromkeys(found["name"] for found in _JAVA_CLASSES.finditer(text)), _MOST_SHOWN)):
        yield f"Java: {', '.join(classes)}"
    if frames := [f"{found['file']}:{found['line']} in {found['function']}" for found in _PYTHON_FRAMES.finditer(text)]:
        kinds = [found["name"] for found in _PYTHON_CLASS.finditer(text)]
        yield f"Python worker: {', '.join([*kinds[-1:], *frames[-_MOST_SHOWN:]])}"


def _said_by_spark(error: PySparkException) -> Iterator[str]:
    if condition := error.getCondition():
        yield f"condition {condition}"
    for context in error.getQueryContext() or ():
        # The fragment of a query in SQL is a piece of its text; that of a frame is the name of a method.
        if context.contextType() is QueryContextType.DataFrame:
            yield f"'{context.fragment()}' called at {context.callSite()}"

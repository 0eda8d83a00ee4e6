"""Log events: structlog's, through Python's logging, so that Dagster's log viewer shows them.

Nothing is configured when this is loaded, and Python's logging is never configured here at all.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.telemetry.attributes import SCOPE

LogFormat: TypeAlias = Literal["console", "json"]
FORMAT_VARIABLE: Final = "FLOE_LOG_FORMAT"

_chosen: list[LogFormat] = []


def set_log_format(log_format: LogFormat) -> None:
    """Choose how events look in Python's logging, for this process; `$FLOE_LOG_FORMAT` decides if nobody does.

    Raises:
        ValidationError: There is no such format.
    """
    if log_format not in get_args(LogFormat):
        raise ValidationError(f"Log format '{log_format}' is not known. Use one of: {', '.join(get_args(LogFormat))}.")
    _chosen[:] = [log_format]


def find_listener(logger: Any, level: int) -> Callable[..., None] | None:
    """What takes an event and its fields; None when nobody listens.

    Args:
        logger: structlog's or Python's logger. None: the user's structlog if it is configured, else
            Python's logger of this package.
        level: Level of Python's logging.
    """
    if logger is None:
        # Configured by nobody who has not loaded it; and loading it is a quarter of a second.
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            logger = structlog.get_logger(SCOPE)
        else:
            logger = logging.getLogger(SCOPE)
    if isinstance(logger, logging.Logger):
        if not logger.isEnabledFor(level):
            return None
        logger = _structured(logger, _log_format())
    listener: Callable[..., None] = getattr(logger, logging.getLevelName(level).lower())
    return listener


def _log_format() -> LogFormat:
    if _chosen:
        return _chosen[0]
    return "json" if os.environ.get(FORMAT_VARIABLE) == "json" else "console"


@functools.cache
def _structured(logger: logging.Logger, log_format: LogFormat) -> Any:
    import structlog  # noqa: PLC0415 - a quarter of a second that loading a code location should not pay

    if log_format == "json":
        processors: list[Any] = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        processors = [structlog.processors.KeyValueRenderer(key_order=["event"])]
    return structlog.wrap_logger(logger, processors=processors, wrapper_class=structlog.stdlib.BoundLogger)

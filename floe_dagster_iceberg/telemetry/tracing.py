"""Methods and functions that are operations."""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar, cast

from floe_dagster_iceberg.models import MaintenanceResult, SnapshotInfo
from floe_dagster_iceberg.telemetry import attributes as names, metrics
from floe_dagster_iceberg.telemetry.spans import Operation, Telemetry, describe_snapshot, describe_written, step

M = TypeVar("M", bound=Callable[..., Any])
Describe = Callable[..., Mapping[str, Any]]
Report = Callable[[Operation, Any], None]


def tell_snapshot(operation: Operation, result: Any) -> None:
    """Tell which snapshot an operation returned, if it returned one."""
    if isinstance(result, SnapshotInfo):
        operation.tell(describe_snapshot(result))


def tell_written(operation: Operation, result: Any) -> None:
    """Tell what the snapshot that an operation made did to the rows, and count it."""
    if isinstance(result, SnapshotInfo):
        operation.tell(describe_written(result))
        metrics.count_written(result, operation.told)


def tell_maintenance(operation: Operation, result: Any) -> None:
    """Tell what maintenance did to a table, and count it."""
    if isinstance(result, MaintenanceResult):
        operation.tell(_describe_maintenance(result))
        metrics.count_maintenance(result)


def traced(name: str, describe: Describe, *, report: Report = tell_snapshot) -> Callable[[M], M]:
    """Make a method of something that has `_telemetry` an operation.

    Args:
        name: The operation; the span is `iceberg.<name>`.
        describe: What the method's own arguments tell.
        report: Tells what the result tells.
    """

    def decorate(method: M) -> M:
        @functools.wraps(method)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            telemetry: Telemetry = self._telemetry
            operation = telemetry.operation(name, _described(describe, args, kwargs))
            return _reported(operation, report, method, self, *args, **kwargs)

        return cast("M", wrapper)

    return decorate


def traced_step(name: str, describe: Describe, *, report: Report = tell_snapshot) -> Callable[[M], M]:
    """Make a function a part of the operation that calls it: a span of its own, and no log event.

    Args:
        name: The step; the span is `iceberg.<name>`.
        describe: What the function's own arguments tell.
        report: Tells what the result tells.
    """

    def decorate(function: M) -> M:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            operation = step(name, _described(describe, args, kwargs))
            return _reported(operation, report, function, *args, **kwargs)

        return cast("M", wrapper)

    return decorate


def _reported(
    operation: AbstractContextManager[Operation],
    report: Report,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    with operation as running:
        result = function(*args, **kwargs)
        # What cannot be told must not fail what was done.
        with suppress(Exception):
            report(running, result)
        return result


def _describe_maintenance(result: MaintenanceResult) -> dict[str, Any]:
    told: dict[str, Any] = {
        names.ENGINE: result.engine.value,
        names.MAINTENANCE_OPERATION: result.operation.value,
        names.MAINTENANCE_STATUS: result.status.value,
        names.FILES_REMOVED: result.files_removed,
        names.BYTES_REMOVED: result.bytes_removed,
        names.FILES_ADDED: result.files_added,
        names.BYTES_ADDED: result.bytes_added,
        names.SNAPSHOTS_EXPIRED: result.snapshots_expired,
    }
    if result.snapshot_id_after is not None:
        told[names.SNAPSHOT_ID] = result.snapshot_id_after
    return told


def _described(describe: Describe, args: Any, kwargs: Any) -> Mapping[str, Any]:
    try:
        return describe(*args, **kwargs)
    except (AttributeError, TypeError, ValueError):
        # Arguments that make no sense: the method itself says so, inside the span.
        return {}

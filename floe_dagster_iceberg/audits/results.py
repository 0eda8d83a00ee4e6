"""What a check says about the rows on a branch, as a Dagster check result."""

import inspect
import traceback
from typing import Any

import dagster as dg

from floe_dagster_iceberg.audits.checks import AuditCheck
from floe_dagster_iceberg.audits.table import AuditedTable
from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.io_managers.managers import name_of


def blocks_publication(result: dg.AssetCheckResult) -> bool:
    """Whether a result keeps the rows from being published."""
    return not result.passed and result.severity is dg.AssetCheckSeverity.ERROR


def evaluate(check: AuditCheck, audited: AuditedTable, asset_key: dg.AssetKey) -> dg.AssetCheckResult:
    """The result of a check of an asset; one that fails to run has failed."""
    shown = {"iceberg/audit_snapshot_id": dg.MetadataValue.text(str(audited.snapshot.snapshot_id))}
    try:
        result = _to_result(check, check.function(_argument(check, audited)))
    except (dg.Failure, dg.RetryRequested):
        raise
    except Exception as error:
        # Whatever a check raises, its rows are not published.
        if isinstance(error, FloeStorageError) and error.retryable:
            raise
        return dg.AssetCheckResult(
            passed=False,
            asset_key=asset_key,
            check_name=check.name,
            # Not the message of other libraries: those that check rows quote them.
            description=str(error) if isinstance(error, FloeStorageError) else _describe(check, error),
            metadata={**shown, "iceberg/error": dg.MetadataValue.text(type(error).__name__)},
        )
    return dg.AssetCheckResult(
        passed=result.passed,
        asset_key=asset_key,
        check_name=check.name,
        metadata={**shown, **result.metadata},
        # A check that is declared a warning never blocks.
        severity=check.severity if check.severity is dg.AssetCheckSeverity.WARN else result.severity,
        description=result.description,
    )


def _describe(check: AuditCheck, error: Exception) -> str:
    """The kind of an error and its line, in the file of the check if it is there."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(check.function, "__code__", None), "co_filename", None)
    where = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"The check raised {type(error).__name__} in {where.name}, line {where.lineno} of {where.filename}."


def _argument(check: AuditCheck, audited: AuditedTable) -> Any:
    parameters = inspect.signature(check.function, eval_str=True).parameters.values()
    annotation = next((each.annotation for each in parameters), inspect.Parameter.empty)
    if annotation in {inspect.Parameter.empty, Any, AuditedTable}:
        return audited
    return audited.read_as(annotation)


def _to_result(check: AuditCheck, returned: Any) -> dg.AssetCheckResult:
    if isinstance(returned, dg.AssetCheckResult):
        return returned
    if hasattr(returned, "success"):
        returned = returned.success
    # NumPy and pandas have a bool of their own.
    if type(returned).__name__ not in {"bool", "bool_"}:
        raise ValidationError(
            f"Check '{check.name}' returned a {name_of(type(returned))}. Return a bool, an AssetCheckResult, or a "
            "result with 'success'."
        )
    return dg.AssetCheckResult(passed=bool(returned), severity=check.severity)

"""The decorator of audited assets, light enough to load with a code location."""
# ruff: noqa: PLC0415 - loading a code location must not load PyIceberg and Arrow

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import dagster as dg

from floe_dagster_iceberg.audits.checks import AuditCheck
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.base import first_duplicate


def audited_asset(
    *, checks: Sequence[AuditCheck | Callable[..., Any]], **arguments: Any
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Define an asset whose rows reach its table only if checks pass.

    The rows are written to a branch of the table, the checks read exactly that version, and then the rows are published
    in one commit. If a check of severity ERROR fails, readers see nothing of the rows, there is no materialization, and
    the branch is kept. The IO manager has to be one of this package.

    Args:
        checks: What the rows are checked with: the ready-made checks of this package, or functions that take what the
            annotation of their argument names and return a bool, an `AssetCheckResult`, or anything with `success`.
        **arguments: The arguments of `dagster.asset`.

    Raises:
        ValidationError: There is no check, two have one name, or the function is a generator or async.
    """
    audits = [check if isinstance(check, AuditCheck) else AuditCheck(check) for check in checks]
    if not audits:
        raise ValidationError("audited_asset got no checks. Name at least one, or use dagster.asset.")
    if (name := first_duplicate([check.name for check in audits])) is not None:
        raise ValidationError(f"Two checks of an audited asset are called '{name}'. Give one of them another name.")

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ValidationError(
                f"Audited asset '{function.__name__}' is a generator or async. Return the rows from a plain function."
            )

        @wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Iterator[Any]:
            from floe_dagster_iceberg.audits.audit import audit_output

            context = dg.AssetExecutionContext.get()
            yield from audit_output(context, audits, function(*args, **kwargs))

        key = _asset_key(function, arguments)
        own = [
            dg.AssetCheckSpec(
                check.name,
                asset=key,
                description=check.description,
                blocking=check.severity is dg.AssetCheckSeverity.ERROR,
            )
            for check in audits
        ]
        specs = [*(arguments.get("check_specs") or ()), *own]
        asset: dg.AssetsDefinition = dg.asset(**{**arguments, "check_specs": specs})(compute)
        return asset

    return decorate


def _asset_key(function: Callable[..., Any], arguments: dict[str, Any]) -> dg.AssetKey:
    """The key that `dagster.asset` gives the asset."""
    if (key := arguments.get("key")) is not None:
        return key if isinstance(key, dg.AssetKey) else dg.AssetKey(key if isinstance(key, str) else list(key))
    prefix = arguments.get("key_prefix") or []
    return dg.AssetKey([*([prefix] if isinstance(prefix, str) else prefix), arguments.get("name") or function.__name__])

"""The decorators of audited assets, light enough to load with a code location."""
# ruff: noqa: PLC0415 - loading a code location must not load PyIceberg and Arrow

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias

import dagster as dg

from floe_dagster_iceberg.audits.checks import AuditCheck
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.base import first_duplicate

Check: TypeAlias = AuditCheck | Callable[..., Any]
_IO_MANAGER_KEY = "dagster/io_manager_key"


def audited_asset(*, checks: Sequence[Check], **arguments: Any) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
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
    audits = _to_audit_checks("an audited asset", checks)
    if not audits:
        raise ValidationError("audited_asset got no checks. Name at least one, or use dagster.asset.")

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ValidationError(
                f"Audited asset '{function.__name__}' is a generator or async. Return the rows from a plain function."
            )
        key = _asset_key(function, arguments)

        @wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Iterator[Any]:
            from floe_dagster_iceberg.audits.step import Produced, audit_step

            context = dg.AssetExecutionContext.get()
            produced = Produced.of(function(*args, **kwargs), context.asset_key)
            yield from audit_step(context, {context.asset_key: audits}, [produced])

        specs = [*(arguments.get("check_specs") or ()), *_check_specs(key, audits)]
        asset: dg.AssetsDefinition = dg.asset(**{**arguments, "check_specs": specs})(compute)
        return asset

    return decorate


def audited_assets(
    specs: Sequence[dg.AssetSpec],
    *,
    checks: Mapping[str | dg.AssetKey, Sequence[Check]],
    **arguments: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Define assets of one step whose rows reach their tables only if the checks of all of them pass.

    As `audited_asset`, for several tables: all of them are published, or none. On SQL catalogs, and on REST servers
    with `transactions/commit`, that is one commit, and readers see all tables move at once; `iceberg/published_at_once`
    says whether it was.

    The function returns a tuple of the rows in the order of `specs`, or returns or yields a `dagster.MaterializeResult`
    with `asset_key` and `value` for each. Nothing is written before it has ended.

    Args:
        specs: The assets. Those that name no IO manager get the one called "io_manager". Skippable ones may be left
            out if they have no checks.
        checks: The checks of each asset, by its key. Assets without checks are published with the others.
        **arguments: The arguments of `dagster.multi_asset`, except for `can_subset`.

    Raises:
        ValidationError: There is no check, two of an asset have one name, they are for an unknown asset, the assets can
            be materialized one by one, or the function is async.
    """
    by_key = {_to_key(key): _to_audit_checks(f"'{_to_key(key).to_user_string()}'", own) for key, own in checks.items()}
    keys = [spec.key for spec in specs]
    if not any(by_key.values()):
        raise ValidationError("audited_assets got no checks. Name at least one, or use dagster.multi_asset.")
    if unknown := [key.to_user_string() for key in by_key if key not in keys]:
        known = ", ".join(key.to_user_string() for key in keys)
        raise ValidationError(f"audited_assets has checks for '{unknown[0]}', which is none of its assets: {known}.")
    if arguments.get("can_subset"):
        raise ValidationError("audited_assets publishes all of its tables or none. Leave can_subset out.")
    required = {spec.key for spec in specs if not spec.skippable or by_key.get(spec.key)}
    stored = [spec if _IO_MANAGER_KEY in spec.metadata else spec.with_io_manager_key("io_manager") for spec in specs]

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ValidationError(
                f"The function '{function.__name__}' of audited assets is async. Make it a plain one."
            )

        @wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Iterator[Any]:
            from floe_dagster_iceberg.audits.step import Produced, audit_step

            returned = function(*args, **kwargs)
            several = inspect.isgenerator(returned) or isinstance(returned, tuple | list)
            values = list(returned) if several else [returned]
            produced = Produced.of_each(values, function.__name__, keys, required)
            yield from audit_step(dg.AssetExecutionContext.get(), by_key, produced)

        own = [spec for key, each in by_key.items() for spec in _check_specs(key, each)]
        given = {**arguments, "specs": stored, "check_specs": [*(arguments.get("check_specs") or ()), *own]}
        return dg.multi_asset(**given)(compute)

    return decorate


def _to_audit_checks(owner: str, checks: Iterable[Check]) -> list[AuditCheck]:
    audits = [check if isinstance(check, AuditCheck) else AuditCheck(check) for check in checks]
    if (name := first_duplicate([check.name for check in audits])) is not None:
        raise ValidationError(f"Two checks of {owner} are called '{name}'. Give one of them another name.")
    return audits


def _check_specs(key: dg.AssetKey, checks: Sequence[AuditCheck]) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(
            check.name,
            asset=key,
            description=check.description,
            blocking=check.severity is dg.AssetCheckSeverity.ERROR,
        )
        for check in checks
    ]


def _to_key(key: str | dg.AssetKey) -> dg.AssetKey:
    return key if isinstance(key, dg.AssetKey) else dg.AssetKey.from_user_string(key)


def _asset_key(function: Callable[..., Any], arguments: dict[str, Any]) -> dg.AssetKey:
    """The key that `dagster.asset` gives the asset."""
    if (key := arguments.get("key")) is not None:
        return key if isinstance(key, dg.AssetKey) else dg.AssetKey(key if isinstance(key, str) else list(key))
    prefix = arguments.get("key_prefix") or []
    return dg.AssetKey([*([prefix] if isinstance(prefix, str) else prefix), arguments.get("name") or function.__name__])

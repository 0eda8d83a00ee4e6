"""The step of audited assets: rows are written to branches and checked, and all tables are published, or none."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from floe_dagster_iceberg import run_identity
from floe_dagster_iceberg.audits.audit import Audit, AuditedWrite
from floe_dagster_iceberg.audits.checks import AuditCheck
from floe_dagster_iceberg.audits.publishing import Publication, reject
from floe_dagster_iceberg.audits.results import blocks_publication, evaluate
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.failures import dagster_failures, to_failure
from floe_dagster_iceberg.io_managers.managers import IcebergIOManagerBase, name_of
from floe_dagster_iceberg.models.base import first_duplicate
from floe_dagster_iceberg.models.quantities import counted


@dataclass(frozen=True)
class Produced:
    """What the function of an asset returned for it.

    Attributes:
        asset_key: The asset.
        value: The rows.
        given: Metadata, tags and data version of the output.
    """

    asset_key: dg.AssetKey
    value: Any
    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, returned: Any, asset_key: dg.AssetKey) -> "Produced":
        """What was returned for an asset, bare or as one of Dagster's results.

        Raises:
            Failure: It has results of checks, which would be known too late to keep the rows back.
        """
        if not isinstance(returned, dg.Output | dg.MaterializeResult):
            return cls(asset_key, returned)
        if getattr(returned, "check_results", None):
            raise _refused(
                f"Audited asset '{asset_key.to_user_string()}' returned check results. Name its checks in 'checks', so "
                "that they run before the rows are published."
            )
        given = {"metadata": returned.metadata, "tags": returned.tags, "data_version": returned.data_version}
        return cls(asset_key, returned.value, {name: value for name, value in given.items() if value})

    @classmethod
    def of_each(
        cls, values: Sequence[Any], function: str, keys: Sequence[dg.AssetKey], required: Collection[dg.AssetKey]
    ) -> list["Produced"]:
        """What was returned for several assets: results that name theirs, or rows in the order of the assets.

        Raises:
            Failure: There is not exactly one value for each asset; those that are not required may be missing.
        """
        named = [key for value in values if (key := _named_asset(value, keys)) is not None] or keys
        if len(named) != len(values) or first_duplicate(named) is not None or not {*required} <= {*named} <= {*keys}:
            expected = ", ".join(key.to_user_string() for key in keys)
            raise _refused(
                f"The function '{function}' of audited assets returned {counted(len(values), 'value')}, but not one "
                f"for each of: {expected}. Return a tuple of rows in that order, or a MaterializeResult with asset_key "
                "and value for each."
            )
        return [cls.of(value, key) for value, key in zip(values, named, strict=True)]


def _refused(message: str) -> dg.Failure:
    return to_failure(ValidationError(message))


def _named_asset(value: Any, keys: Sequence[dg.AssetKey]) -> dg.AssetKey | None:
    """The asset that a result says it is for; None if it names none."""
    if isinstance(value, dg.MaterializeResult):
        return value.asset_key
    if isinstance(value, dg.Output):
        return next((key for key in keys if key.to_python_identifier() == value.output_name), None)
    return None


def audit_step(
    context: dg.AssetExecutionContext,
    checks: Mapping[dg.AssetKey, Sequence[AuditCheck]],
    produced: Sequence[Produced],
) -> Iterator[Any]:
    """Write the values of assets to branches and check them; yields the results, then the outputs that publish them."""
    writes = [_plan(context, each) for each in produced]
    audits = dict(zip([each.asset_key for each in produced], _write_all(writes), strict=True))
    failed: dict[dg.AssetKey, list[str]] = {}
    for key, audit in audits.items():
        for check in checks.get(key, ()):
            with dagster_failures(audit.output):
                result = evaluate(check, audit.audited, key)
            if blocks_publication(result):
                failed.setdefault(key, []).append(check.name)
            yield result
    # If an earlier attempt has published, its checks have passed.
    if failed and not any(audit.is_published for audit in audits.values()):
        with dagster_failures(audits[next(iter(failed))].output):
            raise to_failure(reject(audits, failed))
    publication = Publication(list(audits.values()))
    for each in produced:
        yield dg.Output(
            publication.staged_write(audits[each.asset_key], len(checks.get(each.asset_key, ()))),
            output_name=run_identity.output_name_of(context, each.asset_key),
            **each.given,
        )


def _plan(context: dg.AssetExecutionContext, produced: Produced) -> AuditedWrite:
    output, io_manager = run_identity.output_of(context, produced.asset_key, produced.given.get("metadata", {}))
    name = produced.asset_key.to_user_string()
    if not isinstance(io_manager, IcebergIOManagerBase):
        raise _refused(
            f"Audited asset '{name}' is stored by {name_of(type(io_manager))}. Give it an IO manager of "
            "floe_dagster_iceberg."
        )
    with dagster_failures(output):
        if produced.value is None:
            raise ValidationError(
                f"Audited asset '{name}' returned None: there is nothing to audit. Return rows, or an empty DataFrame."
            )
        return AuditedWrite.of(io_manager, output, produced.value)


def _write_all(writes: Sequence[AuditedWrite]) -> list[Audit]:
    """Write the rows of all assets; those of an earlier attempt are used if it had written all of them."""
    with dagster_failures(writes[0].output):
        table = first_duplicate([str(each.write.table) for each in writes])
        if table is not None:
            raise ValidationError(
                f"Two audited assets of one step are stored in '{table}', which can be published only once. Give one "
                "of them another table.",
                table=table,
            )
        found = [each.find() for each in writes]
        begun = [audit for audit in found if audit is not None]
        if len(begun) < len(writes) and not any(audit.is_published for audit in begun):
            # The rows of the tables belong together, and so those of another attempt do not fit.
            for audit in begun:
                audit.of.remove_branch()
            begun, found = [], [None for _ in writes]
    audits = []
    for write, earlier in zip(writes, found, strict=True):
        try:
            with dagster_failures(write.output):
                audits.append(earlier or write.run())
        except Exception:
            for audit in audits:
                if audit not in begun:
                    audit.discard()
            raise
    return audits

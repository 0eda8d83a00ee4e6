"""Guardrails: checks that refuse an operation before it changes anything. Each can be overridden by its name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from floe_dagster_iceberg.errors import MaintenanceRefusedError
from floe_dagster_iceberg.models import ExpiryPolicy, Guardrail, OrphanPolicy, RetentionPolicy
from floe_dagster_iceberg.models.maintenance import MIN_ENVIRONMENT_AGE, MIN_EXPIRY_AGE, MIN_ORPHAN_AGE
from floe_dagster_iceberg.models.quantities import format_duration
from floe_dagster_iceberg.plugins.base import GC_ENABLED, deletes_files
from floe_dagster_iceberg.table.names import table_name

if TYPE_CHECKING:
    from floe_dagster_iceberg.table.maintenance.orphan_files import OrphanSearch


def check_expiry(table: Table, policy: ExpiryPolicy) -> None:
    """Check the age, governance and the ownership of files before an expiry.

    Raises:
        MaintenanceRefusedError: With the guardrail's name and the remedy.
    """
    guardrails = _Guardrails(table, policy.overrides)
    age, floor = format_duration(policy.max_age), policy.governance_min_age
    guardrails.refuse_if(
        Guardrail.EXPIRY_AGE,
        policy.max_age < MIN_EXPIRY_AGE,
        f"max_age of {age} is below {format_duration(MIN_EXPIRY_AGE)}, so running readers would lose their snapshot; "
        "raise it",
    )
    if floor is not None:
        guardrails.refuse_if(
            Guardrail.GOVERNANCE_RETENTION,
            policy.max_age < floor,
            f"max_age {age} is below the {format_duration(floor)} that governance demands; raise it",
        )
    if (environment_age := policy.max_environment_age) is not None:
        guardrails.refuse_if(
            Guardrail.ENVIRONMENT_AGE,
            environment_age < MIN_ENVIRONMENT_AGE,
            f"max_environment_age of {format_duration(environment_age)} is below "
            f"{format_duration(MIN_ENVIRONMENT_AGE)}, so environments in use would be dropped; raise it",
        )
    guardrails.refuse_without_gc()


def check_retention(table: Table, policy: RetentionPolicy) -> None:
    """Check legal holds and governance before rows are looked for.

    Raises:
        MaintenanceRefusedError: With the guardrail's name and the remedy.
    """
    from floe_dagster_iceberg.table.maintenance.expired_rows import refuse_legal_hold  # noqa: PLC0415 - only retention needs it

    refuse_legal_hold(table_name(table), table.metadata)
    floor, age = policy.governance_min_age, policy.max_age
    if floor is not None and age is not None:
        _Guardrails(table, policy.overrides).refuse_if(
            Guardrail.GOVERNANCE_RETENTION,
            age < floor,
            f"max_age {format_duration(age)} is below the {format_duration(floor)} that governance demands for rows; "
            "raise it",
        )


def check_retention_share(table: Table, policy: RetentionPolicy, *, rows: int, total_rows: int) -> None:
    """Check that not more rows go than one run may delete.

    Raises:
        MaintenanceRefusedError: With the guardrail's name and the remedy.
    """
    share = rows / max(total_rows, 1)
    _Guardrails(table, policy.overrides).refuse_if(
        Guardrail.RETENTION_SHARE,
        share > policy.max_share,
        f"{rows:,} of {total_rows:,} rows, {share:.0%}, would be deleted, more than {policy.max_share:.0%}; check "
        "max_age and column, and raise max_share if they are right",
    )


def check_orphan_policy(table: Table, policy: OrphanPolicy, overlapping: Sequence[str]) -> None:
    """Check what can be checked before files are listed; `overlapping` are tables with overlapping locations.

    Raises:
        MaintenanceRefusedError: With the guardrail's name and the remedy.
    """
    guardrails = _Guardrails(table, policy.overrides)
    guardrails.refuse_if(
        Guardrail.ORPHAN_AGE,
        policy.older_than < MIN_ORPHAN_AGE,
        f"older_than of {format_duration(policy.older_than)} is below {format_duration(MIN_ORPHAN_AGE)}, so files of "
        "running writers would count as orphans; raise it",
    )
    guardrails.refuse_without_gc()
    guardrails.refuse_if(
        Guardrail.SHARED_LOCATION,
        bool(overlapping),
        f"its location overlaps with that of {_some(overlapping)}, whose files would count as orphans; move one",
    )


def check_orphans(table: Table, policy: OrphanPolicy, found: "OrphanSearch") -> None:
    """Check that the orphans that were found are plausible.

    Raises:
        MaintenanceRefusedError: With the guardrail's name and the remedy.
    """
    guardrails = _Guardrails(table, policy.overrides)
    guardrails.refuse_if(
        Guardrail.SHARED_LOCATION,
        bool(found.foreign_metadata),
        f"below its location lies the metadata of another table ({_some(found.foreign_metadata)}); move that table, "
        "or delete its files if they are no longer needed",
    )
    guardrails.refuse_if(
        Guardrail.LOCATION_MISMATCH,
        bool(found.other_spellings),
        f"its metadata names {len(found.other_spellings)} of its files under another scheme or authority than its "
        f"location, such as {_some(found.other_spellings[:1])}; make the location agree",
    )
    guardrails.refuse_if(
        Guardrail.ORPHAN_SHARE,
        found.share > policy.max_share,
        f"{len(found.orphans.files)} of {found.objects} files, {found.share:.0%}, would count as orphans, more than "
        f"{policy.max_share:.0%}; check that its location is its own",
    )


class _Guardrails:
    def __init__(self, table: Table, overrides: Sequence[Guardrail]) -> None:
        self._table, self._overrides = table, overrides

    def refuse_if(self, guardrail: Guardrail, refused: bool, reason: str) -> None:  # noqa: FBT001 - it is the condition
        if refused and guardrail not in self._overrides:
            reason = f"{reason}, or name '{guardrail}' in overrides"
            raise MaintenanceRefusedError(table_name(self._table), guardrail=guardrail.value, reason=reason)

    def refuse_without_gc(self) -> None:
        self.refuse_if(
            Guardrail.GC_DISABLED,
            not deletes_files(self._table.properties),
            f"its property {GC_ENABLED} is false, so its files may belong to another table too; set it to true if "
            "they do not",
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"  # noqa: PLR2004 - enough to find them

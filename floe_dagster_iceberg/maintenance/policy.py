"""Where the values of a maintenance policy come from, and the policy that follows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Any, Final, get_origin

import pydantic
from pydantic import BaseModel

from floe_dagster_iceberg.artifacts import EnforcementLevel, Governance
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import MaintenancePolicy, TableIdentifier, snapshot_properties
from floe_dagster_iceberg.models.base import field_errors, nearest
from floe_dagster_iceberg.models.maintenance import MIN_EXPIRY_AGE
from floe_dagster_iceberg.models.quantities import format_bytes, format_duration
from floe_dagster_iceberg.secrets import redact
from floe_dagster_iceberg.table.selection import matches_glob

_ICEBERG_AGE: Final = "history.expire.max-snapshot-age-ms"
_ICEBERG_KEEP: Final = "history.expire.min-snapshots-to-keep"
_NEVER_MS: Final = 100 * 365 * 86_400_000
# Table properties that maintenance itself writes, such as the time of its last run.
_LAST_RUN_PREFIX: Final = f"{snapshot_properties.MAINTENANCE_PREFIX}last-"
# Settings of a run, or that a table's own properties must not decide.
_NOT_OF_A_TABLE: Final = (
    *("tables", "dry_run", "budget."),
    *("expiry.governance_min_age", "expiry.max_environment_age", "retention.governance_min_age"),
)


@cache
def policy_fields() -> Mapping[str, Any]:
    """Type of every value of a policy, by a name such as 'expiry.max_age'."""
    return dict(_walk(MaintenancePolicy))


@cache
def table_properties() -> Mapping[str, str]:
    """The table property of every value that a table may set itself, by the value's name."""
    return {
        name: snapshot_properties.MAINTENANCE_PREFIX + name.replace("_", "-")
        for name in policy_fields()
        if not name.startswith(_NOT_OF_A_TABLE)
    }


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def values_of(model: BaseModel, *, given_only: bool, prefix: str = "") -> dict[str, Any]:
    """The values of a policy, or of the section at `prefix`, by their dotted names; all, or only those given."""
    values: dict[str, Any] = {}
    for name in model.model_fields_set if given_only else type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel) and prefix + name not in policy_fields():
            values |= values_of(value, given_only=given_only, prefix=f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names; unknown ones stay as they are, and fail validation later."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and path not in policy_fields():
            flat |= flattened(value, f"{path}.")
        else:
            flat[path] = read_text(path, value) if isinstance(value, str) else value
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `flattened`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        level = tree
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = value
    return tree


def read_text(path: str, text: str) -> Any:
    """The text of a table property as validation takes it: 'a, b' becomes a list, everything else stays text."""
    if get_origin(policy_fields().get(path)) is Sequence:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


class PolicySource(StrEnum):
    """Where a value comes from, in order of increasing precedence."""

    DEFAULT = "package default"
    ICEBERG = "Iceberg property"
    GOVERNANCE = "governance"
    ARTIFACTS = "artifacts"
    TABLE = "table property"
    CODE = "code"
    RUN = "run config"


@dataclass(frozen=True)
class EffectivePolicy:
    """A policy as it applies.

    Attributes:
        policy: The policy.
        sources: The source of each value, by names such as 'expiry.max_age'.
        warning: A violation of governance that is only a warning.
    """

    policy: MaintenancePolicy
    sources: Mapping[str, PolicySource]
    warning: str | None = None

    def raw_values(self, relevant: tuple[str, ...]) -> dict[str, Any]:
        """The values that `describe` formats, by their names."""
        values = values_of(self.policy, given_only=False).items()
        return {name: raw_setting(name, value) for name, value in values if name.startswith(relevant)}

    def describe(self, relevant: tuple[str, ...]) -> list[tuple[str, str, PolicySource]]:
        """Name, formatted value and source of each value whose name begins with one of `relevant`."""
        return [
            (name, format_setting(name, value), self.sources[name])
            for name, value in values_of(self.policy, given_only=False).items()
            if name.startswith(relevant)
        ]


@dataclass(frozen=True)
class PolicySources:
    """All sources of a policy except the tables' properties.

    Attributes:
        code: The policy as written in code; only values that were given count.
        by_table: Policies of the tables that their globs select, on top of `code`; later ones take precedence.
        artifacts: Policy values of the artifacts, nested as in `MaintenancePolicy`.
        governance: Retention as validated upstream.
        run: Policy values of the run config, by dotted names.
    """

    code: MaintenancePolicy | None = None
    by_table: Sequence[MaintenancePolicy] = ()
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    governance: Governance = field(default_factory=Governance)
    run: Mapping[str, Any] = field(default_factory=dict)

    def with_run(self, **values: Any) -> "PolicySources":
        """A copy in which these values, unless None, take precedence over all others."""
        return replace(self, run={name: value for name, value in values.items() if value is not None})

    def resolve(
        self, table: TableIdentifier | None = None, properties: Mapping[str, str] | None = None
    ) -> EffectivePolicy:
        """The policy of a table with these properties, or of tables that have none.

        Raises:
            ValidationError: A value is not valid, a property is unknown, or the policy keeps less than
                governance asks for and enforcement is strict.
        """
        layers = {
            PolicySource.DEFAULT: values_of(MaintenancePolicy(), given_only=False),
            PolicySource.ICEBERG: _iceberg_values(properties or {}),
            PolicySource.GOVERNANCE: _governance_values(self.governance),
            PolicySource.ARTIFACTS: flattened(self.artifacts),
            PolicySource.TABLE: _property_values(properties or {}, table),
            PolicySource.CODE: self._code_values(table),
            PolicySource.RUN: dict(self.run),
        }
        sources = {name: source for source, layer in layers.items() for name in layer}
        # Sections without a value of their own keep the model's defaults, which need no validation.
        given = {name.partition(".")[0] for name, source in sources.items() if source is not PolicySource.DEFAULT}
        values = {
            name: value for layer in layers.values() for name, value in layer.items() if name.partition(".")[0] in given
        }
        if self.governance.enforcement is EnforcementLevel.STRICT and self.governance.snapshot_max_age is not None:
            # No other source may lower it.
            values["expiry.governance_min_age"] = self.governance.snapshot_max_age
            sources["expiry.governance_min_age"] = PolicySource.GOVERNANCE
        if self.governance.enforcement is EnforcementLevel.STRICT and self.governance.data_max_age is not None:
            values["retention.governance_min_age"] = self.governance.data_max_age
            sources["retention.governance_min_age"] = PolicySource.GOVERNANCE
        policy = _validated(values, sources, table)
        if policy.retention.follow_governance and policy.retention.max_age is None:
            # Only where someone has asked for it: governance alone never deletes a row.
            values["retention.max_age"] = self.governance.data_max_age
            sources["retention.max_age"] = PolicySource.GOVERNANCE
            policy = _validated(values, sources, table)
        return EffectivePolicy(policy, sources, _governance_warning(self.governance, policy, table))

    def _code_values(self, table: TableIdentifier | None) -> dict[str, Any]:
        values = {} if self.code is None else values_of(self.code, given_only=True)
        for policy in self.by_table:
            if table is not None and any(matches_glob(table, glob) for glob in policy.tables):
                given = values_of(policy, given_only=True)
                values |= {name: value for name, value in given.items() if name != "tables"}
        return values


def _iceberg_values(properties: Mapping[str, str]) -> dict[str, Any]:
    """Values of Iceberg's own properties. They are meant for all engines, so values not valid here are ignored."""
    age, keep = properties.get(_ICEBERG_AGE, ""), properties.get(_ICEBERG_KEEP, "")
    values: dict[str, Any] = {}
    # Java's largest long stands for never, and is more than Python can subtract from a date.
    if age.isdecimal() and (max_age := timedelta(milliseconds=min(int(age), _NEVER_MS))) >= MIN_EXPIRY_AGE:
        values["expiry.max_age"] = max_age
    if keep.isdecimal() and int(keep) >= 1:
        values["expiry.min_snapshots_to_keep"] = int(keep)
    return values


def _governance_values(governance: Governance) -> dict[str, Any]:
    values = {
        "expiry.max_age": governance.snapshot_max_age,
        "expiry.min_snapshots_to_keep": governance.snapshot_keep_last,
    }
    return {name: value for name, value in values.items() if value is not None}


def _property_values(properties: Mapping[str, str], table: TableIdentifier | None) -> dict[str, Any]:
    values = {}
    for key, text in properties.items():
        if not key.startswith(snapshot_properties.MAINTENANCE_PREFIX) or key.startswith(_LAST_RUN_PREFIX):
            continue
        name = key.removeprefix(snapshot_properties.MAINTENANCE_PREFIX).replace("-", "_")
        if name not in table_properties():
            raise ValidationError(_unknown_property_message(key, table), table=table)
        values[name] = read_text(name, text)
    return values


def _unknown_property_message(key: str, table: TableIdentifier | None) -> str:
    known = list(table_properties().values())
    guess = nearest(key, known)
    hint = f"Did you mean '{guess}'?" if guess else f"Known are {', '.join(known)}."
    return f"Property '{key}' of table '{table}' is not a maintenance setting. {hint}"


def _validated(
    values: Mapping[str, Any], sources: Mapping[str, PolicySource], table: TableIdentifier | None
) -> MaintenancePolicy:
    try:
        return MaintenancePolicy.model_validate(nested(values))
    except pydantic.ValidationError as error:
        whose = "The maintenance policy" if table is None else f"The maintenance policy of '{table}'"
        # Not chained: a filter holds data values, and Pydantic's own text may show them.
        raise ValidationError(f"{whose} is not valid. {redact(_reasons(error, sources))}.", table=table) from None


def _reasons(error: pydantic.ValidationError, sources: Mapping[str, PolicySource]) -> str:
    reasons = []
    for refused in field_errors(error, MaintenancePolicy):
        name = f"{refused.path}."
        # A rule about several fields names their section, and an item of a list its position.
        deciders = {
            source for path, source in sources.items() if f"{path}.".startswith(name) or name.startswith(f"{path}.")
        }
        decided_by = ", ".join(sorted(deciders - {PolicySource.DEFAULT})) or PolicySource.DEFAULT
        reasons.append(f"{refused.path} ({decided_by}): {refused.message}")
    return "; ".join(reasons)


def _governance_warning(governance: Governance, policy: MaintenancePolicy, table: TableIdentifier | None) -> str | None:
    if governance.enforcement is EnforcementLevel.OFF:
        return None
    strict = governance.model_copy(update={"enforcement": EnforcementLevel.STRICT})
    try:
        strict.check_expiry(
            max_age=policy.expiry.max_age,
            min_snapshots_to_keep=policy.expiry.min_snapshots_to_keep,
            row_max_age=policy.retention.max_age,
        )
    except ValidationError as error:
        message = str(error) if table is None else f"{table}: {error}"
        if governance.enforcement is EnforcementLevel.STRICT:
            raise ValidationError(message, table=table) from None
        return message
    return None


def raw_setting(name: str, value: object) -> Any:
    """The value of a setting, for programs: durations in seconds, sizes in bytes.

    >>> raw_setting("expiry.max_age", timedelta(days=7)), raw_setting("budget.max_rewrite_bytes", 2**30)
    (604800.0, 1073741824)
    """
    match value:
        case None:
            return None
        case _ if name == "compaction.partition_filter":
            # A filter holds data values.
            return "set"
        case timedelta():
            return value.total_seconds()
        case tuple():
            return [str(each) for each in value]
        case bool() | int() | float():
            return value
        case _:
            return str(value)


def format_setting(name: str, value: object) -> str:
    """The value of a setting, for people.

    >>> format_setting("expiry.max_age", timedelta(days=7)), format_setting("budget.max_rewrite_bytes", 2**30)
    ('7 days', '1.0 GiB')
    """
    match value:
        case None | ():
            text = "none"
        case _ if name == "compaction.partition_filter":
            # A filter holds data values.
            text = "set"
        case timedelta():
            text = format_duration(value)
        case tuple():
            text = ", ".join(map(str, value))
        case bool():
            text = "yes" if value else "no"
        case int() | float():
            is_size = any(part.endswith("_bytes") for part in name.split("."))
            text = format_bytes(value) if is_size else f"{round(value, 2):,}".removesuffix(".0")
        case _:
            text = str(value)
    return text

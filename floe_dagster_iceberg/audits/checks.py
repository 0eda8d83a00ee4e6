"""Checks of audited assets: the user's own functions, and ready-made ones.

Ready-made checks read metadata where that suffices, and else scan the needed columns once. Results hold counts, never
values.
"""
# ruff: noqa: PLC0415 - loading a code location must not load PyIceberg and Arrow

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import dagster as dg

from floe_dagster_iceberg.audits.table import AuditedTable
from floe_dagster_iceberg.errors import ValidationError

ERROR = dg.AssetCheckSeverity.ERROR
ROWS_CHECKED, ROWS_FAILING = "iceberg/rows_checked", "iceberg/rows_failing"


@dataclass(frozen=True)
class AuditCheck:
    """A check of an audited asset.

    Attributes:
        function: Takes what the annotation of its argument names, and returns a bool, an `AssetCheckResult`, or
            anything with `success`.
        name: Its name in Dagster; that of the function if not given.
        severity: Whether a failure keeps the rows from being published (ERROR) or is only reported (WARN).
        description: What it checks, shown in Dagster; the first line of the docstring if not given.
    """

    function: Callable[..., Any]
    name: str = ""
    severity: dg.AssetCheckSeverity = ERROR
    description: str | None = field(default=None)

    def __post_init__(self) -> None:
        name = self.name or getattr(self.function, "__name__", "")
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise ValidationError(
                f"A check of an audited asset is called '{name}', which Dagster does not accept. Use a function with a "
                'name, or AuditCheck(function, name="...") with letters, digits and underscores.'
            )
        object.__setattr__(self, "name", name)
        if self.description is None and self.function.__doc__:
            object.__setattr__(self, "description", self.function.__doc__.strip().splitlines()[0])


def not_null(*columns: str, severity: dg.AssetCheckSeverity = ERROR, name: str | None = None) -> AuditCheck:
    """No row has NULL in one of the columns; by the NULL counts of the files where they have them."""
    _check_columns("not_null", columns)

    def check(table: AuditedTable) -> dg.AssetCheckResult:
        found = [table.null_count(column) for column in columns]
        failing = sum(count for count, _ in found)
        return _result(not failing, {ROWS_FAILING: failing}, scanned=any(scanned for _, scanned in found))

    return _ready(check, name or _name("not_null", *columns), severity, f"No NULL in {', '.join(columns)}.")


def unique(*columns: str, severity: dg.AssetCheckSeverity = ERROR, name: str | None = None) -> AuditCheck:
    """No two rows have the same values in the columns; scans these columns."""
    _check_columns("unique", columns)

    def check(table: AuditedTable) -> dg.AssetCheckResult:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows: pa.Table = table.scan(columns)
        # Counted under names of our own: a column may be called like a function.
        names = [f"key{number}" for number in range(len(columns))]
        keyed = rows.select(list(columns)).rename_columns(names)
        counts = keyed.group_by(names).aggregate([([], "count_all")])["count_all"]
        repeated = counts.filter(pc.greater(counts, 1))
        failing = int(pc.sum(repeated).as_py() or 0)
        return _result(
            not failing,
            {ROWS_CHECKED: rows.num_rows, ROWS_FAILING: failing, "iceberg/keys_failing": len(repeated)},
        )

    return _ready(check, name or _name("unique", *columns), severity, f"{', '.join(columns)} identifies a row.")


def accepted_values(
    column: str, values: Sequence[Any], *, severity: dg.AssetCheckSeverity = ERROR, name: str | None = None
) -> AuditCheck:
    """A column has no values but these, or NULL; scans for the others."""
    accepted = list(values)
    if not accepted:
        raise ValidationError(f"accepted_values of column '{column}' names no value. Name at least one.")
    if None in accepted:
        raise ValidationError(
            f"accepted_values of column '{column}' names None. Leave it out: NULL is always accepted."
        )

    def check(table: AuditedTable) -> dg.AssetCheckResult:
        from pyiceberg.expressions import And, NotIn, NotNull, Reference
        from pyiceberg.expressions.literals import literal

        others = NotIn(term=Reference(column), literals={literal(value) for value in accepted})
        failing = table.count_matching(And(NotNull(term=Reference(column)), others))
        return _result(not failing, {ROWS_FAILING: failing})

    described = f"{column} has one of {len(accepted)} accepted values."
    return _ready(check, name or _name("accepted_values", column), severity, described)


def row_count_between(
    minimum: int | None = None,
    maximum: int | None = None,
    *,
    severity: dg.AssetCheckSeverity = ERROR,
    name: str | None = None,
) -> AuditCheck:
    """The number of rows lies between two numbers, both included; by the row counts of the files."""
    if minimum is None and maximum is None:
        raise ValidationError("row_count_between got no bounds. Give a minimum, a maximum, or both.")

    def check(table: AuditedTable) -> dg.AssetCheckResult:
        rows, scanned = table.row_count()
        passed = (minimum is None or rows >= minimum) and (maximum is None or rows <= maximum)
        return _result(passed, {ROWS_CHECKED: rows}, scanned=scanned)

    bounds = f"{'any' if minimum is None else minimum} to {'any' if maximum is None else maximum} rows."
    return _ready(check, name or "row_count_between", severity, bounds)


def row_count_change_within(
    fraction: float, *, severity: dg.AssetCheckSeverity = ERROR, name: str | None = None
) -> AuditCheck:
    """The number of rows differs from that on main by no more than a fraction of it; passes if there were none."""
    if fraction < 0:
        raise ValidationError(f"row_count_change_within got {fraction}. Give a fraction of 0 or more, such as 0.2.")

    def check(table: AuditedTable) -> dg.AssetCheckResult:
        (rows, scanned), previous = table.row_count(), table.previous()
        before, scanned_before = (0, False) if previous is None else previous.row_count()
        passed = not before or abs(rows - before) <= fraction * before
        return _result(passed, {ROWS_CHECKED: rows, "iceberg/rows_before": before}, scanned=scanned or scanned_before)

    return _ready(check, name or "row_count_change_within", severity, f"Row count changes by at most {fraction:.0%}.")


def freshness_within(
    column: str, age: timedelta, *, severity: dg.AssetCheckSeverity = ERROR, name: str | None = None
) -> AuditCheck:
    """The newest value of a date or timestamp column is no older than an age; scans that column."""
    if age <= timedelta(0):
        raise ValidationError(f"freshness_within of column '{column}' got an age of {age}. Give a positive one.")

    def check(table: AuditedTable) -> dg.AssetCheckResult:
        import pyarrow.compute as pc

        newest = pc.max(table.scan([column])[column]).as_py()
        if newest is not None and not isinstance(newest, date):
            raise ValidationError(f"Column '{column}' of '{table.identifier}' is neither a date nor a timestamp.")
        oldest_allowed = datetime.now(UTC) - age
        passed = newest is not None and _instant(newest) >= oldest_allowed
        return _result(passed, {})

    return _ready(check, name or _name("freshness", column), severity, f"The newest {column} is at most {age} old.")


def matches_schema(
    columns: Mapping[str, str], *, severity: dg.AssetCheckSeverity = ERROR, name: str | None = None
) -> AuditCheck:
    """The table has exactly these columns, with these Iceberg types; by its schema."""
    expected = dict(columns)
    if not expected:
        raise ValidationError("matches_schema got no columns. Name them with their Iceberg types.")

    def check(table: AuditedTable) -> dg.AssetCheckResult:
        found = {column.name: str(column.field_type) for column in table.schema.fields}
        differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        description = f"Columns that differ: {', '.join(differing)}." if differing else None
        counts = {"iceberg/columns_failing": len(differing)}
        return _result(not differing, counts, scanned=False, description=description)

    return _ready(check, name or "matches_schema", severity, f"The table has {len(expected)} given columns.")


def _ready(check: Callable[..., Any], name: str, severity: dg.AssetCheckSeverity, description: str) -> AuditCheck:
    return AuditCheck(check, name=name, severity=severity, description=description)


def _result(
    passed: bool,  # noqa: FBT001 - the result
    counts: Mapping[str, int],
    *,
    scanned: bool = True,
    description: str | None = None,
) -> dg.AssetCheckResult:
    read = dg.MetadataValue.text("scan" if scanned else "metadata")
    return dg.AssetCheckResult(
        passed=passed,
        description=description,
        metadata={**{key: dg.MetadataValue.int(count) for key, count in counts.items()}, "iceberg/evaluated_by": read},
    )


def _check_columns(check: str, columns: Sequence[str]) -> None:
    if not columns:
        raise ValidationError(f"{check} got no columns. Name at least one.")


def _name(*parts: str) -> str:
    return re.sub(r"\W", "_", "_".join(parts))


def _instant(value: date) -> datetime:
    """A date counts until its end; a timestamp without a zone is in UTC."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    return datetime.combine(value + timedelta(days=1), time(), UTC)

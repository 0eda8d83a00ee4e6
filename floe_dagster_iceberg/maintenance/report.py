"""Metadata of a maintenance run, which Dagster shows and plots; numbers are totals over all tables."""

import base64
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

from floe_dagster_iceberg import models
from floe_dagster_iceberg.maintenance.policy import EffectivePolicy, PolicySource
from floe_dagster_iceberg.maintenance.runner import BY_WEIGHT, TableOutcome
from floe_dagster_iceberg.models.quantities import format_bytes
from floe_dagster_iceberg.secrets import redact

# More rows are of no use, and every event is stored in Dagster's database.
_MOST_ROWS = 200
# The policy settings that are shown besides an operation's own section, and for a measurement.
_RUN_SETTINGS = ("tables", "engine", "budget.", "dry_run")
_HEALTH_SETTINGS = ("tables", "compaction.", "thresholds.")
_TABLE_SOURCES = (PolicySource.TABLE, PolicySource.ICEBERG)
_WIDTH, _HEIGHT, _MARGIN = 640, 220, 30
_TEXT_COLOUR = "#7b8794"
_COLOURS: Final = {"before": "#9aa5b1", "after": "#4f43dd"}

Bars = Sequence[models.FileSizeBin]
# Metadata keys, and the fields of `TableHealth` they show.
_MEASURES: Final = {
    "iceberg/files": "data_files",
    "iceberg/delete_files": "delete_files",
    "iceberg/small_files": "small_files",
    "iceberg/bytes": "total_bytes",
    "iceberg/snapshots": "snapshots",
    "iceberg/manifests": "manifests",
}


_Operation = models.MaintenanceOperation
# The numbers of an event, which Dagster plots over time; besides its duration.
_PLOTTED: Final = {
    _Operation.TABLE_HEALTH: ("iceberg/tables", *_MEASURES),
    _Operation.RETENTION: (
        *("iceberg/tables_done", "iceberg/tables_failed", "iceberg/rows_deleted"),
        *("iceberg/files_removed", "iceberg/bytes_removed"),
    ),
    _Operation.COMPACTION: (
        *("iceberg/tables_done", "iceberg/tables_failed", "iceberg/files_before", "iceberg/files_after"),
        *("iceberg/small_files_before", "iceberg/bytes_before", "iceberg/bytes_after"),
    ),
    _Operation.SNAPSHOT_EXPIRY: (
        *("iceberg/tables_done", "iceberg/tables_failed", "iceberg/snapshots_before", "iceberg/snapshots_after"),
        *("iceberg/snapshots_expired", "iceberg/files_removed", "iceberg/bytes_removed"),
    ),
    _Operation.MANIFESTS: (
        *("iceberg/tables_done", "iceberg/tables_failed", "iceberg/manifests_before", "iceberg/manifests_after"),
    ),
    _Operation.ORPHAN_FILES: (
        *("iceberg/tables_done", "iceberg/tables_failed", "iceberg/files_removed", "iceberg/bytes_removed"),
    ),
}
# What dry runs plan is text: the page of an asset would plot it beside the numbers of the runs that did the work.
_PLOTTED_IN_DRY_RUNS: Final = ("iceberg/tables_failed",)
# Fields of `MaintenanceResult`, and of `MaintenancePlan` by the end of their metadata keys.
_WORK: Final = ("files_removed", "bytes_removed", "files_added", "bytes_added", "snapshots_expired", "rows_deleted")
_PLANNED: Final = {"files": "input_files", "bytes": "input_bytes", "snapshots": "snapshots", "rows": "rows"}


def build_metadata(
    which: models.MaintenanceOperation, outcomes: Sequence[TableOutcome], policy: EffectivePolicy, *, seconds: float
) -> dict[str, MetadataValue]:
    """Metadata of one operation or measurement of many tables; `policy` is that of tables without own properties.

    The table of results is first. Dagster plots every number, so only those of `_PLOTTED` are numbers; other counts
    are text, and left out where they are 0.
    """
    is_health = which is models.MaintenanceOperation.TABLE_HEALTH
    settings = _HEALTH_SETTINGS if is_health else (*_RUN_SETTINGS, f"{which.policy_section}.")
    dry_run = policy.policy.dry_run and not is_health
    counts = {"iceberg/tables": len(outcomes), **_status_counts(outcomes)}
    counts |= _health_counts(outcomes) if is_health else _operation_counts(outcomes)
    plotted = _PLOTTED_IN_DRY_RUNS if dry_run else _PLOTTED[which]
    decided = _decided(policy, outcomes, settings)
    return {
        "iceberg/health" if is_health else "iceberg/results": _health_table(outcomes)
        if is_health
        else _results_table(outcomes),
        **({} if is_health else {"iceberg/dry_run": MetadataValue.bool(dry_run)}),
        **{key: MetadataValue.int(counts[key]) for key in plotted if key in counts},
        "iceberg/duration": MetadataValue.float(round(seconds, 3)),
        **{
            key: MetadataValue.text(format_bytes(count) if "bytes" in key else f"{count:,}")
            for key, count in counts.items()
            if count and key not in plotted
        },
        **_work_texts([result for outcome in outcomes for result in outcome.results]),
        **_histogram(outcomes),
        **(
            {"iceberg/policy": MetadataValue.md(_markdown(("setting", "value", "decided by"), decided))}
            if decided
            else {}
        ),
    }


def _status_counts(outcomes: Sequence[TableOutcome]) -> dict[str, int]:
    statuses = [outcome.status for outcome in outcomes]
    return {f"iceberg/tables_{status}": statuses.count(status) for status in models.MaintenanceStatus}


def _histogram(outcomes: Sequence[TableOutcome]) -> dict[str, MetadataValue]:
    befores, afters = _bars([outcome.before for outcome in outcomes]), _bars([outcome.after for outcome in outcomes])
    return histogram_metadata(befores, None if afters == befores else afters)


def health_measures(health: models.TableHealth) -> dict[str, int]:
    """The measures that the health's tier has read, by their metadata keys."""
    values = {key: getattr(health, name) for key, name in _MEASURES.items()}
    return {key: value for key, value in values.items() if value is not None}


def _health_counts(outcomes: Sequence[TableOutcome]) -> dict[str, int]:
    return _totals([outcome.health for outcome in outcomes])


def _operation_counts(outcomes: Sequence[TableOutcome]) -> dict[str, int]:
    results = [result for outcome in outcomes for result in outcome.results]
    plans = [result.plan for result in results if result.status is models.MaintenanceStatus.PLANNED and result.plan]
    return {
        **{f"iceberg/{name}": sum(getattr(result, name) for result in results) for name in _WORK},
        **{f"iceberg/planned_{name}": sum(getattr(plan, field) for plan in plans) for name, field in _PLANNED.items()},
        **{f"{key}_before": value for key, value in _totals([outcome.before for outcome in outcomes]).items()},
        **{f"{key}_after": value for key, value in _totals([outcome.after for outcome in outcomes]).items()},
    }


def _totals(healths: Sequence[models.TableHealth | None]) -> dict[str, int]:
    measured = [health_measures(health) for health in healths if health is not None]
    # A measure that the tier does not read must not plot a zero.
    keys = [key for key in _MEASURES if not measured or any(key in measures for measures in measured)]
    return {key: sum(measures.get(key, 0) for measures in measured) for key in keys}


def _work_texts(results: Sequence[models.MaintenanceResult]) -> dict[str, MetadataValue]:
    """The engines that worked, what was sent to Spark, and the guardrails that were overridden."""
    metadata: dict[str, MetadataValue] = {}
    if engines := sorted({result.engine for result in results if result.status is models.MaintenanceStatus.DONE}):
        metadata["iceberg/engine"] = MetadataValue.text(", ".join(engines))
    if statements := [redact(result.statement) for result in results if result.statement]:
        metadata["iceberg/statements"] = MetadataValue.md("\n\n".join(f"```sql\n{text}\n```" for text in statements))
    if overrides := sorted({guardrail.value for result in results for guardrail in result.overrides}):
        metadata["iceberg/overrides"] = MetadataValue.text(", ".join(overrides))
    return metadata


def _results_table(outcomes: Sequence[TableOutcome]) -> MetadataValue:
    # The snapshot ids are last: where the page is narrow, scrolling hides only them.
    counts = ("files", "small", "size", "snapshots", "manifests")
    head = ("table", "status", "what happened", *counts, "seconds", "snapshot id")
    return _table(head, [_results_row(outcome) for outcome in _most_important_first(outcomes)])


def _results_row(outcome: TableOutcome) -> list[str]:
    before, after = outcome.before, outcome.after
    seconds = sum(result.duration.total_seconds() for result in outcome.results)
    return [
        outcome.table,
        outcome.state,
        outcome.note,
        _change(before and before.data_files, after and after.data_files),
        _change(before and before.small_files, after and after.small_files),
        _change(before and format_bytes(before.total_bytes), after and format_bytes(after.total_bytes)),
        _change(before and before.snapshots, after and after.snapshots),
        _change(before and before.manifests, after and after.manifests),
        f"{seconds:.1f}" if outcome.results else "",
        _change(*_snapshot_ids(outcome)),
    ]


def _snapshot_ids(outcome: TableOutcome) -> tuple[int | None, int | None]:
    ids_before = [result.snapshot_id_before for result in outcome.results if result.snapshot_id_before is not None]
    ids_after = [result.snapshot_id_after for result in outcome.results if result.snapshot_id_after is not None]
    before = ids_before[0] if ids_before else None
    return before, ids_after[-1] if ids_after else before


def _health_table(outcomes: Sequence[TableOutcome]) -> MetadataValue:
    head = ("table", "rows", "files", "average", "small", "deletes", "snapshots", "oldest", "manifests", "to compact")
    by_files = sorted(outcomes, key=lambda outcome: -(outcome.health.data_files if outcome.health else 0))
    return _table(head, [_health_row(outcome) for outcome in _most_important_first(by_files)])


def _health_row(outcome: TableOutcome) -> list[str]:
    health = outcome.health
    if health is None:
        return [outcome.table, f"{outcome.status}: {outcome.note}"]
    age = health.oldest_snapshot_age
    return [
        outcome.table,
        str(health.records),
        str(health.data_files),
        format_bytes(health.average_file_size_bytes),
        "" if health.small_files is None else f"{health.small_files} ({health.small_file_share or 0:.0%})",
        str(health.delete_files),
        str(health.snapshots),
        "" if age is None else f"{age.total_seconds() / 86_400:.1f} d",
        _or_blank(health.manifests),
        "" if health.partitions_needing_work is None else f"{health.partitions_needing_work} of {health.partitions}",
    ]


def _decided(
    policy: EffectivePolicy, outcomes: Sequence[TableOutcome], relevant: tuple[str, ...]
) -> list[tuple[str, str, str]]:
    """The values of the policy that are not the package's defaults, and those that tables set themselves."""
    general = policy.describe(relevant)
    rows: list[tuple[str, str, str]] = [row for row in general if row[2] is not PolicySource.DEFAULT]
    values = {(name, value) for name, value, _ in general}
    for outcome in outcomes:
        if outcome.policy is None:
            continue
        own = [name for name, source in outcome.policy.sources.items() if source in _TABLE_SOURCES]
        rows += [
            (f"{name} of {outcome.table}", value, source)
            for name, value, source in outcome.policy.describe(tuple(own))
            if name.startswith(relevant) and (source is PolicySource.TABLE or (name, value) not in values)
        ]
    return rows


def _most_important_first(outcomes: Sequence[TableOutcome]) -> list[TableOutcome]:
    """Failed tables, then those that changed or would change, then those that need nothing."""
    return sorted(outcomes, key=lambda outcome: BY_WEIGHT.index(outcome.status))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> MetadataValue:
    """A table that Dagster shows in place; columns without any value are left out."""
    more = [[f"and {len(rows) - _MOST_ROWS} more"]] if len(rows) > _MOST_ROWS else []
    # A row may be shorter than the head.
    records = [dict(zip_longest(head, row, fillvalue="")) for row in (*rows[:_MOST_ROWS], *more)]
    shown = [name for name in head if name == head[0] or any(record[name] for record in records)]
    return MetadataValue.table(
        [TableRecord({name: record[name] for name in shown}) for record in records],
        TableSchema(columns=[TableColumn(name) for name in shown]),
    )


def _change(before: object, after: object) -> str:
    if before is None or before == after:
        return _or_blank(after)
    return f"{before} → {_or_blank(after)}"


def _or_blank(value: object) -> str:
    return "" if value is None else str(value)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows[:_MOST_ROWS]]
    more = [f"\n… and {len(rows) - _MOST_ROWS} more."] if len(rows) > _MOST_ROWS else []
    return "\n".join([*("| " + " | ".join(map(_cell, line)) + " |" for line in lines), *more])


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _bars(healths: Sequence[models.TableHealth | None]) -> Bars:
    return add_bars([health.file_sizes for health in healths if health is not None])


def add_bars(histograms: Sequence[Bars | None]) -> tuple[models.FileSizeBin, ...]:
    """One histogram of several tables, without those that were not measured."""
    files: dict[int | None, list[int]] = {}
    for bar in (bar for bars in histograms if bars is not None for bar in bars):
        counted = files.setdefault(bar.upper_bytes, [0, 0])
        counted[0] += bar.files
        counted[1] += bar.total_bytes
    edges = sorted(files, key=lambda edge: float("inf") if edge is None else edge)
    return tuple(
        models.FileSizeBin(upper_bytes=edge, files=files[edge][0], total_bytes=files[edge][1]) for edge in edges
    )


def histogram_metadata(before: Bars, after: Bars | None = None) -> dict[str, MetadataValue]:
    """The histogram as metadata, if there is one."""
    picture = draw_histogram(before, after)
    return {"iceberg/file_sizes": MetadataValue.md(picture)} if picture else {}


def draw_histogram(before: Bars, after: Bars | None = None) -> str:
    """Markdown with a histogram of data file sizes, of one state or two; empty if there is nothing to draw."""
    if not before:
        return ""
    series = {"before": before, "after": after} if after else {"after": before}
    picture = base64.b64encode(_svg({name: bars for name, bars in series.items() if bars}).encode()).decode()
    return f"![Data files by size](data:image/svg+xml;base64,{picture})"


def _svg(series: dict[str, Bars]) -> str:
    names = _bin_names(next(iter(series.values())))
    highest = max((bar.files for bars in series.values() for bar in bars), default=0) or 1
    slot = (_WIDTH - 2 * _MARGIN) / len(names)
    shapes = [_text(_MARGIN + (place + 0.5) * slot, _HEIGHT - 8, name) for place, name in enumerate(names)]
    for order, (label, bars) in enumerate(series.items()):
        width = slot * 0.7 / len(series)
        for place, bar in enumerate(bars):
            left = _MARGIN + place * slot + slot * 0.15 + order * width
            shapes += _bar(left, width, bar.files, highest, _COLOURS[label])
        if len(series) > 1:
            shapes.append(_text(_WIDTH - _MARGIN - 90 + 70 * order, 14, label, _COLOURS[label]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11">{"".join(shapes)}</svg>'
    )


def _bar(left: float, width: float, files: int, highest: int, colour: str) -> list[str]:
    room = _HEIGHT - 3 * _MARGIN
    # The bar of a single file must be visible too.
    height = 0.0 if files == 0 else max(2.0, files / highest * room)
    top = _HEIGHT - _MARGIN - height
    shape = f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    return [shape, _text(left + width / 2, top - 4, str(files), colour)] if files else []


def _text(x: float, y: float, text: str, colour: str = _TEXT_COLOUR) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{colour}">{escaped}</text>'


def _bin_names(bars: Bars) -> list[str]:
    lower, names = 0, []
    for bar in bars:
        names.append(f"≥ {format_bytes(lower)}" if bar.upper_bytes is None else f"< {format_bytes(bar.upper_bytes)}")
        lower = bar.upper_bytes or lower
    return names

"""The report of the demo. Every number is read from the tables, or from Dagster's events."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table

from definitions import iceberg
from examples import bronze, gold
from examples.calendar import Calendar
from examples.care import TableChange

_BAR = 40
_DAY = 24


class Report:
    """Prints the tables, the effect of maintenance, and results from the data."""

    def __init__(self, console: Console, calendar: Calendar, instance: dg.DagsterInstance) -> None:
        self._console, self._calendar, self._instance = console, calendar, instance
        self._tables = iceberg["iceberg"].table_manager

    def show(self, changes: Sequence[TableChange]) -> None:
        """Print the report."""
        self._show_tables(changes)
        self._show_guarantees()
        self._show_carriers()
        self._show_weather_and_routes()

    def _show_tables(self, changes: Sequence[TableChange]) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="The lakehouse", title_justify="left")
        table.add_column("table")
        for name in ("rows", "files", "snapshots", "manifests"):
            table.add_column(name, justify="right")
        for change in changes:
            before, after = change.before, change.after
            table.add_row(
                change.table,
                f"{after.rows:,}",
                _arrow(before.files, after.files),
                _arrow(before.snapshots, after.snapshots),
                _arrow(before.manifests, after.manifests),
            )
        self._console.print()
        self._console.print(table)

    def _show_guarantees(self) -> None:
        flights = self._tables.scan("bronze.flights", columns=["year", "month", "day", "time_hour", "note"])
        misplaced = bronze.count_in_another_day(flights)
        here = f"{flights.num_rows - misplaced:,} of {flights.num_rows:,} flights"
        self._console.print("[bold]Guarantees[/]")
        self._say(f"{here} are in the right day of New York's calendar.")
        if lengths := [f"{day} had {hours_of(day):g} hours" for day in self._calendar.days if hours_of(day) != _DAY]:
            self._say(f"{' and '.join(lengths)}.")
        noted = flights.filter(flights.column("note").is_valid())
        days = {f"{row['year']}-{row['month']:02}-{row['day']:02}" for row in noted.to_pylist()}
        self._say(
            f"The column 'note' was added later: {noted.num_rows:,} flights of {', '.join(days)} have one, others NULL."
        )
        reviewed = self._tables.scan("silver.departures", columns=["carrier"], ref=gold.REVIEWED).num_rows
        self._say(f"The tag '{gold.REVIEWED}' still reads {reviewed:,} departures after snapshot expiry.")
        self._show_audit()
        self._show_incremental(flights.num_rows)

    def _show_audit(self) -> None:
        """The day that was rejected, as long as its branch is there: for a week."""
        refs = self._tables.load_table("silver.departures").metadata.refs
        branch = next((name for name in refs if name.startswith("floe-rejected-")), None)
        if branch is None:
            return
        day = self._calendar.last
        start, end = (bound.isoformat() for bound in bronze.NEW_YORK_DAYS.time_window_for_partition_key(day))
        where = f"scheduled_hour >= '{start}' and scheduled_hour < '{end}'"
        rejected, published = (
            self._tables.scan("silver.departures", columns=["carrier"], row_filter=where, branch=name).num_rows
            for name in (branch, "main")
        )
        self._say(
            f"The audit rejected {day} with {rejected:,} departures and left main unchanged; all {published:,} were "
            "published after the fix."
        )
        self._console.print(f"     The rejected rows stay on branch {branch} for a week.")

    def _show_incremental(self, flights: int) -> None:
        key = gold.flights_per_hour.key
        *_, second = self._instance.fetch_materializations(key, limit=2, ascending=True).records
        read = second.asset_materialization.metadata if second.asset_materialization else {}
        # Tables that an earlier version of the demo has loaded were not read in this way.
        if gold.DAYS_READ not in read:
            return
        days, rows = (read[name].value for name in (gold.DAYS_READ, gold.FLIGHTS_READ))
        self._say(
            f"In its second run, flights_per_hour read only the days of changed files: {days} of "
            f"{len(self._calendar.days)}, with {rows:,} of {flights:,} flights."
        )

    def _show_carriers(self) -> None:
        carriers = self._by_late_share("gold.carrier_punctuality")
        worst = max((row["late_share"] for row in carriers), default=0.0) or 1.0
        self._console.print("\n[bold]Which carriers are late most often?[/]")
        self._console.print(f"Share of flights that arrived more than {gold.LATE_MINUTES} minutes late")
        for row in carriers:
            bar = "█" * round(_BAR * row["late_share"] / worst)
            self._console.print(f"  {row['name'][:28]:<28} [blue]{bar}[/] {row['late_share']:.0%}")

    def _show_weather_and_routes(self) -> None:
        sight = {row["sight"]: row for row in self._tables.scan("gold.weather_effect").to_pylist()}
        if {"fog", "clear"} <= sight.keys():
            fog, clear = sight["fog"], sight["clear"]
            self._console.print(
                f"\nIn fog a departure was {fog['average_delay']:.0f} minutes late on average and "
                f"{fog['cancelled_share']:.1%} were cancelled; in clear weather {clear['average_delay']:.0f} minutes "
                f"and {clear['cancelled_share']:.1%}."
            )
        routes, days = self._by_late_share("gold.route_punctuality"), len(self._calendar.days)
        if daily := [row for row in routes if row["flights"] >= days]:
            worst, best = (f"{_route(row)} ({row['late_share']:.0%})" for row in (daily[0], daily[-1]))
            self._console.print(f"Of the daily routes, {worst} was late most often, {best} least often.")

    def _by_late_share(self, table: str) -> list[dict[str, Any]]:
        rows: pa.Table = self._tables.scan(table, row_filter="late_share is not null")
        return list(rows.sort_by([("late_share", "descending")]).to_pylist())

    def _say(self, sentence: str) -> None:
        self._console.print(f"  [green]✓[/]  {sentence}")


def hours_of(day: str) -> float:
    """The length of a day in New York."""
    window = bronze.NEW_YORK_DAYS.time_window_for_partition_key(day)
    return (window.end.timestamp() - window.start.timestamp()) / timedelta(hours=1).total_seconds()


def _arrow(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"


def _route(row: dict[str, Any]) -> str:
    return f"{row['origin']} to {row['destination'] or row['dest']}"

"""One operation over many tables, several at a time; a table that fails does not stop the others."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from logging import Logger
from typing import TYPE_CHECKING, Final, assert_never

from floe_dagster_iceberg import models
from floe_dagster_iceberg.errors import UnsupportedMetadataError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy import EffectivePolicy, PolicySource, PolicySources
from floe_dagster_iceberg.maintenance.side_by_side import side_by_side
from floe_dagster_iceberg.models import MaintenanceOperation, MaintenanceResult, MaintenanceStatus, TableHealth
from floe_dagster_iceberg.models.quantities import counted, format_bytes, format_duration
from floe_dagster_iceberg.secrets import describe_failure, redact
from floe_dagster_iceberg.table.selection import SelectedTables, no_match, not_found, select_tables

if TYPE_CHECKING:
    # It loads PyIceberg and Arrow, which takes seconds; loading definitions must not.
    from floe_dagster_iceberg.table.manager import IcebergTableManager

# The status of a table with several operations is the first of these.
BY_WEIGHT: Final = (
    MaintenanceStatus.FAILED,
    MaintenanceStatus.DONE,
    MaintenanceStatus.PLANNED,
    MaintenanceStatus.SKIPPED,
)
# What a plan that was not executed comes to, the most important first.
_STATES: Final = {
    models.PlanReason.RECOMMENDED: "would run",
    models.PlanReason.BELOW_THRESHOLD: "nothing to do",
    models.PlanReason.MIN_INTERVAL: "too early",
    models.PlanReason.BUDGET_CAPPED: "over budget",
    models.PlanReason.BLOCKED: "blocked",
}
_REASONS: Final = {
    models.PlanReason.RECOMMENDED: "There is work to do.",
    models.PlanReason.BELOW_THRESHOLD: "Nothing to do.",
    models.PlanReason.MIN_INTERVAL: "Its last run is too recent.",
    models.PlanReason.BUDGET_CAPPED: "It does not fit into what is left of the budget.",
    models.PlanReason.BLOCKED: "Blocked.",
}


@dataclass(frozen=True)
class TableOutcome:
    """The outcome of one table in a run.

    Attributes:
        table: Name of the table.
        status: Status of the table.
        note: What was done, or why nothing was, in one sentence.
        results: Results of the operations.
        health: The table's health, if it was only measured.
        policy: The policy that applied.
    """

    table: str
    status: MaintenanceStatus
    note: str
    results: Sequence[MaintenanceResult] = ()
    health: TableHealth | None = None
    policy: EffectivePolicy | None = None

    @property
    def state(self) -> str:
        """The status in words: for a plan that was not executed, what it comes to."""
        plans = [result.plan for result in self.results if result.plan is not None]
        if not plans or self.status not in (MaintenanceStatus.PLANNED, MaintenanceStatus.SKIPPED):
            return self.status.value
        if self.status is MaintenanceStatus.SKIPPED and self.is_actionable:
            # Planned but not done: another writer committed first.
            return "left"
        # Compaction plans data files and delete files.
        return _STATES[min((plan.reason for plan in plans), key=list(_STATES).index)]

    @property
    def is_actionable(self) -> bool:
        """Whether there was something to do and nothing in the way."""
        return any(result.plan is not None and result.plan.is_actionable for result in self.results)

    @property
    def before(self) -> TableHealth | None:
        """Health before the first operation."""
        return next((result.before for result in self.results if result.before is not None), self.health)

    @property
    def after(self) -> TableHealth | None:
        """Health after the last operation that changed something, else the one before."""
        return next((result.after for result in reversed(self.results) if result.after is not None), self.before)


@dataclass(frozen=True)
class _Candidate:
    table: models.TableIdentifier
    policy: EffectivePolicy


class MaintenanceRun:
    """One run of a maintenance asset: its operation on every selected table."""

    def __init__(
        self,
        asset: MaintenanceOperation,
        manager: "IcebergTableManager",
        maintenance: TableMaintenance,
        sources: PolicySources,
        log: Logger,
    ) -> None:
        self._asset, self._manager, self._maintenance = asset, manager, maintenance
        self._sources, self._log = sources, log
        self.policy = sources.resolve()

    def operate(self) -> list[TableOutcome]:
        """Run the asset's operation on every table."""
        candidates, outcomes = self._prepare()
        budget = _Budget(self.policy.policy.budget)
        ranked = self._ranked(candidates)
        # What a table may rewrite is known when the one before is done.
        at_once = self._at_once if self.policy.policy.budget.max_rewrite_bytes is None else 1
        return outcomes + self._for_each(ranked, lambda candidate: self._operate_on(candidate, budget), at_once)

    def measure(self, tier: models.HealthTier) -> list[TableOutcome]:
        """Measure every table; nothing is changed."""
        candidates, outcomes = self._prepare()
        return outcomes + self._for_each(candidates, lambda each: self._measure(each, tier), self._at_once)

    def restore(self) -> list[TableOutcome]:
        """Move the orphans in every table's quarantines back to where they were; with `dry_run` only count them."""
        candidates, outcomes = self._prepare()
        return outcomes + self._for_each(candidates, self._restore, self._at_once)

    @property
    def _at_once(self) -> int:
        return self.policy.policy.budget.max_concurrent_tables

    def _for_each(
        self, candidates: Sequence[_Candidate], work: Callable[[_Candidate], TableOutcome], at_once: int
    ) -> list[TableOutcome]:
        numbers = count(1)

        def attempt(candidate: _Candidate) -> TableOutcome:
            try:
                return work(candidate)
            # Of any kind: an error of one table is that table's failure, and the next ones get their turn. Interrupts
            # of Dagster and of the keyboard are no Exception, and end the run.
            except Exception as error:  # noqa: BLE001
                return _failed(candidate.table, error, candidate.policy)

        def log(outcome: TableOutcome) -> None:
            self._log_outcome(f"{next(numbers)} of {len(candidates)}", outcome)

        return side_by_side(attempt, candidates, at_once=at_once, on_result=log)

    def _prepare(self) -> tuple[list[_Candidate], list[TableOutcome]]:
        """The tables to work on, and the outcomes of all others."""
        selected = select_tables(self._manager, self.policy.policy.tables)
        candidates = []
        outcomes = list(self._not_selected(selected))
        outcomes += [
            TableOutcome(f"{namespace}.*", MaintenanceStatus.SKIPPED, f"Its tables cannot be listed. {reason}")
            for namespace, reason in selected.skipped.items()
        ]
        for prepared in side_by_side(self._prepare_table, selected.found, at_once=self._at_once):
            if isinstance(prepared, _Candidate):
                if prepared.policy.warning is not None:
                    self._log.warning(prepared.policy.warning)
                candidates.append(prepared)
            else:
                outcomes.append(prepared)
                self._log_outcome("not started", prepared)
        self._log.info(f"{self._asset}: {counted(len(candidates), 'table')} selected, {len(outcomes)} skipped.")
        return candidates, outcomes

    def _not_selected(self, selected: SelectedTables) -> Iterator[TableOutcome]:
        """Names and globs without a table: a mistake in the run config; in a policy the table may come later."""
        if self.policy.sources["tables"] is not PolicySource.RUN:
            for name in selected.missing:
                yield TableOutcome(name, MaintenanceStatus.SKIPPED, "The catalog has no such table.")
            return
        for name in selected.missing:
            yield TableOutcome(name, MaintenanceStatus.FAILED, str(not_found(self._manager, name)))
        for glob in selected.unmatched:
            yield TableOutcome(glob, MaintenanceStatus.FAILED, str(no_match(self._manager, glob)))

    def _prepare_table(self, table: models.TableIdentifier) -> _Candidate | TableOutcome:
        try:
            loaded = self._manager.load_table(table)
            policy = self._sources.resolve(table, loaded.properties)
        except UnsupportedMetadataError as error:
            if self._asset is not MaintenanceOperation.TABLE_HEALTH or not error.document:
                return _failed(table, error)
            # Little of it is known, but that can be measured.
            return _Candidate(table, self._sources.resolve(table))
        # As in `_for_each`.
        except Exception as error:  # noqa: BLE001
            return _failed(table, error)
        candidate = _Candidate(table, policy)
        if loaded.metadata.current_snapshot_id is None:
            return _skipped(candidate, "The table is empty.")
        if not policy.policy.section_of(self._asset).enabled:
            return _skipped(candidate, f"Switched off by {policy.sources[f'{self._asset.policy_section}.enabled']}.")
        return candidate

    def _operate_on(self, candidate: _Candidate, budget: "_Budget") -> TableOutcome:
        if (spent := budget.spent_on) is not None:
            return _skipped(candidate, spent)
        policy = candidate.policy.policy.model_copy(update={"budget": budget.left})
        results = [self._maintenance.execute(self._asset, candidate.table, policy)]
        if self._asset is MaintenanceOperation.COMPACTION and _has_deletes_to_rewrite(policy, results[0]):
            results.append(self._maintenance.execute(MaintenanceOperation.POSITION_DELETES, candidate.table, policy))
        budget.count(results)
        status = min((result.status for result in results), key=BY_WEIGHT.index)
        note = " ".join(_describe_result(result) for result in results if result.status is status)
        return TableOutcome(str(candidate.table), status, note, results, policy=candidate.policy)

    def _measure(self, candidate: _Candidate, tier: models.HealthTier) -> TableOutcome:
        health = self._maintenance.health(candidate.table, candidate.policy.policy, tier=tier)
        note = f"{counted(health.data_files, 'file')}, {counted(health.snapshots, 'snapshot')}."
        if health.tier is models.HealthTier.SUMMARY and tier is not models.HealthTier.SUMMARY:
            note += " Only the summary of its newest snapshot is known: PyIceberg cannot parse its metadata."
        return TableOutcome(str(candidate.table), MaintenanceStatus.DONE, note, health=health, policy=candidate.policy)

    def _restore(self, candidate: _Candidate) -> TableOutcome:
        table, dry_run = candidate.table, candidate.policy.policy.dry_run
        files = self._maintenance.restore_orphans(table, dry_run=dry_run)
        if not files:
            return _skipped(candidate, "No file is in quarantine.")
        status = MaintenanceStatus.PLANNED if dry_run else MaintenanceStatus.DONE
        note = f"{counted(files, 'file')} {'would move' if dry_run else 'moved'} back from quarantine."
        return TableOutcome(str(table), status, note, policy=candidate.policy)

    def _ranked(self, candidates: Sequence[_Candidate]) -> Sequence[_Candidate]:
        """With a byte budget, the tables first that lose the most files for each byte that is rewritten."""
        if self._asset is not MaintenanceOperation.COMPACTION or self.policy.policy.budget.max_rewrite_bytes is None:
            return candidates
        gains = side_by_side(self._gain, candidates, at_once=self._at_once)
        by_gain = sorted(zip(gains, candidates, strict=True), key=lambda ranked: ranked[0], reverse=True)
        return [candidate for _, candidate in by_gain]

    def _gain(self, candidate: _Candidate) -> float:
        try:
            plan = self._maintenance.plan(MaintenanceOperation.COMPACTION, candidate.table, candidate.policy.policy)
        # It is reported when the table is compacted.
        except Exception:  # noqa: BLE001
            return 0.0
        return files_saved_per_mib(plan)

    def _log_outcome(self, progress: str, outcome: TableOutcome) -> None:
        log = self._log.error if outcome.status is MaintenanceStatus.FAILED else self._log.info
        log(f"{self._asset}, {progress}: {outcome.table} {outcome.status}. {outcome.note}")


class _Budget:
    """What is left of the bytes and the time of a run."""

    def __init__(self, budget: models.MaintenanceBudget) -> None:
        self._given, self._rewritten, self._started = budget, 0, time.monotonic()

    @property
    def left(self) -> models.MaintenanceBudget:
        given = self._given.max_rewrite_bytes
        return self._given.model_copy(
            update={"max_rewrite_bytes": None if given is None else max(1, given - self._rewritten)}
        )

    @property
    def spent_on(self) -> str | None:
        """Why no further table is started, if so."""
        seconds, time_limit = time.monotonic() - self._started, self._given.max_duration
        if time_limit is not None and seconds >= time_limit.total_seconds():
            return f"The run's time of {format_duration(time_limit)} is used up; the next run continues."
        given = self._given.max_rewrite_bytes
        if given is not None and self._rewritten >= given:
            return f"The run's budget of {format_bytes(given)} is used up; the next run continues."
        return None

    def count(self, results: Sequence[MaintenanceResult]) -> None:
        """Count what was rewritten, or would have been."""
        for result in results:
            if result.status is MaintenanceStatus.DONE and result.files_added:
                self._rewritten += result.bytes_removed
            elif result.status is MaintenanceStatus.PLANNED and result.operation is MaintenanceOperation.COMPACTION:
                self._rewritten += 0 if result.plan is None else result.plan.input_bytes


def _describe_result(result: MaintenanceResult) -> str:
    """What an operation did, would do, or why it did nothing."""
    match result.status:
        case MaintenanceStatus.FAILED:
            return redact(str(result.error))
        case MaintenanceStatus.SKIPPED | MaintenanceStatus.PLANNED:
            plan = result.plan
            return (
                "Nothing to do." if plan is None else redact(plan.blocked_by or plan.summary or _REASONS[plan.reason])
            )
        case MaintenanceStatus.DONE:
            return _describe_work(result)
        case _:
            assert_never(result.status)


def _describe_work(result: MaintenanceResult) -> str:
    removed = f"{counted(result.files_removed, 'file')} ({format_bytes(result.bytes_removed)})"
    match result.operation:
        case MaintenanceOperation.SNAPSHOT_EXPIRY:
            left = f" {counted(len(result.files_left), 'file')} could not be deleted." if result.files_left else ""
            refs = () if result.plan is None else result.plan.refs
            dropped = f" Branches and tags past their age: {', '.join(refs)}." if refs else ""
            return f"{counted(result.snapshots_expired, 'snapshot')} expired, {removed} deleted.{left}{dropped}"
        case MaintenanceOperation.ORPHAN_FILES:
            return f"{removed} moved to quarantine or deleted from it."
        case MaintenanceOperation.MANIFESTS:
            return f"{counted(result.files_removed, 'manifest')} became {result.files_added:,}."
        case MaintenanceOperation.RETENTION:
            what = f"{counted(result.rows_deleted, 'row')} deleted: {removed}"
            return f"{what} became {result.files_added:,} ({format_bytes(result.bytes_added)})."
        case MaintenanceOperation.COMPACTION | MaintenanceOperation.POSITION_DELETES:
            return f"{removed} became {result.files_added:,} ({format_bytes(result.bytes_added)})."
        case MaintenanceOperation.TABLE_HEALTH:
            raise AssertionError("a measurement has no result")
        case _:
            assert_never(result.operation)


def _has_deletes_to_rewrite(policy: models.MaintenancePolicy, compacted: MaintenanceResult) -> bool:
    # Compaction has just measured the table, and most tables have no delete files.
    health = compacted.after or compacted.before
    return policy.compaction.rewrite_position_deletes and health is not None and health.delete_files > 0


def files_saved_per_mib(plan: models.MaintenancePlan) -> float:
    """Files that compaction would save for each MiB it rewrites; 0 if there is nothing to do."""
    if not plan.is_actionable:
        return 0.0
    return (plan.input_files - plan.output_files) / max(plan.input_bytes / 2**20, 1e-6)


def _skipped(candidate: _Candidate, reason: str) -> TableOutcome:
    return TableOutcome(str(candidate.table), MaintenanceStatus.SKIPPED, reason, policy=candidate.policy)


def _failed(table: models.TableIdentifier, error: Exception, policy: EffectivePolicy | None = None) -> TableOutcome:
    return TableOutcome(str(table), MaintenanceStatus.FAILED, describe_failure(error), policy=policy)

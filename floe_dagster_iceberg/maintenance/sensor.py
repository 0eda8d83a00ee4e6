"""The sensor that compacts a table when its health check fails: once per episode, the most gain first."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    DagsterInstance,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
)

from floe_dagster_iceberg.maintenance.assets import GROUP, maintenance_key
from floe_dagster_iceberg.maintenance.schedules import unfinished_run_id
from floe_dagster_iceberg.maintenance.settings import MaintenanceAsset, SensorSettings
from floe_dagster_iceberg.models import MaintenanceBudget, MaintenanceOperation

SENSOR: Final = f"{GROUP}_compact_unhealthy_tables"


@dataclass(frozen=True)
class Verdict:
    """What a health check said last.

    Attributes:
        check: The check.
        evaluation: Which evaluation said it.
        needs_compaction: Whether it failed, and compaction mends it.
        table: The table.
        gain: Files that compaction saves for each MiB it rewrites.
        rewrite_bytes: Bytes that compaction rewrites.
    """

    check: str
    evaluation: str
    needs_compaction: bool
    table: str = ""
    gain: float = 0.0
    rewrite_bytes: int = 0


def build_compaction_sensor(
    checks: Sequence[AssetCheckKey], job: Any, *, budget: MaintenanceBudget, settings: SensorSettings
) -> SensorDefinition:
    """Build a sensor that requests compaction of exactly the tables that failed checks name.

    An episode begins with a failed check and ends with a passed one. Compaction is requested
    once in it, when no other compaction is waiting or at work. Tables are ranked by the files
    that each rewritten byte saves; what goes beyond the budget waits for the next evaluation.

    Args:
        checks: Health checks to watch.
        job: The compaction job.
        budget: How much one run may rewrite.
        settings: How often to look, and whether it runs without being started by a person.
    """

    def evaluate(context: SensorEvaluationContext) -> SensorResult:
        verdicts = list(_read_verdicts(context.instance, checks))
        well = {verdict.check for verdict in verdicts if not verdict.needs_compaction}
        served = set(json.loads(context.cursor or "[]")) & {check.to_user_string() for check in checks} - well
        waiting = [verdict for verdict in verdicts if verdict.check not in served | well]
        if not waiting:
            return _waits("No health check asks for compaction that was not requested already.", served)
        if (run_id := unfinished_run_id(context.instance, MaintenanceAsset.COMPACTION)) is not None:
            return _waits(f"Run {run_id} compacts tables at this moment.", served)
        chosen = choose(waiting, budget)
        return SensorResult(
            run_requests=[_request(chosen)], cursor=_cursor(served | {verdict.check for verdict in chosen})
        )

    return SensorDefinition(
        name=SENSOR,
        evaluation_fn=evaluate,
        job=job,
        minimum_interval_seconds=settings.interval_seconds,
        default_status=DefaultSensorStatus.RUNNING if settings.enabled else DefaultSensorStatus.STOPPED,
        description="Compacts tables whose health check failed, once per episode, the most gain first.",
    )


def choose(waiting: Sequence[Verdict], budget: MaintenanceBudget) -> list[Verdict]:
    """The tables of the next run: those that gain most, within the budget, but at least one."""
    chosen: list[Verdict] = []
    left = budget.max_rewrite_bytes
    for verdict in sorted(waiting, key=lambda each: (-each.gain, each.check)):
        # A table beyond the whole budget would wait for ever; its run does as much as fits.
        if left is None or not chosen or verdict.rewrite_bytes <= left:
            chosen.append(verdict)
            left = None if left is None else left - verdict.rewrite_bytes
    return chosen


def _read_verdicts(instance: DagsterInstance, checks: Sequence[AssetCheckKey]) -> Iterator[Verdict]:
    for check in checks:
        record = instance.get_latest_asset_check_evaluation_record(check)
        evaluation = None if record is None else record.evaluation
        if record is None or not isinstance(evaluation, AssetCheckEvaluation):
            # Never run, or being run right now: nothing new is known.
            continue
        said = {key: value.value for key, value in evaluation.metadata.items()}
        if not evaluation.passed and "iceberg/remedies" not in said:
            # The table could not be looked at.
            continue
        name = check.to_user_string()
        remedies: Any = said.get("iceberg/remedies", [])
        if evaluation.passed or MaintenanceOperation.COMPACTION.value not in remedies:
            yield Verdict(name, str(record.id), needs_compaction=False)
            continue
        gain: Any = said["iceberg/compaction_gain"]
        rewrite_bytes: Any = said["iceberg/compaction_bytes"]
        yield Verdict(
            name,
            str(record.id),
            needs_compaction=True,
            table=str(said["dagster/table_name"]),
            gain=float(gain),
            rewrite_bytes=int(rewrite_bytes),
        )


def _request(chosen: Sequence[Verdict]) -> RunRequest:
    op = maintenance_key(MaintenanceAsset.COMPACTION).to_python_identifier()
    # The same evaluations never start two runs, even when the cursor is lost.
    evaluations = "\n".join(f"{verdict.check} {verdict.evaluation}" for verdict in chosen)
    return RunRequest(
        run_key=hashlib.sha256(evaluations.encode()).hexdigest(),
        run_config={"ops": {op: {"config": {"tables": [verdict.table for verdict in chosen]}}}},
        tags={"floe/cause": "iceberg_table_health"},
    )


def _waits(reason: str, served: set[str]) -> SensorResult:
    return SensorResult(skip_reason=reason, cursor=_cursor(served))


def _cursor(served: set[str]) -> str:
    return json.dumps(sorted(served))

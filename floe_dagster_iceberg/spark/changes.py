"""Changes of a table as lazy DataFrames: the mirror of `table/changes/`.

By Iceberg's own incremental reads and its procedure `create_changelog_view`. Neither supports rollbacks, and the
procedure no snapshot that has delete files: there, the table is compared with itself at the two versions, in the
partitions that changed.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby
from typing import Any

from pyiceberg.expressions import And
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.models import ChangesMode
from floe_dagster_iceberg.spark.filters import to_condition
from floe_dagster_iceberg.spark.frame_rows import conform
from floe_dagster_iceberg.spark.procedures import SparkProcedures
from floe_dagster_iceberg.spark.scan import empty_frame, open_frame, with_current_columns
from floe_dagster_iceberg.spark.types import quote
from floe_dagster_iceberg.table.changes.changelog import (
    CHANGE_COLUMNS,
    CHANGE_ORDINAL,
    CHANGE_TYPE,
    COMMIT_SNAPSHOT_ID,
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
)
from floe_dagster_iceberg.table.changes.partitions import partitions_filter
from floe_dagster_iceberg.table.changes.plan import SnapshotChanges
from floe_dagster_iceberg.table.manager.changes import TableChanges
from floe_dagster_iceberg.table.names import to_identifier
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, traced_step

_INVERSE = {INSERT: DELETE, DELETE: INSERT, UPDATE_BEFORE: UPDATE_AFTER, UPDATE_AFTER: UPDATE_BEFORE}


def _describe(_: object, changes: TableChanges) -> dict[str, Any]:
    return {**describe_table(changes.plan.table.name()), attrs.ENGINE: "spark"}


@traced_step("open_changes", _describe)
def open_changes(session: SparkSession, changes: TableChanges) -> DataFrame:
    """Open changes as a DataFrame, with the columns that `TableChanges.to_arrow` has.

    Raises:
        IcebergError: Spark's procedure failed.
    """
    plan = changes.plan
    if plan.mode is ChangesMode.PARTITIONS:
        where = And(changes.row_filter, changes.options.row_filter)
        return open_frame(
            session,
            plan.table,
            snapshot_id=plan.until,
            row_filter=where,
            columns=changes.columns,
            current_columns=True,
        )
    frame = _Changelog(session, changes).frame()
    if plan.mode is ChangesMode.APPENDS:
        frame = frame.drop(*CHANGE_COLUMNS)
    frame = frame.where(F.expr(to_condition(changes.options.row_filter, plan.table.schema())))
    if not changes.columns:
        return frame
    wanted = [*changes.columns, *(name for name in CHANGE_COLUMNS if name in frame.columns)]
    return frame.select(*(F.col(quote(*name.split("."))) for name in wanted))


class _Changelog:
    def __init__(self, session: SparkSession, changes: TableChanges) -> None:
        self._session, self._plan, self._options = session, changes.plan, changes.options
        self._table = changes.plan.table

    def frame(self) -> DataFrame:
        plan = self._plan
        if plan.reads_everything:
            return _described(self._at(plan.until), INSERT, 0, plan.until)
        if not plan.steps:
            return _described(empty_frame(self._session, self._table.schema()), INSERT, 0, plan.until)
        if plan.mode is ChangesMode.APPENDS and all(map(_is_append, plan.steps)):
            return self._appended(plan.steps)
        if self._options.net_changes and not all(map(_by_procedure, plan.steps)):
            return self._difference(plan.steps, plan.since, plan.until, 0, plan.until)
        return reduce(DataFrame.unionByName, self._pieces())

    def _pieces(self) -> Iterator[DataFrame]:
        ordinal = 0
        # One call of the procedure for as many snapshots as it supports.
        for (by_procedure, undone), found in groupby(self._plan.steps, lambda step: (_supported(step), step.undone)):
            steps = list(found)
            if by_procedure:
                yield self._by_procedure(steps, ordinal, undone=undone)
            else:
                yield from (self._of_step(step, ordinal + number) for number, step in enumerate(steps))
            ordinal += len(steps)

    def _by_procedure(self, steps: Sequence[SnapshotChanges], ordinal: int, *, undone: bool) -> DataFrame:
        first, last = (steps[-1], steps[0]) if undone else (steps[0], steps[-1])
        start, end = first.snapshot.parent_snapshot_id, last.snapshot.snapshot_id
        options = self._options
        # By its range, so that reading it again replaces the view instead of adding one.
        known = hash((self._table.name(), start, end, options.net_changes, options.identifier_columns))
        view = f"floe_changes_{abs(known)}"
        SparkProcedures(self._session, self._table.catalog.name).create_changelog_view(
            to_identifier(self._table),
            view,
            start=start,
            end=end,
            net_changes=options.net_changes,
            identifier_columns=options.identifier_columns,
        )
        frame = self._session.table(view)
        number = F.col(CHANGE_ORDINAL)
        if undone:
            number, kinds = (
                F.lit(len(steps) - 1) - number,
                F.create_map(*(F.lit(word) for pair in _INVERSE.items() for word in pair)),
            )
            frame = frame.withColumn(CHANGE_TYPE, kinds[F.col(CHANGE_TYPE)])
        return frame.withColumn(CHANGE_ORDINAL, (number + F.lit(ordinal)).cast("int"))

    def _of_step(self, step: SnapshotChanges, ordinal: int) -> DataFrame:
        snapshot = step.snapshot
        if _is_append(step):
            return _described(self._appended([step]), INSERT, ordinal, snapshot.snapshot_id)
        before, after = snapshot.parent_snapshot_id, snapshot.snapshot_id
        if step.undone:
            return self._difference([step], after, before, ordinal, snapshot.snapshot_id)
        return self._difference([step], before, after, ordinal, snapshot.snapshot_id)

    def _appended(self, steps: Sequence[SnapshotChanges]) -> DataFrame:
        start, end = steps[0].snapshot.parent_snapshot_id, steps[-1].snapshot.snapshot_id
        reader = self._session.read.option("end-snapshot-id", str(end))
        if start is not None:
            reader = reader.option("start-snapshot-id", str(start))
        return conform(reader.table(_spark_name(self._table)), self._table.schema())

    def _difference(
        self, steps: Sequence[SnapshotChanges], before: int | None, after: int | None, ordinal: int, snapshot_id: int
    ) -> DataFrame:
        """The rows in which two versions differ, in the partitions that snapshots changed."""
        files = [file for step in steps for file, _ in step.files]
        where = F.expr(to_condition(partitions_filter(self._table.metadata, files), self._table.schema()))
        old, new = self._at(before).where(where), self._at(after).where(where)
        deleted = _described(old.exceptAll(new), DELETE, ordinal, snapshot_id)
        changes = deleted.unionByName(_described(new.exceptAll(old), INSERT, ordinal, snapshot_id))
        return self._with_updates(changes) if self._options.identifier_columns else changes

    def _with_updates(self, changes: DataFrame) -> DataFrame:
        same_key = Window.partitionBy(*(F.col(quote(column)) for column in self._options.identifier_columns))
        is_delete = F.col(CHANGE_TYPE) == DELETE
        deletes, inserts = (F.sum(F.when(each, 1).otherwise(0)).over(same_key) for each in (is_delete, ~is_delete))
        image = F.when(is_delete, UPDATE_BEFORE).otherwise(UPDATE_AFTER)
        repeated = F.raise_error(F.lit("Several rows of one snapshot share a key of the identifier columns."))
        both = (deletes > 0) & (inserts > 0)
        kind: Column = F.when(both & (deletes + inserts > 2), repeated.cast("string")).when(both, image)  # noqa: PLR2004
        return changes.withColumn(CHANGE_TYPE, kind.otherwise(F.col(CHANGE_TYPE)))

    def _at(self, snapshot_id: int | None) -> DataFrame:
        """All rows of a version, in the table's current columns."""
        if snapshot_id is None:
            return empty_frame(self._session, self._table.schema())
        frame = self._session.read.option("versionAsOf", str(snapshot_id)).table(_spark_name(self._table))
        return with_current_columns(frame, self._table, snapshot_id)


def _spark_name(table: Table) -> str:
    return quote(table.catalog.name, *table.name())


def _is_append(step: SnapshotChanges) -> bool:
    """Whether Spark's incremental read sees it: it silently leaves out everything else."""
    summary = step.snapshot.summary
    return summary is not None and summary.operation is Operation.APPEND and not step.undone


def _supported(step: SnapshotChanges) -> bool:
    """Whether the changelog procedure supports the snapshot."""
    return not step.lists_deletes


def _by_procedure(step: SnapshotChanges) -> bool:
    return _supported(step) and not step.undone


def _described(rows: DataFrame, kind: str, ordinal: int, snapshot_id: int) -> DataFrame:
    return (
        rows.withColumn(CHANGE_TYPE, F.lit(kind))
        .withColumn(CHANGE_ORDINAL, F.lit(ordinal).cast("int"))
        .withColumn(COMMIT_SNAPSHOT_ID, F.lit(snapshot_id).cast("bigint"))
    )

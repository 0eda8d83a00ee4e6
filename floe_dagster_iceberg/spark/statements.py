"""The Spark actions that put a frame's rows into a table. Each is one commit to one branch."""

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg import transforms
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import Column, DataFrame, DataFrameWriterV2, SparkSession, functions as F  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.spark.filters import column_paths
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.types import quote, spark_table
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, trace_properties, traced_step

_OPTION: Final = "snapshot-property."
_SESSION_CONF: Final = "spark.sql.iceberg.snapshot-property."

# DELETE and MERGE take no options; their snapshot properties are conf of the session while they run.
_statements = threading.Lock()


@dataclass(frozen=True)
class FrameTarget:
    """Where rows go.

    Attributes:
        catalog: Name of the catalog in Spark.
        table: The table.
        snapshot_properties: Kept in the summary of the snapshot.
        branch: Branch to write to; it is there already.
    """

    catalog: str
    table: TableIdentifier
    snapshot_properties: Mapping[str, str]
    branch: str = MAIN_BRANCH

    @property
    def name(self) -> str:
        """The branch as Spark SQL names it."""
        return spark_table(self.catalog, self.table, self.branch)


def _describe(_: object, target: FrameTarget, *__: object, **___: object) -> dict[str, Any]:
    return {**describe_table(target.table), attrs.ENGINE: "spark"}


@traced_step("append", _describe)
def append(frame: DataFrame, target: FrameTarget, *, in_order: bool = False) -> None:
    """Add rows.

    Args:
        frame: The rows, with the table's columns.
        target: Where they go.
        in_order: Whether the frame is arranged as the files shall be, so that Spark must not shuffle it again.
    """
    run_action(frame.sparkSession, _writer(frame, target, in_order=in_order).append)


@traced_step("overwrite", _describe)
def replace(
    frame: DataFrame, target: FrameTarget, condition: str, *, since: Snapshot | None, in_order: bool = False
) -> None:
    """Replace the rows that meet a condition. Fails when others changed them after a snapshot."""
    writer = _writer(frame, target, in_order=in_order).option("isolation-level", "serializable")
    if since is not None:
        writer = writer.option("validate-from-snapshot-id", str(since.snapshot_id))
    run_action(frame.sparkSession, lambda: writer.overwrite(F.expr(condition)))


@traced_step("delete", _describe)
def delete(session: SparkSession, target: FrameTarget, condition: str) -> None:
    """Delete the rows that meet a condition; files that hold others too are rewritten."""
    with _stamped(session, _stamps(target)):
        statement = f"DELETE FROM {target.name} WHERE {condition}"  # noqa: S608 - quoted names, our own literals
        run_action(session, lambda: session.sql(statement))


@traced_step("upsert", _describe)
def merge(frame: DataFrame, target: FrameTarget, keys: Sequence[str], condition: str) -> None:
    """Update rows that share a key, within those that meet a condition, and insert the others.

    Columns that the frame lacks keep their values in rows that are updated, and are NULL in new ones.
    """
    # Neither the condition nor the assignments say whose columns they name, so the frame's must be others.
    prefix = f"floe_{uuid.uuid4().hex}"
    ours = {name: f"{prefix}_{number}" for number, name in enumerate(frame.columns)}
    matched = " AND ".join(f"{quote(key)} = {ours[key]}" for key in keys)
    assigned = {quote(name): F.col(own) for name, own in ours.items()}
    updated = {quote(name): F.col(own) for name, own in ours.items() if name not in keys}
    # Not as SQL: Spark 4.1 cannot plan a MERGE from a view whose frame reads a table.
    statement = frame.toDF(*ours.values()).mergeInto(target.name, F.expr(f"{matched} AND ({condition})"))
    if updated:
        statement = statement.whenMatched().update(updated)
    with _stamped(frame.sparkSession, _stamps(target)):
        run_action(frame.sparkSession, statement.whenNotMatched().insert(assigned).merge)


def arrange(frame: DataFrame, table: Table, catalog: str, sort_by: Sequence[str]) -> DataFrame:
    """The rows as the files shall hold them: together by partition, then in order.

    Spark would do the former by itself, but lose the order on the way. The table's
    `write.distribution-mode` decides as it does for Spark.
    """
    paths = column_paths(table.schema())
    partition = [_partition_value(field, quote(*paths[field.source_id]), catalog) for field in table.spec().fields]
    order = [*partition, *(F.col(quote(name)) for name in sort_by)]
    mode = table.properties.get("write.distribution-mode", "hash" if partition else "none")
    if mode == "range":
        frame = frame.repartitionByRange(*order)
    elif mode == "hash" and partition:
        frame = frame.repartition(*partition)
    return frame.sortWithinPartitions(*order)


def _writer(frame: DataFrame, target: FrameTarget, *, in_order: bool) -> DataFrameWriterV2:
    options = {f"{_OPTION}{key}": value for key, value in _stamps(target).items()}
    if in_order:
        options["use-table-distribution-and-ordering"] = "false"
    return frame.writeTo(target.name).options(**options)


def _stamps(target: FrameTarget) -> dict[str, str]:
    return {**target.snapshot_properties, **trace_properties()}


@contextmanager
def _stamped(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    with _statements:
        names = {f"{_SESSION_CONF}{key}": value for key, value in properties.items()}
        before = {name: session.conf.get(name, None) for name in names}
        for name, value in names.items():
            session.conf.set(name, value)
        try:
            yield
        finally:
            for name, earlier in before.items():
                session.conf.unset(name) if earlier is None else session.conf.set(name, earlier)


def _partition_value(field: PartitionField, column: str, catalog: str) -> Column:
    system = quote(catalog, "system")
    match field.transform:
        case transforms.IdentityTransform():
            return F.expr(column)
        case (
            transforms.YearTransform()
            | transforms.MonthTransform()
            | transforms.DayTransform()
            | transforms.HourTransform()
        ):
            return F.expr(f"{system}.{field.transform}s({column})")
        case transforms.BucketTransform():
            return F.expr(f"{system}.bucket({field.transform.num_buckets}, {column})")
        case transforms.TruncateTransform():
            return F.expr(f"{system}.truncate({field.transform.width}, {column})")
        case _:
            # A transform that was removed from the spec: all rows have the same value.
            return F.lit(None)

"""The Spark actions that change a table's rows. Each is one commit to one branch."""

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
from pyspark.sql import Column, DataFrame, DataFrameWriterV2, SparkSession, functions as F, types as spark  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.writing import MergeRules
from floe_dagster_iceberg.spark.filters import column_paths
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.types import quote, spark_table
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, trace_properties, traced_step

# DELETE and MERGE take no options; their snapshot properties are conf of the session while they run.
_SESSION_CONF: Final = "spark.sql.iceberg.snapshot-property."
_session_conf_lock = threading.Lock()
DELETES: Final = "floe:deletes"
"""The column of a DataFrame that says which of its rows delete the row of their key."""


@dataclass(frozen=True)
class WriteTarget:
    """Where rows go.

    Attributes:
        catalog: Name of the catalog in Spark.
        table: The table.
        snapshot_properties: Stored in the summary of the snapshot.
        branch: An existing branch to write to.
        in_order: Whether the rows are arranged as in the files, so that Spark must not shuffle them again.
    """

    catalog: str
    table: TableIdentifier
    snapshot_properties: Mapping[str, str]
    branch: str = MAIN_BRANCH
    in_order: bool = False

    @property
    def name(self) -> str:
        return spark_table(self.catalog, self.table, self.branch)

    @property
    def all_snapshot_properties(self) -> dict[str, str]:
        return {**self.snapshot_properties, **trace_properties()}


def _describe(_: object, target: WriteTarget, *__: object, **___: object) -> dict[str, Any]:
    return {**describe_table(target.table), attrs.ENGINE: "spark"}


@traced_step("append", _describe)
def append(frame: DataFrame, target: WriteTarget) -> None:
    """Add rows."""
    run_action(frame.sparkSession, _writer(frame, target).append)


@traced_step("overwrite", _describe)
def replace(
    frame: DataFrame, target: WriteTarget, condition: str, *, since: Snapshot | None, last_write_wins: bool = False
) -> None:
    """Replace the rows that meet a condition.

    Fails if another writer changed them after a snapshot, unless the last write wins: then those are replaced too.
    """
    writer = _writer(frame, target)
    if not last_write_wins:
        writer = writer.option("isolation-level", "serializable")
    if since is not None and not last_write_wins:
        writer = writer.option("validate-from-snapshot-id", str(since.snapshot_id))
    run_action(frame.sparkSession, lambda: writer.overwrite(F.expr(condition)))


@traced_step("delete", _describe)
def delete(session: SparkSession, target: WriteTarget, condition: str) -> None:
    """Delete the rows that meet a condition; files that hold other rows too are rewritten."""
    with _session_conf(session, target):
        statement = f"DELETE FROM {target.name} WHERE {condition}"  # noqa: S608 - quoted names, our own literals
        run_action(session, lambda: session.sql(statement))


@traced_step("upsert", _describe)
def merge(frame: DataFrame, target: WriteTarget, rules: MergeRules, condition: str) -> None:
    """Match the rows with those of the table that meet a condition, and do what the rules say.

    Columns that the DataFrame lacks keep their values in updated rows, and are NULL in new ones. Its column `DELETES`,
    if it has one, says which rows delete. With `on_missing: delete`, a NULL in a key matches NULL.
    """
    # The condition and the assignments name columns without a table, so the DataFrame's need other names.
    prefix = f"floe_{uuid.uuid4().hex}"
    ours = {name: f"{prefix}_{number}" for number, name in enumerate(frame.columns)}
    named, has_deletes = frame.toDF(*ours.values()), DELETES in ours
    deletes, older = ours.pop(DELETES, "FALSE"), _is_older(frame, ours, rules.order_by)
    equals = "<=>" if rules.on_missing == "delete" else "="
    matched = " AND ".join(f"{quote(key)} {equals} {ours[key]}" for key in rules.keys)
    assigned = {quote(name): F.col(own) for name, own in ours.items()}
    columns = [name for name in rules.update_columns or ours if name not in rules.keys]
    # Not as SQL: Spark 4.1 cannot plan a MERGE from a view of a DataFrame that reads a table.
    statement = named.mergeInto(target.name, F.expr(f"{matched} AND ({condition})"))
    if has_deletes:
        statement = statement.whenMatched(F.expr(f"{deletes} AND NOT {older}")).delete()
    if columns and rules.on_match == "update":
        changed = F.expr(f"NOT {deletes} AND NOT {older} AND {_differs(frame, ours, columns)}")
        statement = statement.whenMatched(changed).update({quote(name): F.col(ours[name]) for name in columns})
    statement = statement.whenNotMatched(F.expr(f"NOT {deletes}")).insert(assigned)
    with _session_conf(frame.sparkSession, target):
        run_action(frame.sparkSession, statement.merge)


def _is_older(frame: DataFrame, ours: Mapping[str, str], order_by: Sequence[str]) -> str:
    """Whether a row is older than the table's; NULL and NaN of the table are older than anything."""
    older = "FALSE"
    for name in reversed(order_by):
        there, here = quote(name), ours[name]
        less = f"{here} < {there}"
        if isinstance(frame.schema[name].dataType, spark.FloatType | spark.DoubleType):
            less = f"({less} AND NOT isnan({there}))"
        older = f"({less} OR ({here} = {there} AND {older}))"
    return f"coalesce({older}, FALSE)"


def _differs(frame: DataFrame, ours: Mapping[str, str], columns: Sequence[str]) -> str:
    """Whether a matched row has other values than the table; true if Spark cannot compare them."""
    equal = []
    for field in frame.schema.fields:
        if field.name not in columns:
            continue
        if "map<" in field.dataType.simpleString() or isinstance(field.dataType, spark.VariantType):
            return "TRUE"
        there, here = quote(field.name), ours[field.name]
        if isinstance(field.dataType, spark.FractionalType):
            # As text, 0.0 differs from -0.0.
            there, here = f"CAST({there} AS STRING)", f"CAST({here} AS STRING)"
        equal.append(f"{there} <=> {here}")
    return f"NOT ({' AND '.join(equal)})"


def arrange(frame: DataFrame, table: Table, catalog: str, sort_by: Sequence[str]) -> DataFrame:
    """Cluster the rows by partition and sort them, as the table's `write.distribution-mode` says.

    Spark clusters by itself, but loses the order.
    """
    paths = column_paths(table.schema())
    # The column of a field that was removed from a spec may be gone.
    fields = [field for field in table.spec().fields if not isinstance(field.transform, transforms.VoidTransform)]
    partition = [_partition_value(field, quote(*paths[field.source_id]), catalog) for field in fields]
    order = [*partition, *(F.col(quote(name)) for name in sort_by)]
    mode = table.properties.get("write.distribution-mode", "hash" if partition else "none")
    if mode == "range":
        frame = frame.repartitionByRange(*order)
    elif mode == "hash" and partition:
        frame = frame.repartition(*partition)
    return frame.sortWithinPartitions(*order)


def _writer(frame: DataFrame, target: WriteTarget) -> DataFrameWriterV2:
    options = {f"snapshot-property.{key}": value for key, value in target.all_snapshot_properties.items()}
    if target.in_order:
        options["use-table-distribution-and-ordering"] = "false"
    return frame.writeTo(target.name).options(**options)


@contextmanager
def _session_conf(session: SparkSession, target: WriteTarget) -> Iterator[None]:
    conf = {f"{_SESSION_CONF}{key}": value for key, value in target.all_snapshot_properties.items()}
    with _session_conf_lock:
        before = {name: session.conf.get(name, None) for name in conf}
        for name, value in conf.items():
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
        case transforms.TimeTransform():
            return F.expr(f"{system}.{field.transform}s({column})")
        case transforms.BucketTransform():
            return F.expr(f"{system}.bucket({field.transform.num_buckets}, {column})")
        case transforms.TruncateTransform():
            return F.expr(f"{system}.truncate({field.transform.width}, {column})")
        case _:
            # A transform that was removed from the spec has the same value in all rows.
            return F.lit(None)

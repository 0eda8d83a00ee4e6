"""Rows of a materialization into their table: created if need be, evolved, written, exactly once.

This is the Arrow half; `spark/deposit.py` keeps the same promises with Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg.errors import CommitOutcomeUnknownError, NoSuchTableError, ValidationError
from floe_dagster_iceberg.models import PartitionSpec, TableIdentifier, WriteMode
from floe_dagster_iceberg.models.writing import EvolutionMode
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import CreateTransaction
from floe_dagster_iceberg.table.arrow_rows import ArrowRows
from floe_dagster_iceberg.table.commit import CommitBudget, Committed
from floe_dagster_iceberg.table.creation import FirstSnapshot, commit_new_table, load_if_there
from floe_dagster_iceberg.table.idempotency import IDEMPOTENCY_KEY, find_deposit, snapshot_id_for
from floe_dagster_iceberg.table.namespaces import ensure_namespace
from floe_dagster_iceberg.table.partition_layout import PartitionLayout
from floe_dagster_iceberg.table.schemas import to_iceberg_schema, to_iceberg_spec
from floe_dagster_iceberg.table.scope import SliceScope
from floe_dagster_iceberg.table.uncommitted import UncommittedFiles
from floe_dagster_iceberg.table.upsert import check_keys
from floe_dagster_iceberg.table.write import PreparedFiles, RowsWritten, RowWrite, write_rows


@dataclass(frozen=True)
class Deposit:
    """Where rows go and under which promises; the same for every engine.

    Attributes:
        table: The table.
        idempotency_key: Names this piece of work; the same key is never written twice.
        mode: What happens to the rows that are there already.
        scope: The rows of the Dagster partitions being written.
        layout: Partitioning of a table that has to be created.
        keys: Columns that match rows in an upsert.
        evolution: Schema changes that the rows may bring along.
        properties: Table properties to set; others stay.
        default_properties: Table properties of a new table, below `properties`.
        snapshot_properties: Kept in the summary of the snapshot.
        branch: Branch to write to.
        merge_manifests: Whether the commit folds small manifests together.
        sort_by: Columns by which the rows of a file are in order.
        create: Whether a missing table, and its namespace, is created.
    """

    table: TableIdentifier
    idempotency_key: str
    mode: WriteMode
    scope: SliceScope
    layout: PartitionLayout | PartitionSpec = field(default_factory=PartitionLayout)
    keys: Sequence[str] = ()
    evolution: EvolutionMode = EvolutionMode.WIDEN
    properties: Mapping[str, str] = field(default_factory=dict)
    default_properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    branch: str = MAIN_BRANCH
    merge_manifests: bool = False
    sort_by: Sequence[str] = ()
    create: bool = True


@dataclass(frozen=True)
class Deposited:
    """What became of a deposit.

    Attributes:
        written: The table, the snapshot and the counts.
        created: Whether the table is new.
        deduplicated: Whether an earlier attempt had done the work already, so that nothing was written.
    """

    written: RowsWritten
    created: bool = False
    deduplicated: bool = False


def deposit_rows(catalog: Catalog, rows: ArrowRows, deposit: Deposit, budget: CommitBudget) -> Deposited:
    """Put rows into their table in one commit.

    A failure leaves no table, no column, no snapshot and no file. Doing the same deposit again
    finds the first one and writes nothing.

    Raises:
        NoSuchTableError: The table is missing and may not be created.
        SchemaEvolutionError: The rows do not fit the table and may not change it.
        RowsOutsidePartitionError: Rows lie outside the partitions, and that is an error.
        CommitConflictError: Other writers won, or changed the rows being replaced.
        CommitOutcomeUnknownError: The catalog went away in the middle.
    """
    if deposit.mode is WriteMode.UPSERT:
        # Keys are compared with each other and with the table, so the rows are needed more than once.
        rows = ArrowRows(rows.to_table())
    table = load_if_there(catalog, deposit.table)
    deposit = replace(deposit, sort_by=sort_columns(rows, deposit, table))
    if table is None and deposit.create:
        return _create(catalog, rows, deposit, budget)
    if table is None:
        raise NoSuchTableError(deposit.table)
    return _into_existing(table, rows, deposit, budget)


def sort_columns(rows: ArrowRows, deposit: Deposit, table: Table | None) -> list[str]:
    """The columns to sort by that the rows have; the others are NULL in every row."""
    known = {*rows.data_schema.names, *(table.schema().column_names if table is not None else ())}
    if unknown := [column for column in deposit.sort_by if column not in known]:
        raise ValidationError(
            f"Column '{unknown[0]}' to sort '{deposit.table}' by is not there. "
            f"The rows have: {', '.join(rows.data_schema.names)}.",
            table=deposit.table,
        )
    return [column for column in deposit.sort_by if column in rows.schema.names]


def _into_existing(
    table: Table, rows: ArrowRows, deposit: Deposit, budget: CommitBudget, *, prepared: PreparedFiles | None = None
) -> Deposited:
    earlier = find_deposit(table.metadata, deposit.branch, deposit.idempotency_key)
    if earlier is not None:
        return Deposited(RowsWritten(table, earlier, attempts=0), deduplicated=True)
    snapshot_id = snapshot_id_for(deposit.idempotency_key, table.metadata)
    written = write_rows(table, _row_write(rows, deposit, snapshot_id), budget, prepared=prepared)
    return Deposited(written, deduplicated=not written.by_us)


def _row_write(rows: ArrowRows, deposit: Deposit, snapshot_id: int) -> RowWrite:
    return RowWrite(
        rows=rows,
        mode=deposit.mode,
        scope=deposit.scope,
        keys=deposit.keys,
        evolution=deposit.evolution,
        snapshot_properties=_stamped(deposit),
        branch=deposit.branch,
        merge_manifests=deposit.merge_manifests,
        sort_by=deposit.sort_by,
        properties=deposit.properties,
        snapshot_id=snapshot_id,
    )


def _stamped(deposit: Deposit) -> dict[str, str]:
    return {**deposit.snapshot_properties, IDEMPOTENCY_KEY: deposit.idempotency_key}


def _create(catalog: Catalog, rows: ArrowRows, deposit: Deposit, budget: CommitBudget) -> Deposited:
    """Create the table with its first rows, or write into the one that another process created meanwhile."""
    with translated(catalog.name, table=deposit.table):
        ensure_namespace(catalog, deposit.table.namespace_parts)
        staged = open_new_table(catalog, rows, deposit)
        with (
            UncommittedFiles(str(deposit.table), staged.table.io) as files,
            translated(catalog.name, table=deposit.table),
        ):
            prepared = _prepare(staged, rows, deposit, files)
            created = commit_new_table(
                catalog,
                deposit.table,
                partial(open_new_table, catalog, rows, deposit),
                _first_snapshot(deposit, prepared),
                budget=budget,
                on_send=files.send,
                on_lost_answer=files.keep_attempt,
            )
            if created.by_us:
                return _created(created, deposit, prepared)
            if not rows.replayable:
                deposited = _into_existing(created.table, rows, deposit, budget, prepared=prepared)
                if deposited.deduplicated:
                    files.discard()
                return deposited
            files.discard()
    return _into_existing(created.table, rows, deposit, budget)


def _first_snapshot(deposit: Deposit, prepared: PreparedFiles) -> FirstSnapshot:
    return FirstSnapshot(
        snapshot_id=snapshot_id_for(deposit.idempotency_key, None),
        files=prepared.writer.finish(),
        properties=_stamped(deposit),
        branch=deposit.branch,
    )


def _created(created: Committed, deposit: Deposit, prepared: PreparedFiles) -> Deposited:
    snapshot_id = snapshot_id_for(deposit.idempotency_key, None)
    snapshot = created.table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise CommitOutcomeUnknownError(deposit.table, snapshot_id=snapshot_id, reason="it is not in the answer")
    written = RowsWritten(
        created.table,
        snapshot,
        rows=prepared.writer.rows,
        attempts=created.attempts,
        rows_outside=prepared.guard.rows_outside,
        rows_dropped=prepared.guard.rows_dropped,
    )
    return Deposited(written, created=True)


def open_new_table(catalog: Catalog, rows: ArrowRows, deposit: Deposit) -> CreateTransaction:
    """Stage a table with the rows' columns and the deposit's layout and properties."""
    schema = to_iceberg_schema(deposit.table, rows.data_schema)
    layout = deposit.layout
    spec = layout.to_pyiceberg_spec(schema) if isinstance(layout, PartitionLayout) else layout
    return CreateTransaction.open(
        catalog,
        deposit.table.as_tuple,
        schema,
        to_iceberg_spec(deposit.table, schema, spec),
        {**deposit.default_properties, **deposit.properties},
    )


def _prepare(
    transaction: CreateTransaction, rows: ArrowRows, deposit: Deposit, files: UncommittedFiles
) -> PreparedFiles:
    metadata = transaction.table_metadata
    guard = deposit.scope.guard(str(deposit.table), metadata.schema())
    admitted = rows.sorted_by(deposit.sort_by).through(guard.admit)
    if deposit.mode is WriteMode.UPSERT:
        check_keys(str(deposit.table), metadata.schema(), admitted.to_table(), deposit.keys)
        guard = deposit.scope.guard(str(deposit.table), metadata.schema())
        admitted = rows.sorted_by(deposit.sort_by).through(guard.admit)
    writer = files.open_writer(metadata, sort_by=deposit.sort_by)
    writer.write(admitted)
    guard.finish()
    writer.finish()
    return PreparedFiles(metadata, writer, guard)

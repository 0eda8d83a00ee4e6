"""Incremental inputs: an input reads what changed since its asset last ran, and the output commits how far it read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

import dagster as dg
from dagster import JsonMetadataValue, MetadataValue
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, IsNull, Not, Or, Reference
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg import run_identity
from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings, table_identifier
from floe_dagster_iceberg.catch_up import CHANGES_BEHIND
from floe_dagster_iceberg.environments import branch_of
from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.models import ChangesMode, Cursor, TableIdentifier
from floe_dagster_iceberg.partition_keys import PartitionKeys
from floe_dagster_iceberg.partitions import PartitionExpr
from floe_dagster_iceberg.table.changes.cursors import (
    PositionCheck,
    ReaderPosition,
    cursor_key,
    find_position,
    parse_cursor,
)
from floe_dagster_iceberg.table.changes.partitions import changed_files, changed_rows
from floe_dagster_iceberg.table.changes.plan import plan_changes
from floe_dagster_iceberg.table.filter.partition_slice import DEFAULT_NAIVE_TIMEZONE
from floe_dagster_iceberg.table.filter.row_filter import CheckedFilter, to_row_filter
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.manager.changes import TableChanges
from floe_dagster_iceberg.table.manager.scan import branch_to_read, version_to_read
from floe_dagster_iceberg.table.names import table_name, to_identifier

FULL_REFRESH: Final = "iceberg/full_refresh"
"""Run tag: incremental inputs read everything, and the output replaces what is there."""
CURSORS: Final = "iceberg/cursors"
"""Metadata of a materialization that is stored elsewhere: how far it has read each table."""
_READ: Final = "iceberg/changes"
# Tables have rows of partitions that Dagster has no key of before they are over.
_AHEAD: Final = timedelta(days=31)


@runtime_checkable
class TableStore(Protocol):
    """An IO manager that stores assets in tables."""

    @property
    def table_manager(self) -> IcebergTableManager:
        """The manager of the tables."""

    @property
    def environment_name(self) -> str | None:
        """The environment that it stores assets in."""

    def table_of_asset(self, path: Sequence[str], settings: AssetSettings) -> TableIdentifier:
        """The table of an asset with this key and these settings."""


@dataclass(frozen=True)
class Upstream:
    """The partitions of the asset whose table is read; without a definition, there are none.

    Attributes:
        partitions_def: Its partitions.
        partition_expr: Column of its partitions, or one per dimension.
        partition_column: The column if the asset names none.
        naive_timezone: Time zone of timestamps without one.
    """

    partitions_def: dg.PartitionsDefinition | None = None
    partition_expr: PartitionExpr | None = None
    partition_column: str | None = None
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE


@dataclass(frozen=True)
class IncrementalRead:
    """A read of what changed since the assets of a step last read a table.

    Attributes:
        manager: The manager of the table.
        context: The step.
        owner: Who reads, for messages.
        settings: How.
        upstream: The asset whose table is read.
        target: The table whose commits have the position, in place of those of the step's assets: for an asset that
            writes it itself.
        environment: The environment whose branch is read, where the table has one.
    """

    manager: IcebergTableManager
    context: run_identity.StepContext
    owner: str
    settings: InputSettings
    upstream: Upstream = field(default_factory=Upstream)
    target: TableIdentifier | None = None
    environment: str | None = None

    def plan(self, table: Table, row_filter: BooleanExpression) -> TableChanges:
        """What changed since the assets of the step last read the table; a retry reads what the first attempt did."""
        context, settings, name = self.context, self.settings, table_name(table)
        position = self._position(name)
        since = position.since
        branch = branch_to_read(table, settings.branch, self.environment)
        head = version_to_read(table, snapshot_id=None, as_of=None, ref=branch)
        read = partial(
            self.manager.scan_changes,
            table,
            since,
            mode=settings.changes or ChangesMode.CHANGELOG,
            columns=settings.columns or None,
            row_filter=None if isinstance(row_filter, AlwaysTrue) else CheckedFilter(row_filter),
            net_changes=settings.net_changes,
            identifier_columns=settings.identifier_columns,
        )
        if position.until is not None:
            changes = read(until=position.until.snapshot_id)
        else:
            changes = read(until=head, limit=settings.changes_limit)
            own = str(changes.cursor.snapshot_id)
            # After another run, there are other changes to read.
            known = f"{name}@{'start' if since is None else since.snapshot_id}"
            first = run_identity.remembered_by_attempts(context, known, own)
            changes = changes if first == own else read(until=int(first))
        rest = plan_changes(table, mode=ChangesMode.CHANGELOG, since=changes.cursor.snapshot_id, until=head)
        # What the asset writes itself is no matter of its outputs.
        notes = run_identity.notes_of_step(context) if self.target is None else {}
        read_by_step: dict[str, ReadChanges] = notes.setdefault(_READ, {})
        read_by_step[name] = ReadChanges(
            changes.cursor, since, replaces=changes.reads_everything, behind=len(rest.steps)
        )
        _report_to_targets_elsewhere(context, read_by_step, in_table=self.target is not None)
        return self._with_whole_partitions(changes)

    def _with_whole_partitions(self, changes: TableChanges) -> TableChanges:
        """Read the partitions of the upstream asset whole, whose borders may not be those of Iceberg's partitions.

        Rows that belong to none, such as those of NULL, are read by Iceberg's partitions.
        """
        of, definition = self.upstream, self.upstream.partitions_def
        if definition is None or changes.plan.mode is not ChangesMode.PARTITIONS or changes.reads_everything:
            return changes
        known = run_identity.partition_keys_of(self.context, definition, ahead=_AHEAD)
        keys = PartitionKeys(
            changes.plan.table.metadata,
            definition,
            known,
            partition_expr=of.partition_expr,
            partition_column=of.partition_column,
            naive_timezone=of.naive_timezone,
        )
        found = keys.of_files(changed_files(changes.plan))
        columns, inside = keys.rows_of(known)
        outside: BooleanExpression = Not(inside)
        for column in columns:
            outside = Or(outside, IsNull(term=Reference(column)))
        whole = Or(keys.rows_of(found)[1], And(changed_rows(changes.plan), outside))
        return replace(changes, partition_keys=found, whole_partitions=whole)

    def _position(self, source: str) -> ReaderPosition:
        """How far the assets of the step have read a source, which is the same for all of them."""
        if self.target is not None:
            since = None if _is_full_refresh(self.context) else self.manager.find_cursor(self.target, source)
            return ReaderPosition(since)
        targets = run_identity.targets_of(self.context)
        if not targets:
            raise ValidationError(
                f"{self.owner} reads changes, but its step produces no asset that could remember how far it has "
                "read. Read changes in an asset."
            )
        positions = {target.asset_key.to_user_string(): self._position_of(target, source) for target in targets}
        found = {position.since for position in positions.values()}
        if _is_full_refresh(self.context):
            found = {None}
        if len(found) > 1:
            raise ValidationError(
                f"Assets {', '.join(repr(key) for key in positions)} have read '{source}' up to different snapshots, "
                f"so no changes fit all of them. Materialize them together, with the run tag '{FULL_REFRESH}'."
            )
        # Of a run that failed between two outputs, one has committed already.
        committed = [position.until for position in positions.values() if position.until is not None]
        return ReaderPosition(found.pop(), committed[0] if committed else None)

    def _position_of(self, target: run_identity.StepTarget, source: str) -> ReaderPosition:
        key, io_manager = target.asset_key, target.io_manager
        if target.partitioned:
            raise ValidationError(
                f"{self.owner} reads changes, but asset '{key.to_user_string()}' has partitions. A partition is "
                "replaced by its whole contents: read them without 'iceberg/changes', or drop the partitions of the "
                "asset."
            )
        if not isinstance(io_manager, TableStore):
            found = run_identity.latest_metadata(self.context, key).get(CURSORS)
            cursors = found.value if isinstance(found, JsonMetadataValue) and isinstance(found.value, Mapping) else {}
            return ReaderPosition(parse_cursor(str(cursors.get(source, ""))))
        settings = AssetSettings.from_metadata(target.metadata)
        try:
            loaded = io_manager.table_manager.load_table(io_manager.table_of_asset(key.path, settings))
        except NoSuchTableError:
            return ReaderPosition()
        environment = io_manager.environment_name
        branch = (settings.branch or MAIN_BRANCH) if environment is None else branch_of(environment)
        return find_position(loaded.metadata, branch, source, target.idempotency_key(environment))


def read_changes(
    manager: IcebergTableManager,
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    settings: InputSettings,
    default_namespace: str,
    *,
    target: str | TableIdentifier | None = None,
    environment: str | None = None,
) -> TableChanges:
    """What changed in the table of an asset since the running one last read it, without an IO manager.

    Raises:
        ValidationError: The running asset does not depend on that asset.
    """
    owner = f"asset '{context.assets_def.node_def.name}'"
    found = run_identity.upstream_of(context, key)
    if found is None:
        name = key.to_user_string()
        raise ValidationError(
            f"{owner} reads changes of asset '{name}', but does not depend on it. Add it to deps of the asset: "
            f"deps=[{name!r}]."
        )
    upstream = AssetSettings.from_metadata(found.metadata, owner=f"asset '{key.to_user_string()}'")
    # A version that is asked for is that version in every environment.
    read_in = None if settings.names_version else environment
    if upstream.branch is not None and settings.branch is None:
        settings = settings.model_copy(update={"branch": upstream.branch})
    table = manager.load_table(table_identifier(key.path, upstream, default_namespace=default_namespace))
    where = AlwaysTrue() if settings.row_filter is None else to_row_filter(table, settings.row_filter)
    read = IncrementalRead(
        manager,
        context,
        owner,
        settings,
        Upstream(found.partitions_def, upstream.partition_expr, naive_timezone=upstream.naive_timezone),
        None if target is None else to_identifier(target),
        read_in,
    )
    return read.plan(table, where)


def _is_full_refresh(context: run_identity.StepContext) -> bool:
    return (run_identity.run_tag(context, FULL_REFRESH) or "").lower() == "true"


def _report_to_targets_elsewhere(
    context: run_identity.StepContext, read: Mapping[str, "ReadChanges"], *, in_table: bool
) -> None:
    """Give assets that are not stored by us their position in the metadata of their materialization.

    Dagster stores that after the asset's own storage code, so that a crash between the two repeats the changes.
    """
    cursors = {table: str(each.until) for table, each in read.items()}
    for target in run_identity.targets_of(context):
        if in_table or not isinstance(target.io_manager, TableStore):
            position = {} if in_table else {CURSORS: MetadataValue.json(cursors)}
            metadata = {**position, **changes_metadata(read)}
            run_identity.add_asset_metadata(context, target.asset_key, metadata)


@dataclass(frozen=True)
class ReadChanges:
    """What an input of a step has read, for its outputs.

    Attributes:
        until: How far it has read.
        since: What had been read before.
        replaces: Whether it has read everything, so that the output replaces what is there.
        behind: How many snapshots with changes there are after `until`.
    """

    until: Cursor
    since: Cursor | None
    replaces: bool
    behind: int


def changes_read(owner: str, notes: Mapping[str, Any]) -> dict[str, ReadChanges]:
    """What the incremental inputs of an output's step have read, by table, from the notes of the step.

    Raises:
        ValidationError: One input reads everything and another one what changed, so that the rows fit no write mode.
    """
    read: dict[str, ReadChanges] = notes.get(_READ, {})
    if read and len({each.replaces for each in read.values()}) > 1:
        new = next(table for table, each in read.items() if each.replaces)
        raise ValidationError(
            f"{owner} has read everything of '{new}', but only the changes of its other inputs. Read "
            f"everything of all of them, with the run tag '{FULL_REFRESH}'."
        )
    return read


def replaces_everything(read: Mapping[str, ReadChanges]) -> bool:
    """Whether the inputs have read everything, so that the output replaces all rows."""
    return all(each.replaces for each in read.values())


def cursor_properties(read: Mapping[str, ReadChanges]) -> dict[str, str]:
    """The snapshot properties that make the rows and how far they were read one commit."""
    return {cursor_key(table): str(each.until) for table, each in read.items()}


def position_check(
    table: TableIdentifier, idempotency_key: str, read: Mapping[str, ReadChanges]
) -> PositionCheck | None:
    """The precondition that no other run has committed the same changes; what replaces everything needs none."""
    since = {source: each.since for source, each in read.items() if not each.replaces}
    return PositionCheck(table, idempotency_key, since) if since else None


def changes_metadata(read: Mapping[str, ReadChanges]) -> dict[str, MetadataValue]:
    """What a materialization says about the changes that it was made from."""
    ranges = {
        table: {
            "since": None if each.since is None else str(each.since.snapshot_id),
            "until": str(each.until.snapshot_id),
            "behind": each.behind,
        }
        for table, each in read.items()
    }
    behind = max(each.behind for each in read.values())
    return {"iceberg/changes": MetadataValue.json(ranges), CHANGES_BEHIND: MetadataValue.int(behind)}

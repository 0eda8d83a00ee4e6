"""Incremental inputs: an input reads what changed since its asset last ran, and the output commits how far it read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dagster import InputContext, JsonMetadataValue, MetadataValue, OutputContext
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg import run_identity
from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings, table_identifier
from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.io_managers.managers import IcebergIOManagerBase, owner_of
from floe_dagster_iceberg.models import ChangesMode, Cursor
from floe_dagster_iceberg.table.changes.cursors import ReaderPosition, cursor_key, find_position, parse_cursor
from floe_dagster_iceberg.table.changes.plan import plan_changes
from floe_dagster_iceberg.table.filter.row_filter import CheckedFilter
from floe_dagster_iceberg.table.manager.changes import TableChanges
from floe_dagster_iceberg.table.manager.scan import version_to_read
from floe_dagster_iceberg.table.names import table_name

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engines import ChangesPlanner

FULL_REFRESH: Final = "iceberg/full_refresh"
"""Run tag: incremental inputs read everything, and the output replaces what is there."""
CURSORS: Final = "iceberg/cursors"
"""Metadata of a materialization that is stored elsewhere: how far it has read each table."""
_READ: Final = "iceberg/changes"


def changes_planner(
    io_manager: IcebergIOManagerBase, context: InputContext, settings: InputSettings
) -> "ChangesPlanner | None":
    """How the changes of an input are found once its table is loaded; None for an input that reads its rows."""
    if settings.changes is None:
        return None
    return partial(_plan, io_manager, context, settings)


def _plan(
    io_manager: IcebergIOManagerBase,
    context: InputContext,
    settings: InputSettings,
    table: Table,
    row_filter: BooleanExpression,
) -> TableChanges:
    """What changed since the assets of the step last read the table; a retry reads what the first attempt did."""
    name = table_name(table)
    position = _position(context, name)
    since = position.since
    head = version_to_read(table, snapshot_id=None, as_of=None, ref=settings.branch)
    read = partial(
        io_manager.table_manager.scan_changes,
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
        first = run_identity.remembered_by_attempts(context, name, own)
        changes = changes if first == own else read(until=int(first))
    rest = plan_changes(table, mode=ChangesMode.CHANGELOG, since=changes.cursor.snapshot_id, until=head)
    read_by_step: dict[str, ReadChanges] = run_identity.notes_of_step(context).setdefault(_READ, {})
    read_by_step[name] = ReadChanges(changes.cursor, since, replaces=changes.reads_everything, behind=len(rest.steps))
    _report_to_targets_elsewhere(context, read_by_step)
    return changes


def _report_to_targets_elsewhere(context: InputContext, read: Mapping[str, "ReadChanges"]) -> None:
    """Give assets that are not stored by us their position in the metadata of their materialization.

    Dagster stores that after the asset's own storage code, so that a crash between the two repeats the changes.
    """
    cursors = {table: str(each.until) for table, each in read.items()}
    for target in run_identity.targets_of(context):
        if not isinstance(target.io_manager, IcebergIOManagerBase):
            metadata = {CURSORS: MetadataValue.json(cursors), **changes_metadata(read)}
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


def changes_read(context: OutputContext, notes: Mapping[str, Any]) -> dict[str, ReadChanges]:
    """What the incremental inputs of an output's step have read, by table, from the notes of the step.

    Raises:
        ValidationError: One input reads everything and another one what changed, so that the rows fit no write mode.
    """
    read: dict[str, ReadChanges] = notes.get(_READ, {})
    if read and len({each.replaces for each in read.values()}) > 1:
        new = next(table for table, each in read.items() if each.replaces)
        raise ValidationError(
            f"{owner_of(context)} has read everything of '{new}', but only the changes of its other inputs. Read "
            f"everything of all of them, with the run tag '{FULL_REFRESH}'."
        )
    return read


def replaces_everything(read: Mapping[str, ReadChanges]) -> bool:
    """Whether the inputs have read everything, so that the output replaces all rows."""
    return all(each.replaces for each in read.values())


def cursor_properties(read: Mapping[str, ReadChanges]) -> dict[str, str]:
    """The snapshot properties that make the rows and how far they were read one commit."""
    return {cursor_key(table): str(each.until) for table, each in read.items()}


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
    return {"iceberg/changes": MetadataValue.json(ranges), "iceberg/changes_behind": MetadataValue.int(behind)}


def _position(context: InputContext, source: str) -> ReaderPosition:
    """How far the assets of the step have read a source, which is the same for all of them."""
    targets = run_identity.targets_of(context)
    if not targets:
        raise ValidationError(
            f"{owner_of(context)} reads changes, but its step produces no asset that could remember how far it has "
            "read. Read changes in an asset."
        )
    positions = {target.asset_key.to_user_string(): _position_of(context, target, source) for target in targets}
    found = {position.since for position in positions.values()}
    if (run_identity.run_tag(context, FULL_REFRESH) or "").lower() == "true":
        found = {None}
    if len(found) > 1:
        raise ValidationError(
            f"Assets {', '.join(repr(key) for key in positions)} have read '{source}' up to different snapshots, so no "
            f"changes fit all of them. Materialize them together, with the run tag '{FULL_REFRESH}'."
        )
    # Of a run that failed between two outputs, one has committed already.
    committed = [position.until for position in positions.values() if position.until is not None]
    return ReaderPosition(found.pop(), committed[0] if committed else None)


def _position_of(context: InputContext, target: run_identity.StepTarget, source: str) -> ReaderPosition:
    key, io_manager = target.asset_key, target.io_manager
    if target.partitioned:
        raise ValidationError(
            f"{owner_of(context)} reads changes, but asset '{key.to_user_string()}' has partitions. A partition is "
            "replaced by its whole contents: read them without 'iceberg/changes', or drop the partitions of the asset."
        )
    if not isinstance(io_manager, IcebergIOManagerBase):
        found = run_identity.latest_metadata(context, key).get(CURSORS)
        cursors = found.value if isinstance(found, JsonMetadataValue) and isinstance(found.value, Mapping) else {}
        return ReaderPosition(parse_cursor(str(cursors.get(source, ""))))
    settings = AssetSettings.from_metadata(target.metadata)
    table = table_identifier(
        key.path,
        settings,
        default_namespace=io_manager.default_namespace or io_manager.iceberg.default_namespace,
        table_name_pattern=io_manager.table_name_pattern,
    )
    try:
        loaded = io_manager.table_manager.load_table(table)
    except NoSuchTableError:
        return ReaderPosition()
    return find_position(loaded.metadata, settings.branch or MAIN_BRANCH, source, target.idempotency_key)

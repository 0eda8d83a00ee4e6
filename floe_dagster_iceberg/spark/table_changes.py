"""Changes of a table's metadata as Spark SQL, for tables that PyIceberg cannot commit to.

PyIceberg plans a change in memory, and what differs between the two versions becomes statements. Each statement is a
commit of its own, and has its own check against other writers: a branch is only created where there is none, moved
only forward, and a column is only widened.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.transforms import BucketTransform, IdentityTransform, TimeTransform, TruncateTransform

from floe_dagster_iceberg._pyiceberg.transaction import is_in_history
from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.spark.filters import column_paths
from floe_dagster_iceberg.spark.types import quote, to_spark_type
from floe_dagster_iceberg.table.schema.convert import SchemaNode, nodes_by_id

_MINUTE_MS: Final = 60_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# Spark's parser refuses these, although Iceberg takes them.
_RESERVED: Final = frozenset(
    {"collation", "external", "is_managed_location", "location", "owner", "provider", "table_type"}
)


class Statement:
    """A statement; its values are passed as parameters, so that its text can be logged.

    Attributes:
        text: The statement; empty if there are only reserved properties to set.
        values: Its parameters.
        reserved: Table properties that no statement can set.
    """

    def __init__(self, text: str = "", **values: Any) -> None:
        self.text, self.values = text, values
        self.reserved: dict[str, str] = {}

    def parameter(self, value: Any) -> str:
        """Add a value, and return its place in the text."""
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f":{name}"

    def pairs(self, properties: Mapping[str, str]) -> str:
        """Table properties, as SET TBLPROPERTIES takes them."""
        return ", ".join(f"{_literal(key)} = {self.parameter(value)}" for key, value in properties.items())

    def column(self, field: iceberg.NestedField, path: str | None = None) -> str:
        """A new column, as CREATE TABLE and ADD COLUMNS take it."""
        words = [path or quote(field.name), to_spark_type(field.field_type)]
        words += ["NOT NULL"] if field.required else []
        words += [f"COMMENT {self.parameter(field.doc)}"] if field.doc else []
        return " ".join(words)


def create_table(
    name: str,
    schema: Schema,
    spec: PartitionSpec,
    properties: Mapping[str, str],
    *,
    location: str | None = None,
) -> Iterator[Statement]:
    """Create a table; `name` is quoted.

    CREATE TABLE chooses the names of partition fields. From the first field on that has another name, the fields are
    added by a statement each, so that tables have the same names with either engine.
    """
    paths = column_paths(schema)
    fields = [(field, _transform(field, quote(*paths[field.source_id]))) for field in spec.fields]
    split = next((at for at, (field, _) in enumerate(fields) if not _is_named_by_spark(field, schema)), len(fields))
    create = Statement()
    clauses = [f"({', '.join(create.column(field) for field in schema.fields)}) USING iceberg"]
    if split:
        clauses.append(f"PARTITIONED BY ({', '.join(text for _, text in fields[:split])})")
    if location is not None:
        clauses.append(f"LOCATION {create.parameter(location)}")
    if settable := _settable(properties):
        clauses.append(f"TBLPROPERTIES ({create.pairs(settable)})")
    create.text = f"CREATE TABLE {name} {' '.join(clauses)}"
    yield create
    yield from _set_reserved(properties)
    for field, text in fields[split:]:
        yield Statement(f"ALTER TABLE {name} ADD PARTITION FIELD {text} AS {quote(field.name)}")


def change_table(name: str, catalog: str, before: TableMetadata, after: TableMetadata) -> Iterator[Statement]:
    """The statements that turn one version of a table into another; `name` is quoted.

    Raises:
        EngineCapabilityError: Spark has no statement for a change.
    """
    if {snapshot.snapshot_id for snapshot in after.snapshots} - {each.snapshot_id for each in before.snapshots}:
        raise AssertionError("rows are written by Spark itself")
    yield from _change_properties(name, before.properties, after.properties)
    yield from _change_schema(name, before.schema(), after.schema())
    yield from _change_spec(name, before, after)
    yield from _change_refs(name, catalog, before, after)
    expired = {each.snapshot_id for each in before.snapshots} - {each.snapshot_id for each in after.snapshots}
    if expired:
        yield _call(catalog, "expire_snapshots", name, older_than=_EPOCH, snapshot_ids=sorted(expired))


def upgrade_format(name: str, version: int) -> Statement:
    """Upgrade a table to a newer format version."""
    return Statement(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '{version}')")


def create_first_branch(name: str, branch: str) -> Statement:
    """Create a branch of a table without snapshots; it gets an empty one, and main none."""
    return Statement(f"ALTER TABLE {name} CREATE BRANCH {quote(branch)}")


def _settable(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key not in _RESERVED}


def _set_reserved(properties: Mapping[str, str]) -> Iterator[Statement]:
    statement = Statement()
    statement.reserved.update({key: value for key, value in properties.items() if key in _RESERVED})
    if statement.reserved:
        yield statement


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _change_properties(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Statement]:
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    if settable := _settable(changed):
        change = Statement()
        change.text = f"ALTER TABLE {name} SET TBLPROPERTIES ({change.pairs(settable)})"
        yield change
    yield from _set_reserved(changed)
    if removed := [key for key in before if key not in after]:
        yield Statement(f"ALTER TABLE {name} UNSET TBLPROPERTIES ({', '.join(map(_literal, removed))})")


def _change_schema(name: str, before: Schema, after: Schema) -> Iterator[Statement]:
    """Columns that go, are renamed, change and come, in this order; one statement for all that change and come."""
    old, new = nodes_by_id(before), nodes_by_id(after)
    dropped = [node for field_id, node in old.items() if field_id not in new and node.parent_id not in old.keys() - new]
    if dropped:
        columns = ", ".join(_path(before, node) for node in dropped)
        yield Statement(f"ALTER TABLE {name} DROP COLUMNS ({columns})")
    kept = [(old[field_id], node) for field_id, node in new.items() if field_id in old]
    for was, node in _in_order([(was, node) for was, node in kept if was.field.name != node.field.name]):
        # Outer fields come first, and have their new names already.
        parent = _path_parts(after, node)[:-1]
        yield Statement(
            f"ALTER TABLE {name} RENAME COLUMN {quote(*parent, was.field.name)} TO {quote(node.field.name)}"
        )
    yield from _change_columns(name, after, kept)
    added = [node for field_id, node in new.items() if field_id not in old and node.parent_id not in new.keys() - old]
    for node in added:
        if node.field.required:
            raise _cannot_require(".".join(_path_parts(after, node)))
    if added:
        add = Statement()
        columns = ", ".join(add.column(node.field, _path(after, node)) for node in added)
        add.text = f"ALTER TABLE {name} ADD COLUMNS ({columns})"
        yield add


def _in_order(renamed: list[tuple[SchemaNode, SchemaNode]]) -> Iterator[tuple[SchemaNode, SchemaNode]]:
    """Renames so that a name is free when another column takes it; outer fields before their own."""
    left = list(renamed)
    while left:
        used = {(node.parent_id, was.field.name) for was, node in left}
        waiting = {node.field.field_id for _, node in left}
        ready = [
            (was, node)
            for was, node in left
            if (node.parent_id, node.field.name) not in used and waiting.isdisjoint(node.ancestors)
        ]
        if not ready:
            names = " and ".join(sorted(f"'{was.field.name}'" for was, _ in left))
            raise EngineCapabilityError(
                f"Spark cannot swap the names of columns {names} at once. Rename one of them to another name first.",
                engine="spark",
            )
        yield from ready
        left = [pair for pair in left if pair not in ready]


def _cannot_require(column: str) -> EngineCapabilityError:
    # Its statements fail, and those before them are committed then.
    return EngineCapabilityError(
        f"Spark cannot make column '{column}' required in a table that exists. Leave it optional.", engine="spark"
    )


def _change_columns(name: str, after: Schema, kept: Sequence[tuple[SchemaNode, SchemaNode]]) -> Iterator[Statement]:
    """A statement for all types, one for what is required, and one for all docs: each takes a column only once."""
    types, nullability, docs, comment = list[str](), list[str](), list[str](), Statement()
    for was, node in kept:
        path, kind = _path(after, node), node.field.field_type
        if isinstance(kind, iceberg.PrimitiveType) and was.field.field_type != kind:
            types.append(f"{path} TYPE {to_spark_type(kind)}")
        if node.field.required and not was.field.required:
            raise _cannot_require(".".join(_path_parts(after, node)))
        if was.field.required and not node.field.required:
            nullability.append(f"{path} DROP NOT NULL")
        if was.field.doc != node.field.doc:
            docs.append(f"{path} COMMENT {comment.parameter(node.field.doc or '')}")
    for actions, statement in ((types, Statement()), (nullability, Statement()), (docs, comment)):
        if actions:
            statement.text = f"ALTER TABLE {name} ALTER COLUMN {', '.join(actions)}"
            yield statement


def _path_parts(schema: Schema, node: SchemaNode) -> tuple[str, ...]:
    nodes = nodes_by_id(schema)
    return (*(nodes[field_id].field.name for field_id in node.ancestors), node.field.name)


def _path(schema: Schema, node: SchemaNode) -> str:
    return quote(*_path_parts(schema, node))


def _change_spec(name: str, before: TableMetadata, after: TableMetadata) -> Iterator[Statement]:
    old, new = before.spec(), after.spec()
    if old == new:
        return
    by_id = {field.field_id: field for field in new.fields}
    for field in old.fields:
        kept = by_id.get(field.field_id)
        if kept is None:
            yield Statement(f"ALTER TABLE {name} DROP PARTITION FIELD {quote(field.name)}")
        elif kept.name != field.name:
            raise EngineCapabilityError(
                f"Spark cannot rename partition field '{field.name}'. Drop it and add it under the new name.",
                engine="spark",
            )
    paths, known = column_paths(after.schema()), {field.field_id for field in old.fields}
    for field in new.fields:
        if field.field_id not in known:
            text = _transform(field, quote(*paths[field.source_id]))
            yield Statement(f"ALTER TABLE {name} ADD PARTITION FIELD {text} AS {quote(field.name)}")


def _transform(field: PartitionField, column: str) -> str:
    match field.transform:
        case IdentityTransform():
            return column
        case TimeTransform():
            return f"{field.transform}s({column})"
        case BucketTransform():
            return f"bucket({field.transform.num_buckets}, {column})"
        case TruncateTransform():
            return f"truncate({field.transform.width}, {column})"
        case _:
            raise EngineCapabilityError(
                f"Spark has no partition transform {field.transform}, of field '{field.name}'.", engine="spark"
            )


def _is_named_by_spark(field: PartitionField, schema: Schema) -> bool:
    source = schema.find_column_name(field.source_id)
    match field.transform:
        case IdentityTransform():
            return field.name == source
        case TimeTransform():
            return field.name == f"{source}_{field.transform}"
        case _:
            return False


def _change_refs(name: str, catalog: str, before: TableMetadata, after: TableMetadata) -> Iterator[Statement]:
    """New refs first, then those that move, then those that go: a branch may move to one that goes."""
    for ref, target in after.refs.items():
        if ref not in before.refs and ref != MAIN_BRANCH:
            yield _create_ref(name, ref, target)
    for ref, target in after.refs.items():
        if ref in before.refs and before.refs[ref].snapshot_id == target.snapshot_id:
            continue
        if ref in before.refs or ref == MAIN_BRANCH:
            yield _move_branch(name, catalog, ref, before, target)
    for ref, gone in before.refs.items():
        if ref not in after.refs:
            yield Statement(f"ALTER TABLE {name} DROP {_kind(gone)} {quote(ref)}")


def _create_ref(name: str, ref: str, target: SnapshotRef) -> Statement:
    words = [f"ALTER TABLE {name} CREATE {_kind(target)} {quote(ref)} AS OF VERSION {target.snapshot_id}"]
    if target.max_ref_age_ms is not None:
        words.append(f"RETAIN {_minutes(target.max_ref_age_ms, ref)} MINUTES")
    kept = [] if target.min_snapshots_to_keep is None else [f"{target.min_snapshots_to_keep} SNAPSHOTS"]
    if target.max_snapshot_age_ms is not None:
        kept.append(f"{_minutes(target.max_snapshot_age_ms, ref)} MINUTES")
    if kept:
        words.append(f"WITH SNAPSHOT RETENTION {' '.join(kept)}")
    return Statement(" ".join(words))


def _move_branch(name: str, catalog: str, branch: str, before: TableMetadata, target: SnapshotRef) -> Statement:
    here = before.refs.get(branch)
    if here is not None and is_in_history(before, target.snapshot_id, of=here.snapshot_id):
        if branch == MAIN_BRANCH:
            return _call(catalog, "rollback_to_snapshot", name, snapshot_id=target.snapshot_id)
        return Statement(f"ALTER TABLE {name} REPLACE BRANCH {quote(branch)} AS OF VERSION {target.snapshot_id}")
    # The procedure fails if the branch has moved away from the history of the other one.
    there = next((ref for ref, other in before.refs.items() if other.snapshot_id == target.snapshot_id), None)
    if there is None:
        raise EngineCapabilityError(
            f"Spark moves branch '{branch}' only to another branch or tag. Create one at snapshot "
            f"{target.snapshot_id} first.",
            engine="spark",
        )
    return _call(catalog, "fast_forward", name, branch=branch, to=there)


def _call(catalog: str, procedure: str, table: str, **values: Any) -> Statement:
    named = ", ".join(f"{argument} => :{argument}" for argument in ("table", *values))
    return Statement(f"CALL {quote(catalog)}.system.{procedure}({named})", table=table, **values)


def _kind(ref: SnapshotRef) -> str:
    return "TAG" if ref.snapshot_ref_type is SnapshotRefType.TAG else "BRANCH"


def _minutes(milliseconds: int, ref: str) -> int:
    if milliseconds % _MINUTE_MS:
        raise ValidationError(f"Spark keeps '{ref}' for whole minutes, not for {milliseconds} ms. Round it up.")
    return milliseconds // _MINUTE_MS

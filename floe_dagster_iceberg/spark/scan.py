"""Tables as lazy DataFrames: filter, columns and version are part of the plan, and nothing is read yet."""

from collections.abc import Sequence
from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from pyspark.sql import Column, DataFrame, SparkSession, functions as F  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.errors import EngineCapabilityError, ValidationError
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, FailureKind, kind_of, redacted, to_error
from floe_dagster_iceberg.spark.filters import to_condition
from floe_dagster_iceberg.spark.frame_rows import conform
from floe_dagster_iceberg.spark.types import check_types, quote, to_spark_schema, to_spark_type
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, traced_step


def _describe(_: object, table: Table, *, snapshot_id: int | None, **__: object) -> dict[str, Any]:
    attributes = {**describe_table(table.name()), attrs.ENGINE: "spark"}
    return attributes if snapshot_id is None else {**attributes, attrs.SNAPSHOT_ID: snapshot_id}


@traced_step("open_frame", _describe)
def open_frame(
    session: SparkSession,
    table: Table,
    *,
    snapshot_id: int | None,
    row_filter: BooleanExpression,
    columns: Sequence[str] = (),
    only_added: bool = False,
    current_columns: bool = False,
) -> DataFrame:
    """Open a table as a DataFrame.

    Args:
        session: A session with the catalog.
        table: The table.
        snapshot_id: Version to read; main as of now if None, no matter when the DataFrame is computed.
        row_filter: Rows to read.
        columns: Columns to read, dotted names for fields of structs; all if empty.
        only_added: Read only the rows that the version added, which must be an append.
        current_columns: Read the version in the table's current columns, which the filter and `columns` then name.

    Raises:
        ValidationError: A column does not exist.
        EngineCapabilityError: Spark cannot read one of the table's types, or has no Iceberg runtime.
    """
    schema = _schema_at(table, snapshot_id)
    check_types(schema, table_name(table))
    version = _version_of_main(table) if snapshot_id is None else snapshot_id
    reader = session.read if version is None else session.read.options(**_version_options(table, version, only_added))
    name = table_name(table)
    try:
        frame = reader.table(quote(table.catalog.name, *table.name()))
    except SPARK_ERRORS as error:
        if kind_of(error) is FailureKind.NO_RUNTIME:
            raise to_error(error, catalog=table.catalog.name, table=name) from redacted(error)
        raise EngineCapabilityError(
            f"Spark could not open '{name}' ({type(error).__name__}); see the cause.", engine="spark", table=name
        ) from redacted(error)
    if current_columns:
        frame, schema = with_current_columns(frame, table, snapshot_id), table.schema()
    frame = frame.where(F.expr(to_condition(row_filter, schema)))
    return conform(frame, _selected(table, schema, columns)) if columns else frame


def with_current_columns(frame: DataFrame, table: Table, snapshot_id: int | None) -> DataFrame:
    """Rows of a version in the table's current columns, found by their ids: a version has the names of its time."""
    then, now = _schema_at(table, snapshot_id), table.schema()
    if then.schema_id == now.schema_id:
        return frame
    columns = [_renamed(field, now) for field in then.fields if field.field_id in now.field_ids]
    return conform(frame.select(*columns), now)


def _renamed(field: NestedField, schema: Schema) -> Column:
    """A column with the names that it and its fields have in a schema."""
    name, kind = schema.find_field(field.field_id).name, _with_names_of(schema, field.field_type)
    column = F.col(quote(field.name))
    if name != field.name or kind != field.field_type:
        # Iceberg looks for filters of a version in the current columns, by their old names, and fails: none may reach
        # it. Spark does not see through this, and casts a struct by the order of its fields.
        column = F.element_at(F.array(column.cast(to_spark_type(kind))), 1)
    return column.alias(name)


def _with_names_of(schema: Schema, kind: IcebergType) -> IcebergType:
    match kind:
        case StructType():
            return StructType(*(_with_name_of(schema, field) for field in kind.fields))
        case ListType():
            element = _with_names_of(schema, kind.element_type)
            return ListType(kind.element_id, element, element_required=kind.element_required)
        case MapType():
            value = _with_names_of(schema, kind.value_type)
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=kind.value_required)
        case _:
            return kind


def _with_name_of(schema: Schema, field: NestedField) -> NestedField:
    # What is gone keeps its place, under a name that nothing else has.
    is_there = field.field_id in schema.field_ids
    name = schema.find_field(field.field_id).name if is_there else f"floe:{field.field_id}"
    return field.model_copy(update={"name": name, "field_type": _with_names_of(schema, field.field_type)})


def selected_schema(table: Table, snapshot_id: int | None, columns: Sequence[str] = ()) -> Schema:
    """The schema of the DataFrame that `open_frame` opens."""
    schema = _schema_at(table, snapshot_id)
    return _selected(table, schema, columns) if columns else schema


def empty_frame(session: SparkSession, schema: Schema, columns: Sequence[str] = ()) -> DataFrame:
    """Create a DataFrame without rows that has the columns of a schema."""
    fields = [field for field in schema.fields if not columns or field.name in columns]
    return session.createDataFrame([], to_spark_schema(Schema(*fields)) or "")


def _version_options(table: Table, version: int, only_added: bool) -> dict[str, str]:  # noqa: FBT001 - of the caller
    snapshot = table.metadata.snapshot_by_id(version)
    if only_added and snapshot is not None and snapshot.parent_snapshot_id is not None:
        return {"start-snapshot-id": str(snapshot.parent_snapshot_id), "end-snapshot-id": str(version)}
    return {"versionAsOf": str(version)}


def _version_of_main(table: Table) -> int | None:
    """The current snapshot; None if columns changed since, because Spark reads a version with its own columns."""
    snapshot = table.metadata.current_snapshot()
    if snapshot is None or snapshot.schema_id != table.metadata.current_schema_id:
        return None
    return snapshot.snapshot_id


def _schema_at(table: Table, snapshot_id: int | None) -> Schema:
    snapshot = None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    schema_id = None if snapshot is None else snapshot.schema_id
    return table.schema() if schema_id is None else table.schemas()[schema_id]


def _selected(table: Table, schema: Schema, columns: Sequence[str]) -> Schema:
    if missing := [column for column in columns if column not in schema.column_names]:
        name, known = table_name(table), ", ".join(schema.column_names)
        raise ValidationError(
            f"Table '{name}' has no column {', '.join(map(repr, missing))}. It has: {known}.", table=name
        )
    return schema.select(*columns)

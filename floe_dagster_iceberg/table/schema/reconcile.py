"""Schema changes that a table needs before given rows fit into it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction

from floe_dagster_iceberg._pyiceberg.parquet import arrow_schema_without_ids
from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError, SchemaEvolutionError
from floe_dagster_iceberg.models.writing import EvolutionMode
from floe_dagster_iceberg.table.schema.evolution import widens

if TYPE_CHECKING:
    from pyiceberg.table.update.schema import UpdateSchema

Path = tuple[str, ...]


@dataclass(frozen=True)
class AddColumn:
    """A column that the rows have and the table lacks."""

    path: Path
    field_type: iceberg.IcebergType
    doc: str | None

    def apply(self, update: "UpdateSchema") -> None:
        update.add_column(self.path, self.field_type, doc=self.doc)

    def __str__(self) -> str:
        return f"add {'.'.join(self.path)} {self.field_type}"


@dataclass(frozen=True)
class WidenColumn:
    """A column whose type is too small for the rows."""

    path: Path
    old_type: iceberg.IcebergType
    field_type: iceberg.PrimitiveType

    def apply(self, update: "UpdateSchema") -> None:
        update.update_column(self.path, field_type=self.field_type)

    def __str__(self) -> str:
        return f"widen {'.'.join(self.path)} {self.old_type} to {self.field_type}"


@dataclass(frozen=True)
class MakeColumnOptional:
    """A required column in which rows have NULL."""

    path: Path

    def apply(self, update: "UpdateSchema") -> None:
        update.make_column_optional(self.path)

    def __str__(self) -> str:
        return f"make {'.'.join(self.path)} optional"


@dataclass(frozen=True)
class DocumentColumn:
    """A column whose doc differs from its description."""

    path: Path
    doc: str

    def apply(self, update: "UpdateSchema") -> None:
        update.update_column(self.path, doc=self.doc)

    def __str__(self) -> str:
        return f"document {'.'.join(self.path)}"


ColumnChange = AddColumn | WidenColumn | MakeColumnOptional | DocumentColumn


def reconcile(
    table: str,
    schema: Schema,
    rows: pa.Schema,
    *,
    null_count: Callable[[str], int | None],
    mode: EvolutionMode,
    docs: Mapping[str, str] | None = None,
) -> list[ColumnChange]:
    """Return the changes that make rows fit; none if they already do.

    Args:
        table: Name of the table, for messages.
        schema: Its schema.
        rows: The rows' columns; those with only NULL may have no type.
        null_count: Returns the NULLs in a column of the rows, where known.
        mode: Which changes are allowed.
        docs: Descriptions of columns; docs that differ are changed, unless the mode allows no change.

    Raises:
        SchemaEvolutionError: The rows do not fit, and the mode does not allow the necessary change.
    """
    changes = list(_Reconciler(table, mode).struct(schema.as_struct(), _rows_struct(table, schema, rows), ()))
    for field in schema.fields:
        if field.required and null_count(field.name) and not pa.types.is_null(rows.field(field.name).type):
            if mode is not EvolutionMode.WIDEN:
                raise _refused(table, (field.name,), "is required and the rows hold NULL in it", "widen")
            changes.append(MakeColumnOptional((field.name,)))
    return changes if mode is EvolutionMode.NONE or not docs else list(_with_docs(schema, changes, docs))


def _with_docs(schema: Schema, changes: list[ColumnChange], docs: Mapping[str, str]) -> Iterator[ColumnChange]:
    for change in changes:
        if isinstance(change, AddColumn) and len(change.path) == 1:
            yield replace(change, doc=docs.get(change.path[0], change.doc))
        else:
            yield change
    for field in schema.fields:
        if (doc := docs.get(field.name, field.doc)) is not None and doc != field.doc:
            yield DocumentColumn((field.name,), doc)


def is_integer_for_float(table: iceberg.IcebergType, rows: iceberg.IcebergType) -> bool:
    """Whether rows have integers for a column of floats, which holds most of them exactly."""
    return isinstance(table, iceberg.FloatType | iceberg.DoubleType) and isinstance(
        rows, iceberg.IntegerType | iceberg.LongType
    )


def integers_for_floats(schema: Schema, rows: pa.Schema) -> dict[str, pa.DataType]:
    """The integer columns of rows for which a table has floats, with the type to convert them to."""
    found: dict[str, pa.DataType] = {}
    for field in schema.fields:
        is_float = isinstance(field.field_type, iceberg.FloatType | iceberg.DoubleType) and field.name in rows.names
        if is_float and pa.types.is_integer(rows.field(field.name).type):
            found[field.name] = pa.float32() if isinstance(field.field_type, iceberg.FloatType) else pa.float64()
    return found


def apply_changes(table: str, transaction: Transaction, changes: Sequence[ColumnChange]) -> None:
    """Stage all changes as one schema update.

    Raises:
        SchemaEvolutionError: They conflict with each other or with existing columns.
    """
    with _reporting_conflicts(table), transaction.update_schema() as update:
        for change in changes:
            change.apply(update)


@contextmanager
def _reporting_conflicts(table: str) -> Iterator[None]:
    """A column `a.b` and a field `b` of a struct `a` cannot coexist in a schema, which PyIceberg detects late."""
    try:
        yield
    except ValueError as error:
        raise SchemaEvolutionError(
            f"The columns of the rows conflict with those of '{table}': {error}. Rename a column.", table=table
        ) from None


def _rows_struct(table: str, schema: Schema, rows: pa.Schema) -> iceberg.StructType:
    typed: list[pa.Field] = []
    for column in rows:
        if not pa.types.is_null(column.type):
            typed.append(column)
        elif column.name not in schema.column_names:
            raise SchemaEvolutionError(
                f"Column '{column.name}' holds only NULL and has no type, and '{table}' has no such column. "
                "Cast it to the intended type, or drop it.",
                table=table,
                column=column.name,
            )
    with _reporting_conflicts(table):
        return arrow_schema_without_ids(pa.schema(typed), format_version=2).as_struct()


class _Reconciler:
    def __init__(self, table: str, mode: EvolutionMode) -> None:
        self._table, self._mode = table, mode

    def struct(self, table: iceberg.StructType, rows: iceberg.StructType, path: Path) -> Iterator[ColumnChange]:
        given = {field.name: field.field_type for field in rows.fields}
        known = {field.name for field in table.fields}
        for field in table.fields:
            if field.name in given:
                yield from self._column(field.field_type, given[field.name], (*path, field.name))
            elif field.required:
                column = ".".join((*path, field.name))
                raise SchemaEvolutionError(
                    f"The rows lack column '{column}', which '{self._table}' requires. "
                    "Add it to the rows, or make the column optional with evolve_schema().",
                    table=self._table,
                    column=column,
                )
        for field in rows.fields:
            if field.name not in known:
                yield self._add(field, path, known)
                known.add(field.name)

    def _add(self, field: iceberg.NestedField, path: Path, known: set[str]) -> AddColumn:
        full = (*path, field.name)
        if self._mode is EvolutionMode.NONE:
            raise _refused(self._table, full, "is not in the table", "add")
        if duplicate := next((name for name in known if name.lower() == field.name.lower()), None):
            raise IncompatibleSchemaChangeError(
                self._table,
                column=".".join(full),
                reason=f"the table has '{duplicate}', which differs only in case, and Spark could not distinguish them",
            )
        return AddColumn(full, field.field_type, field.doc)

    def _column(self, table: iceberg.IcebergType, rows: iceberg.IcebergType, path: Path) -> Iterator[ColumnChange]:
        match table, rows:
            case iceberg.StructType(), iceberg.StructType():
                yield from self.struct(table, rows, path)
            case iceberg.ListType(), iceberg.ListType():
                yield from self._column(table.element_type, rows.element_type, (*path, "element"))
            case iceberg.MapType(), iceberg.MapType():
                # Iceberg does not allow map keys to change.
                for change in self._column(table.key_type, rows.key_type, (*path, "key")):
                    raise self._incompatible(table.key_type, rows.key_type, change.path)
                yield from self._column(table.value_type, rows.value_type, (*path, "value"))
            case iceberg.PrimitiveType(), iceberg.PrimitiveType():
                yield from self._primitive(table, rows, path)
            case _:
                raise self._incompatible(table, rows, path)

    def _primitive(
        self, table: iceberg.PrimitiveType, rows: iceberg.PrimitiveType, path: Path
    ) -> Iterator[ColumnChange]:
        if table == rows or widens(rows, table) or (len(path) == 1 and is_integer_for_float(table, rows)):
            return
        if not widens(table, rows):
            raise self._incompatible(table, rows, path)
        if self._mode is not EvolutionMode.WIDEN:
            raise _refused(self._table, path, f"is {table}, too narrow for rows with {rows}", "widen")
        yield WidenColumn(path, table, rows)

    def _incompatible(
        self, table: iceberg.IcebergType, rows: iceberg.IcebergType, path: Path
    ) -> IncompatibleSchemaChangeError:
        reason = f"it is {table} and the rows have {rows}, which cannot be converted; cast the rows"
        if is_integer_for_float(rows, table):
            reason += " (pandas turns integers into floats where values are missing: use its type 'Int64')"
        return IncompatibleSchemaChangeError(self._table, column=".".join(path), reason=reason)


def _refused(table: str, path: Path, fact: str, needed: str) -> SchemaEvolutionError:
    column = ".".join(path)
    return SchemaEvolutionError(
        f"Column '{column}' of '{table}' {fact}. Change the schema with evolve_schema(), "
        f"allow schema evolution '{needed}', or change the rows.",
        table=table,
        column=column,
    )

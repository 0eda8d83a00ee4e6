"""Schema changes that a table needs before given rows fit into it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

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
    field_type: IcebergType
    doc: str | None

    def apply(self, update: "UpdateSchema") -> None:
        update.add_column(self.path, self.field_type, doc=self.doc)

    def __str__(self) -> str:
        return f"add {'.'.join(self.path)} {self.field_type}"


@dataclass(frozen=True)
class WidenColumn:
    """A column whose type is too small for the rows."""

    path: Path
    old_type: IcebergType
    field_type: PrimitiveType

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


ColumnChange = AddColumn | WidenColumn | MakeColumnOptional


def reconcile(
    table: str, schema: Schema, rows: pa.Schema, *, null_counts: Mapping[str, int], mode: EvolutionMode
) -> list[ColumnChange]:
    """Return the changes that make rows fit; none if they already do.

    Args:
        table: Name of the table, for messages.
        schema: Its schema.
        rows: The rows' columns; those with only NULL may have no type.
        null_counts: NULLs per column of the rows, where known.
        mode: Which changes are allowed.

    Raises:
        SchemaEvolutionError: The rows do not fit, and the mode does not allow the necessary change.
    """
    changes = list(_Reconciler(table, mode).struct(schema.as_struct(), _rows_struct(table, schema, rows), ()))
    for field in schema.fields:
        if field.required and null_counts.get(field.name) and not pa.types.is_null(rows.field(field.name).type):
            if mode is not EvolutionMode.WIDEN:
                raise _refused(table, (field.name,), "is required and the rows hold NULL in it", "widen")
            changes.append(MakeColumnOptional((field.name,)))
    return changes


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


def _rows_struct(table: str, schema: Schema, rows: pa.Schema) -> StructType:
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

    def struct(self, table: StructType, rows: StructType, path: Path) -> Iterator[ColumnChange]:
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

    def _add(self, field: NestedField, path: Path, known: set[str]) -> AddColumn:
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

    def _column(self, table: IcebergType, rows: IcebergType, path: Path) -> Iterator[ColumnChange]:
        match table, rows:
            case StructType(), StructType():
                yield from self.struct(table, rows, path)
            case ListType(), ListType():
                yield from self._column(table.element_type, rows.element_type, (*path, "element"))
            case MapType(), MapType():
                # Iceberg does not allow map keys to change.
                for change in self._column(table.key_type, rows.key_type, (*path, "key")):
                    raise self._incompatible(table.key_type, rows.key_type, change.path)
                yield from self._column(table.value_type, rows.value_type, (*path, "value"))
            case PrimitiveType(), PrimitiveType():
                yield from self._primitive(table, rows, path)
            case _:
                raise self._incompatible(table, rows, path)

    def _primitive(self, table: PrimitiveType, rows: PrimitiveType, path: Path) -> Iterator[ColumnChange]:
        if table == rows or widens(rows, table):
            return
        if not widens(table, rows):
            raise self._incompatible(table, rows, path)
        if self._mode is not EvolutionMode.WIDEN:
            raise _refused(self._table, path, f"is {table}, too narrow for rows with {rows}", "widen")
        yield WidenColumn(path, table, rows)

    def _incompatible(self, table: IcebergType, rows: IcebergType, path: Path) -> IncompatibleSchemaChangeError:
        return IncompatibleSchemaChangeError(
            self._table,
            column=".".join(path),
            reason=f"it is {table} and the rows have {rows}, which cannot be converted; cast the rows",
        )


def _refused(table: str, path: Path, fact: str, needed: str) -> SchemaEvolutionError:
    column = ".".join(path)
    return SchemaEvolutionError(
        f"Column '{column}' of '{table}' {fact}. Change the schema with evolve_schema(), "
        f"allow schema evolution '{needed}', or change the rows.",
        table=table,
        column=column,
    )

"""Changes to the partition spec of a table that is there already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, parse_transform

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.base import first_duplicate
from floe_dagster_iceberg.table._pyiceberg import TableTransaction
from floe_dagster_iceberg.table.partition_layout import PartitionLayoutField


@dataclass(frozen=True)
class SpecChanges:
    """Fields to remove, to rename and to add, in this order.

    Attributes:
        add: New fields, each with its name or None for Iceberg's own.
        remove: Names of fields.
        rename: New names by old ones.
    """

    add: tuple[tuple[str | None, PartitionLayoutField], ...]
    remove: tuple[str, ...]
    rename: Mapping[str, str]

    @classmethod
    def from_arguments(
        cls,
        table: str,
        *,
        add: Sequence[str] | Mapping[str, str],
        remove: Sequence[str],
        rename: Mapping[str, str],
    ) -> "SpecChanges":
        """Read the changes as users give them.

        Raises:
            ValidationError: There are none, a field cannot be read, or one is changed twice.
        """
        if not add and not remove and not rename:
            raise ValidationError(
                f"No change of the partitioning of '{table}' is given. Name fields to add, remove or rename.",
                table=table,
            )
        for argument, given in {"add": add, "remove": remove}.items():
            if isinstance(given, str):
                raise ValidationError(
                    f"{argument} for the partitioning of '{table}' takes a list: [{given!r}].", table=table
                )
        if (twice := first_duplicate([*remove, *rename])) is not None:
            raise ValidationError(
                f"Partition field '{twice}' of '{table}' is to be removed or renamed twice. Decide for one.",
                table=table,
            )
        named: list[tuple[str | None, str]] = (
            list(add.items()) if isinstance(add, Mapping) else [(None, t) for t in add]
        )
        try:
            fields = tuple((name, PartitionLayoutField.from_string(text)) for name, text in named)
        except ValueError as error:
            raise ValidationError(f"A partition field for '{table}' cannot be read: {error}", table=table) from None
        return cls(fields, tuple(remove), dict(rename))


def stage_spec_changes(transaction: TableTransaction, table: str, changes: SpecChanges) -> None:
    """Stage the new spec; nothing if it is the one that the table has.

    Raises:
        ValidationError: A field is not there, is there already, or does not fit the schema.
    """
    metadata = transaction.table_metadata
    spec, schema = metadata.spec(), metadata.schema()
    for name in (*changes.remove, *changes.rename):
        _check_is_there(table, spec, name)
    additions = [(name, field.column, _transform(table, schema, spec, field, changes)) for name, field in changes.add]
    try:
        with transaction.update_spec() as update:
            for name in changes.remove:
                update.remove_field(name)
            for name, new_name in changes.rename.items():
                update.rename_field(name, new_name)
            for new, column, transform in additions:
                update.add_field(column, transform, new)
    except ValueError as error:
        raise ValidationError(
            f"The partitioning of '{table}' cannot change like that: {error}. "
            "A name that is taken can be avoided with add={'other_name': 'day(ts)'}.",
            table=table,
        ) from error
    # PyIceberg looks for names used twice only among those that are columns as well.
    if (twice := first_duplicate(field.name for field in transaction.table_metadata.spec().fields)) is not None:
        raise ValidationError(
            f"Two partition fields of '{table}' would be named '{twice}'. Give each its own name.", table=table
        )


def _check_is_there(table: str, spec: PartitionSpec, name: str) -> None:
    known = [field.name for field in spec.fields]
    if name not in known:
        raise ValidationError(
            f"Table '{table}' has no partition field '{name}'. It has: {', '.join(known) or 'none'}.", table=table
        )


def _transform(
    table: str, schema: Schema, spec: PartitionSpec, field: PartitionLayoutField, changes: SpecChanges
) -> Transform[Any, Any]:
    """The transform of a new field, checked against its column and the fields that stay."""
    argument = "" if field.argument is None else f"[{field.argument}]"
    transform = parse_transform(f"{field.transform.value}{argument}")
    try:
        source = schema.find_field(field.column)
        schema.accessor_for_field(source.field_id)
    except ValueError:
        raise ValidationError(
            f"Table '{table}' has no column '{field.column}' to partition by, or it lies in a list or map. "
            f"Columns: {', '.join(schema.column_names)}.",
            table=table,
        ) from None
    if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
        raise ValidationError(
            f"Column '{field.column}' of '{table}' is {source.field_type}, which {field.transform} does not take. "
            "Choose another transform.",
            table=table,
        )
    for there in spec.fields:
        if there.name not in changes.remove and (there.source_id, there.transform) == (source.field_id, transform):
            raise ValidationError(f"Table '{table}' is partitioned by {field} already, as '{there.name}'.", table=table)
    return transform

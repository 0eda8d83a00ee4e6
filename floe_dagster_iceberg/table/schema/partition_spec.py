"""Partition layouts by column name, which become specs once the schema is known, and changes to a table's spec."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field, model_validator
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    HourTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    parse_transform,
)
from pyiceberg.types import DateType, IcebergType

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.base import FrozenModel, Items, first_duplicate
from floe_dagster_iceberg.models.partitioning import FIRST_PARTITION_FIELD_ID, PartitionTransform

if TYPE_CHECKING:
    # Asset settings load this module with a code location, which must not load PyIceberg's tables.
    from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction

TIME_TRANSFORMS: Final = (
    PartitionTransform.YEAR,
    PartitionTransform.MONTH,
    PartitionTransform.DAY,
    PartitionTransform.HOUR,
)
"""Coarsest first."""

_TAKE_NUMBER: Final = (PartitionTransform.BUCKET, PartitionTransform.TRUNCATE)

# Spark's DDL uses the plural.
_SPELLINGS: Final = {str(name): name for name in PartitionTransform} | {f"{name}s": name for name in TIME_TRANSFORMS}
_EXAMPLES: Final = '"region", "day(ts)", "bucket(16, id)", "truncate(4, name)"'
_CALL: Final = re.compile(r"(?P<transform>\w+)\((?:\s*(?P<number>\d+)\s*,)?\s*(?P<column>.+?)\s*\)", re.DOTALL)


class PartitionLayoutField(FrozenModel):
    """One partition field, by column name."""

    column: str = Field(min_length=1, description="Column the partition value comes from.")
    transform: PartitionTransform = Field(description="Transform from the column's value to the partition value.")
    argument: int | None = Field(default=None, ge=1, description="Number of buckets, or the width of truncate.")
    derived: bool = Field(
        default=False,
        description="Whether it is derived from Dagster's partitions; a column without times, which holds the "
        "partition key, then gets the identity transform.",
    )

    @model_validator(mode="after")
    def _check_argument(self) -> Self:
        if self.transform in _TAKE_NUMBER and self.argument is None:
            raise ValueError(f'{self.transform} needs a number: write "{self.transform}(16, {self.column})"')
        if self.transform not in _TAKE_NUMBER and self.argument is not None:
            raise ValueError(f'{self.transform} takes no number: write "{self.transform}({self.column})"')
        return self

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Parse a field in Iceberg's notation: `day(ts)`, `bucket(16, id)` or just a column.

        Raises:
            ValueError: The transform is unknown, or its number is missing or not allowed.
        """
        call = _CALL.fullmatch(text.strip())
        if call is None:
            return cls(column=text.strip(), transform=PartitionTransform.IDENTITY)
        transform = _SPELLINGS.get(call["transform"].lower())
        if transform is None:
            raise ValueError(
                f"partition transform '{call['transform']}' is unknown: use {', '.join(PartitionTransform)}"
            )
        return cls(
            column=call["column"], transform=transform, argument=None if call["number"] is None else int(call["number"])
        )

    def to_pyiceberg_transform(self) -> Transform[Any, Any]:
        argument = "" if self.argument is None else f"[{self.argument}]"
        return parse_transform(f"{self.transform.value}{argument}")

    def __str__(self) -> str:
        if self.transform is PartitionTransform.IDENTITY:
            return self.column
        number = "" if self.argument is None else f"{self.argument}, "
        return f"{self.transform}({number}{self.column})"


class PartitionLayout(FrozenModel):
    """The partition fields of a new table, outermost first."""

    fields: Items[PartitionLayoutField] = Field(default=(), description="The fields; none for an unpartitioned table.")

    @classmethod
    def from_strings(cls, texts: Iterable[str]) -> Self:
        """Parse fields in Iceberg's notation.

        >>> str(PartitionLayout.from_strings(["day(ts)", "bucket(16, id)"]))
        '[day(ts), bucket(16, id)]'

        Raises:
            ValueError: A field cannot be parsed.
        """
        return cls(fields=[PartitionLayoutField.from_string(text) for text in texts])

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.fields))}]"

    def to_pyiceberg_spec(self, schema: Schema) -> PartitionSpec:
        """Return the spec for a table with this schema; fields are named as Iceberg and Spark name them.

        Raises:
            ValidationError: A column is missing, or its type does not support the transform.
        """
        from floe_dagster_iceberg.table.filter.partition_slice import find_column  # noqa: PLC0415 - loads Arrow, which code locations must not

        fields: list[PartitionField] = []
        for number, field in enumerate(self.fields):
            source = find_column(schema, field.column)
            transform = _transform_for(field, source.field_type)
            fields.append(
                PartitionField(
                    source_id=source.field_id,
                    field_id=FIRST_PARTITION_FIELD_ID + number,
                    transform=transform,
                    name=_iceberg_name(field.column, transform, schema),
                )
            )
        return PartitionSpec(*fields)


def _transform_for(field: PartitionLayoutField, source_type: IcebergType) -> Transform[Any, Any]:
    from floe_dagster_iceberg.table.filter.partition_slice import TIME_TYPES, too_short_for_dates  # noqa: PLC0415 - as above

    if field.derived and field.transform in TIME_TRANSFORMS and not isinstance(source_type, TIME_TYPES):
        return IdentityTransform()
    transform = field.to_pyiceberg_transform()
    if field.derived and isinstance(transform, HourTransform) and isinstance(source_type, DateType):
        # Another transform would not help: its partitions could not be distinguished either.
        raise too_short_for_dates(field.column)
    if not source_type.is_primitive or not transform.can_transform(source_type):
        raise ValidationError(
            f"Column '{field.column}' of type {source_type} cannot be partitioned by {field.transform}. "
            f"Choose another transform in metadata 'iceberg/partition_spec', such as {_EXAMPLES}."
        )
    return transform


def _iceberg_name(column: str, transform: Transform[Any, Any], schema: Schema) -> str:
    match transform:
        case IdentityTransform():
            return column
        case BucketTransform():
            name = f"{column}_bucket_{transform.num_buckets}"
        case TruncateTransform():
            name = f"{column}_trunc_{transform.width}"
        case _:
            name = f"{column}_{transform}"
    # Iceberg rejects a partition field with the name of a column.
    while name in schema.column_names:
        name = f"{name}_partition"
    return name


@dataclass(frozen=True)
class SpecChanges:
    """Fields to remove, rename (old name to new) and add, in this order; None is the default name of a new field."""

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
        """Parse the changes as users give them.

        Raises:
            ValidationError: There are none, a field cannot be parsed, or a field is changed twice.
        """
        if not add and not remove and not rename:
            raise ValidationError(
                f"No change to the partitioning of '{table}' is given. Name fields to add, remove or rename.",
                table=table,
            )
        for argument, given in {"add": add, "remove": remove}.items():
            if isinstance(given, str):
                raise ValidationError(
                    f"{argument} for the partitioning of '{table}' takes a list: [{given!r}].", table=table
                )
        if (twice := first_duplicate([*remove, *rename])) is not None:
            raise ValidationError(
                f"Partition field '{twice}' of '{table}' is removed or renamed twice. Name it only once.",
                table=table,
            )
        named = add.items() if isinstance(add, Mapping) else ((None, text) for text in add)
        try:
            fields = tuple((name, PartitionLayoutField.from_string(text)) for name, text in named)
        except ValueError as error:
            raise ValidationError(f"A partition field for '{table}' cannot be parsed: {error}", table=table) from None
        return cls(fields, tuple(remove), dict(rename))


def stage_spec_changes(transaction: "TableTransaction", table: str, changes: SpecChanges) -> None:
    """Stage the new spec; nothing if the table already has it.

    Raises:
        ValidationError: A field does not exist, exists already, or does not fit the schema.
    """
    metadata = transaction.table_metadata
    spec, schema = metadata.spec(), metadata.schema()
    known = [field.name for field in spec.fields]
    if missing := [name for name in (*changes.remove, *changes.rename) if name not in known]:
        raise ValidationError(
            f"Table '{table}' has no partition field '{missing[0]}'. It has: {', '.join(known) or 'none'}.", table=table
        )
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
            f"The partitioning of '{table}' cannot be changed: {error}. "
            "If a name is taken, choose another one with add={'other_name': 'day(ts)'}.",
            table=table,
        ) from error
    # PyIceberg checks for duplicate names only among those that are also columns.
    if (twice := first_duplicate(field.name for field in transaction.table_metadata.spec().fields)) is not None:
        raise ValidationError(
            f"Two partition fields of '{table}' would be named '{twice}'. Give each its own name.", table=table
        )


def _transform(
    table: str, schema: Schema, spec: PartitionSpec, field: PartitionLayoutField, changes: SpecChanges
) -> Transform[Any, Any]:
    """The transform of a new field, checked against its column and the remaining fields."""
    transform = field.to_pyiceberg_transform()
    try:
        source = schema.find_field(field.column)
        schema.accessor_for_field(source.field_id)
    except ValueError:
        raise ValidationError(
            f"Table '{table}' has no column '{field.column}' to partition by, or it is inside a list or map. "
            f"Columns: {', '.join(schema.column_names)}.",
            table=table,
        ) from None
    if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
        raise ValidationError(
            f"Column '{field.column}' of '{table}' is {source.field_type}, which {field.transform} does not support. "
            "Choose another transform.",
            table=table,
        )
    for old in spec.fields:
        if old.name not in changes.remove and (old.source_id, old.transform) == (source.field_id, transform):
            raise ValidationError(f"Table '{table}' is already partitioned by {field}, as '{old.name}'.", table=table)
    return transform

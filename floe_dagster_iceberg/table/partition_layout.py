"""How a new table's files are split, by column names: a layout that becomes a spec once the schema is known."""

import re
from collections.abc import Iterable
from typing import Any, Final, Self

from pydantic import Field, model_validator
from pyiceberg.partitioning import PartitionField as IcebergPartitionField, PartitionSpec as IcebergPartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform, parse_transform
from pyiceberg.types import IcebergType

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.base import FrozenModel, Items
from floe_dagster_iceberg.models.partitioning import FIRST_PARTITION_FIELD_ID, PartitionTransform
from floe_dagster_iceberg.table.partition_columns import find_column
from floe_dagster_iceberg.table.slice_literals import TIME_TYPES

TIME_TRANSFORMS: Final = (
    PartitionTransform.YEAR,
    PartitionTransform.MONTH,
    PartitionTransform.DAY,
    PartitionTransform.HOUR,
)
"""The transforms of times, coarsest first."""

_TAKE_NUMBER: Final = (PartitionTransform.BUCKET, PartitionTransform.TRUNCATE)
# Spark's DDL writes the plural; whoever pastes it means the same.
_SPELLINGS: Final = {str(name): name for name in PartitionTransform} | {f"{name}s": name for name in TIME_TRANSFORMS}
_EXAMPLES: Final = '"region", "day(ts)", "bucket(16, id)", "truncate(4, name)"'
_CALL: Final = re.compile(r"(?P<transform>\w+)\((?:\s*(?P<number>\d+)\s*,)?\s*(?P<column>.+?)\s*\)", re.DOTALL)


class PartitionLayoutField(FrozenModel):
    """One way in which files are split."""

    column: str = Field(min_length=1, description="Column the partition value comes from.")
    transform: PartitionTransform = Field(description="Transform from the column's value to the partition value.")
    argument: int | None = Field(default=None, ge=1, description="Number of buckets, or the width of truncate.")
    derived: bool = Field(
        default=False,
        description="Whether it follows from Dagster's partitions; a column that holds the key is then split by "
        "identity instead of by time.",
    )

    @model_validator(mode="after")
    def _argument_belongs_to_the_transform(self) -> Self:
        if self.transform in _TAKE_NUMBER and self.argument is None:
            raise ValueError(f'{self.transform} needs a number: write "{self.transform}(16, {self.column})"')
        if self.transform not in _TAKE_NUMBER and self.argument is not None:
            raise ValueError(f'{self.transform} takes no number: write "{self.transform}({self.column})"')
        return self

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Read one field as Iceberg writes it: `day(ts)`, `bucket(16, id)`, or a column alone.

        Raises:
            ValueError: The transform is unknown, or its number is missing or too much.
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

    def __str__(self) -> str:
        if self.transform is PartitionTransform.IDENTITY:
            return self.column
        number = "" if self.argument is None else f"{self.argument}, "
        return f"{self.transform}({number}{self.column})"


class PartitionLayout(FrozenModel):
    """The partition fields of a table that is still to be created, outermost first."""

    fields: Items[PartitionLayoutField] = Field(default=(), description="The fields; none for an unpartitioned table.")

    @classmethod
    def from_strings(cls, texts: Iterable[str]) -> Self:
        """Read fields as Iceberg writes them.

        >>> str(PartitionLayout.from_strings(["day(ts)", "bucket(16, id)"]))
        '[day(ts), bucket(16, id)]'

        Raises:
            ValueError: A field cannot be read.
        """
        return cls(fields=[PartitionLayoutField.from_string(text) for text in texts])

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.fields))}]"

    def to_pyiceberg_spec(self, schema: Schema) -> IcebergPartitionSpec:
        """Return the spec for a table with this schema; fields are named as Iceberg and Spark name them.

        Raises:
            ValidationError: A column is missing, or its type does not take the transform.
        """
        fields: list[IcebergPartitionField] = []
        for number, field in enumerate(self.fields):
            source = find_column(schema, field.column)
            transform = _transform_for(field, source.field_type)
            fields.append(
                IcebergPartitionField(
                    source_id=source.field_id,
                    field_id=FIRST_PARTITION_FIELD_ID + number,
                    transform=transform,
                    name=_iceberg_name(field.column, transform, schema),
                )
            )
        return IcebergPartitionSpec(*fields)


def _transform_for(field: PartitionLayoutField, source_type: IcebergType) -> Transform[Any, Any]:
    if field.derived and field.transform in TIME_TRANSFORMS and not isinstance(source_type, TIME_TYPES):
        return IdentityTransform()
    transform = _to_pyiceberg_transform(field)
    if not source_type.is_primitive or not transform.can_transform(source_type):
        raise ValidationError(
            f"Column '{field.column}' of type {source_type} cannot be partitioned by {field.transform}. "
            f"Choose another transform in metadata 'iceberg/partition_spec', such as {_EXAMPLES}."
        )
    return transform


def _to_pyiceberg_transform(field: PartitionLayoutField) -> Transform[Any, Any]:
    match field.transform, field.argument:
        case PartitionTransform.BUCKET, int(number):
            return BucketTransform(number)
        case PartitionTransform.TRUNCATE, int(number):
            return TruncateTransform(number)
        case transform, _:
            return parse_transform(transform.value)


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
    # Iceberg refuses a partition field that is named like a column.
    while name in schema.column_names:
        name = f"{name}_partition"
    return name

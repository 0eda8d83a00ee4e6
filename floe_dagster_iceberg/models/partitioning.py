"""Partition specs of tables."""

from enum import StrEnum
from typing import Any, Final, Self

from pydantic import Field, model_validator
from pyiceberg import transforms
from pyiceberg.partitioning import PartitionField as IcebergPartitionField, PartitionSpec as IcebergPartitionSpec

from floe_dagster_iceberg.models.base import FrozenModel, Items, first_duplicate

FIRST_PARTITION_FIELD_ID: Final = 1000


class PartitionTransform(StrEnum):
    """Transform from a column's value to its partition value."""

    IDENTITY = "identity"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    BUCKET = "bucket"
    TRUNCATE = "truncate"


class PartitionField(FrozenModel):
    """One dimension of a partition spec."""

    source_field_id: int = Field(ge=1, description="Id of the column the partition value comes from.")
    partition_field_id: int = Field(
        ge=FIRST_PARTITION_FIELD_ID, description="Id of this partition field; Iceberg counts them from 1000."
    )
    name: str = Field(min_length=1, description="Name as Iceberg writes it, such as 'ts_day' or 'id_bucket_16'.")
    transform: PartitionTransform = Field(description="Transform from the column's value to the partition value.")
    num_buckets: int | None = Field(default=None, ge=1, description="Number of buckets; only for bucket.")
    width: int | None = Field(default=None, ge=1, description="Characters or step kept; only for truncate.")

    @model_validator(mode="after")
    def _check_transform_argument(self) -> Self:
        takers = {"num_buckets": PartitionTransform.BUCKET, "width": PartitionTransform.TRUNCATE}
        for argument, taker in takers.items():
            given = getattr(self, argument) is not None
            if self.transform is taker and not given:
                raise ValueError(f"partition field '{self.name}': {taker} needs {argument}")
            if self.transform is not taker and given:
                raise ValueError(f"partition field '{self.name}': {self.transform} takes no {argument}; leave it out")
        return self

    def to_pyiceberg_transform(self) -> transforms.Transform[Any, Any]:
        """Convert to a PyIceberg transform."""
        if self.num_buckets is not None:
            return transforms.BucketTransform(self.num_buckets)
        if self.width is not None:
            return transforms.TruncateTransform(self.width)
        return transforms.parse_transform(self.transform.value)

    def to_pyiceberg_field(self) -> IcebergPartitionField:
        """Convert to a PyIceberg partition field with the same ids."""
        return IcebergPartitionField(
            source_id=self.source_field_id,
            field_id=self.partition_field_id,
            transform=self.to_pyiceberg_transform(),
            name=self.name,
        )


class PartitionSpec(FrozenModel):
    """The partition fields of a table, outermost first."""

    fields: Items[PartitionField] = Field(min_length=1, description="The partition fields, outermost first.")
    spec_id: int = Field(default=0, ge=0, description="Id of this spec among the table's specs.")

    @model_validator(mode="after")
    def _check_unique_fields(self) -> Self:
        if (name := first_duplicate(field.name for field in self.fields)) is not None:
            raise ValueError(f"partition field name '{name}' is used twice: give each field its own")
        if (field_id := first_duplicate(field.partition_field_id for field in self.fields)) is not None:
            raise ValueError(f"partition field id {field_id} is used twice: give each field its own")
        sources = ((field.source_field_id, str(field.to_pyiceberg_transform())) for field in self.fields)
        if (source := first_duplicate(sources)) is not None:
            raise ValueError(f"{source[1]} of field id {source[0]} is there twice: remove one partition field")
        return self

    def to_pyiceberg_spec(self) -> IcebergPartitionSpec:
        """Convert to a PyIceberg spec with the same ids."""
        return IcebergPartitionSpec(*(field.to_pyiceberg_field() for field in self.fields), spec_id=self.spec_id)

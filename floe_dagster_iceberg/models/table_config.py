"""What a table shall be when it is created."""

from typing import Self

from pydantic import Field, model_validator

from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.models.identifiers import Namespace, TableIdentifier, TableName
from floe_dagster_iceberg.models.partitioning import PartitionField, PartitionSpec, PartitionTransform
from floe_dagster_iceberg.models.schema import TableSchema


class TableConfig(FrozenModel):
    """Everything needed to create a table."""

    namespace: Namespace = Field(description="Namespace; nested levels are joined by dots.")
    table_name: TableName = Field(description="Name of the table inside its namespace.")
    table_schema: TableSchema = Field(description="The columns.")
    partition_spec: PartitionSpec | None = Field(default=None, description="How files are split; none if not given.")
    location: str | None = Field(
        default=None, min_length=1, description="Root of the table; the catalog's choice if not given."
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="Table properties, over the manager's defaults."
    )

    @model_validator(mode="after")
    def _partition_spec_fits_the_schema(self) -> Self:
        for field in self.partition_spec.fields if self.partition_spec else ():
            _check_partition_field(field, self.table_schema)
        return self

    @property
    def identifier(self) -> TableIdentifier:
        """Namespace and name together."""
        return TableIdentifier(namespace=self.namespace, name=self.table_name)


def _check_partition_field(field: PartitionField, table_schema: TableSchema) -> None:
    ids = table_schema.column_ids
    if field.source_field_id not in ids:
        raise ValueError(
            f"partition field '{field.name}' reads field id {field.source_field_id}, which is no column with one value "
            f"per row: ids are {sorted(ids)}"
        )
    schema = table_schema.to_pyiceberg_schema()
    source = schema.find_field(field.source_field_id)
    transform = field.to_pyiceberg_transform()
    if not transform.can_transform(source.field_type):
        raise ValueError(
            f"partition field '{field.name}': {transform} cannot be applied to '{source.name}' "
            f"of type {source.field_type}"
        )
    # Filters find partitions by name, so only a column's own values may go by the column's name.
    clashes = field.name in schema.column_names
    if clashes and (field.transform is not PartitionTransform.IDENTITY or schema.find_field(field.name) != source):
        raise ValueError(
            f"partition field '{field.name}' is named like the column '{field.name}' without being its identity: "
            "choose another name"
        )

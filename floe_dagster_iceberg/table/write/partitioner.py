"""Batches split by Iceberg partition."""

from collections.abc import Iterator
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import partitioning
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.typedef import Record

_ROW = "__row"


class Partition(partitioning.PartitionKey):
    """A partition's key; unlike PyIceberg's own it allows several fields on one source column."""

    @cached_property
    def partition(self) -> Record:
        stored: list[object] = []
        for value in self.field_values:
            if isinstance(value.field.transform, BucketTransform):
                # PyIceberg goes by the source column's type, and takes the number of a bucket for a time of day.
                stored.append(value.value)
            else:
                stored.append(partitioning.partition_record_value(value.field, value.value, self.schema))
        return Record(*stored)


class PartitionSplitter:
    """Splits batches that are already in the table's schema."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._spec, self._schema = spec, schema

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Partition | None, pa.RecordBatch]]:
        """Yield each partition of the batch with its rows, in the order they came."""
        if self._spec.is_unpartitioned():
            yield None, batch
            return
        names = list(map(str, range(len(self._spec.fields))))
        keys = pa.Table.from_arrays([self._values(batch, field) for field in self._spec.fields], names=names)
        groups = (
            keys.append_column(_ROW, pa.arange(0, batch.num_rows))
            .group_by(names, use_threads=False)
            .aggregate([(_ROW, "list")])
        )
        for group in range(groups.num_rows):
            values = [
                PartitionFieldValue(field=field, value=groups.column(name)[group].as_py())
                for name, field in zip(names, self._spec.fields, strict=True)
            ]
            partition = Partition(field_values=values, partition_spec=self._spec, schema=self._schema)
            if groups.num_rows == 1:
                yield partition, batch
            else:
                # A copy, not a slice: a slice would keep the whole batch in memory until its partition is written.
                yield partition, batch.take(groups.column(f"{_ROW}_list")[group].values)

    def _values(self, batch: pa.RecordBatch, field: PartitionField) -> pa.Array:
        if isinstance(field.transform, VoidTransform):
            return pa.nulls(batch.num_rows, pa.int32())
        source = self._schema.find_field(field.source_id)
        top, *path = (self._schema.find_column_name(field.source_id) or "").split(".")
        column = batch.column(top)
        for name in path:
            column = pc.struct_field(column, name)
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        return field.transform.pyarrow_transform(source.field_type)(column)

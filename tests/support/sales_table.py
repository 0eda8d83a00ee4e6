"""A small table in partitions by region, of which one is NULL."""

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

BY_REGION = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region"))


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    """Rows of an id and a region each."""
    ids, regions = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.table({"id": pa.array(ids, pa.int64()), "region": pa.array(regions, pa.string())})

"""Dagster partitions as rows of a table. The only place that asks Dagster which partitions a context means."""

from floe_dagster_iceberg.partitions.layout import derive_layout
from floe_dagster_iceberg.partitions.slices import build_slice, load_slice, partitions_def_of

__all__ = ["build_slice", "derive_layout", "load_slice", "partitions_def_of"]

"""The IO manager for Arrow, pandas and polars frames."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engine import Engine


class ArrowIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyarrow.Table`, `pyarrow.RecordBatchReader`, pandas and polars frames in Iceberg tables.

    Inputs are loaded as what they are annotated with: those types, or `pyiceberg.table.Table`.
    """

    def engines(self) -> Sequence["Engine"]:
        """PyIceberg and Arrow alone."""
        from floe_dagster_iceberg.io_managers.arrow_engine import ArrowEngine  # noqa: PLC0415 - brings PyIceberg along

        return [ArrowEngine(self.table_manager)]

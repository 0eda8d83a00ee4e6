"""Arrow, pandas and polars frames, through PyIceberg."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from floe_dagster_iceberg.errors import NoSuchTableError
from floe_dagster_iceberg.io_managers.engine import ReadRequest
from floe_dagster_iceberg.table.arrow_rows import ACCEPTED_TYPES, to_arrow_rows
from floe_dagster_iceberg.table.commit import CommitBudget
from floe_dagster_iceberg.table.deposit import write_once
from floe_dagster_iceberg.table.filters import CheckedFilter
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.write import TableWrite, TableWriteResult


def _to_polars(rows: pa.Table) -> Any:
    import polars as pl  # noqa: PLC0415 - only those who ask for polars need it

    return pl.from_arrow(rows)


_CONVERSIONS: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow.Table": lambda rows: rows,
    "pyarrow.RecordBatchReader": lambda rows: rows.to_reader(),
    "pandas.DataFrame": lambda rows: rows.to_pandas(),
    "polars.DataFrame": _to_polars,
    "polars.LazyFrame": lambda rows: _to_polars(rows).lazy(),
}
_READER, _TABLE = "pyarrow.RecordBatchReader", "pyiceberg.Table"


class ArrowEngine:
    """Small data and all that fits a machine; no JVM."""

    name = "arrow"
    accepted_types = ACCEPTED_TYPES
    loadable_types = f"{', '.join(_CONVERSIONS)}, pyiceberg.table.Table"

    def __init__(self, manager: IcebergTableManager) -> None:
        self._manager = manager

    def accepts(self, data: Any) -> bool:
        """Whether it is one of the accepted types."""
        is_arrow = isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader)
        return is_arrow or _type_name(type(data)) in _CONVERSIONS

    def write(self, data: Any, write: TableWrite) -> TableWriteResult:
        """Write a frame into its table, exactly once."""
        manager, rows = self._manager, to_arrow_rows(data)
        budget = CommitBudget.from_config(manager.config)
        return manager.with_metadata_repair(write.table, write_once, manager.catalog, rows, write, budget)

    def loads(self, annotation: Any) -> bool:
        """Whether the annotation names a type that is read here; none at all means an Arrow table."""
        return annotation is None or _type_name(annotation) in {*_CONVERSIONS, _TABLE}

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Read rows; only files and columns that can matter are opened."""
        kind = "pyarrow.Table" if annotation is None else _type_name(annotation)
        try:
            table = self._manager.load_table(request.table)
        except NoSuchTableError:
            if request.empty_schema is None or kind == _TABLE:
                raise
            return _CONVERSIONS[kind](_empty(request.empty_schema, request.settings.columns))
        if kind == _TABLE:
            return table
        settings = request.settings
        what: dict[str, Any] = {
            "columns": settings.columns or None,
            "row_filter": CheckedFilter(request.row_filter(table)),
            "snapshot_id": settings.snapshot_id,
            "as_of": settings.as_of,
            "ref": request.ref,
        }
        if kind == _READER:
            return self._manager.scan_batches(table, **what)
        return _CONVERSIONS[kind](self._manager.scan(table, **what))


def _empty(schema: Schema, columns: Sequence[str]) -> pa.Table:
    rows = schema_to_pyarrow(schema, include_field_ids=False).empty_table()
    return rows.select([name for name in rows.column_names if name in columns]) if columns else rows


def _type_name(kind: Any) -> str:
    """Library and class of a type, without importing the library to find out."""
    return f"{getattr(kind, '__module__', '').split('.')[0]}.{getattr(kind, '__name__', '')}"

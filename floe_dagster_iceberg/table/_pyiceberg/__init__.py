"""The door to PyIceberg's private parts: whatever needs one lives in this folder.

Written against PyIceberg 0.12 and pinned to it; `tests/contract/test_pyiceberg_contract.py`
fails when something used here changes. Three things are done differently from PyIceberg:

- A transaction remembers its staged metadata instead of applying every update and
  deep-copying the whole metadata about thirty times per write.
- One producer makes one snapshot for any mix of added and removed files, and lets go of
  manifests that hold no live file.
- A transaction commits once. Retrying means planning again on fresh metadata, which is
  the business of `commit.py`.
"""

from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
)

from floe_dagster_iceberg.table._pyiceberg.file_reading import FileReader
from floe_dagster_iceberg.table._pyiceberg.history import (
    history_assertions,
    point_ref,
    ref_assertions,
    summary_property,
)
from floe_dagster_iceberg.table._pyiceberg.parquet import (
    arrow_schema_without_ids,
    bytes_written,
    close_quietly,
    leave_without_dictionary,
    open_parquet_writer,
    project_batch,
)
from floe_dagster_iceberg.table._pyiceberg.producer import SnapshotProducer
from floe_dagster_iceberg.table._pyiceberg.statistics import MetricsMatcher
from floe_dagster_iceberg.table._pyiceberg.transactions import CreateTransaction, StagedTransaction, TableTransaction

__all__ = [
    "AddSnapshotUpdate",
    "AssertCurrentSchemaId",
    "AssertRefSnapshotId",
    "CreateTransaction",
    "FileReader",
    "MetricsMatcher",
    "RemoveSnapshotRefUpdate",
    "RemoveSnapshotsUpdate",
    "SetSnapshotRefUpdate",
    "SnapshotProducer",
    "StagedTransaction",
    "TableTransaction",
    "arrow_schema_without_ids",
    "bytes_written",
    "close_quietly",
    "history_assertions",
    "leave_without_dictionary",
    "open_parquet_writer",
    "point_ref",
    "project_batch",
    "ref_assertions",
    "summary_property",
]

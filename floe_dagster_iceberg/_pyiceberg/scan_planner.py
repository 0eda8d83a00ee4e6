"""Scan planning that supports NULL partitions and uses our manifest reader."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyiceberg.expressions.visitors import ResidualEvaluator, bind
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.typedef import KeyDefaultDict
from pyiceberg.utils.concurrent import ExecutorFactory

from floe_dagster_iceberg._pyiceberg.arrow_reader import FileReader
from floe_dagster_iceberg._pyiceberg.evaluators import matching, residual_evaluator
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries, read_manifests, reading_files
from floe_dagster_iceberg._pyiceberg.manifest_writer import PartitionKeys

# Where a data file has its partition, by which PyIceberg finds the deletes of a file.
_PARTITION: Final = 3

# Among the options of a scan, which PyIceberg hands on to its planner.
_ONLY_ADDED: Final = "floe.only-added"
_CURRENT_COLUMNS: Final = "floe.current-columns"
_READABLE = frozenset({FileFormat.PARQUET, FileFormat.ORC})


class _Planner(ManifestGroupPlanner):
    def plan_manifest_entries(self, manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestEntry]]:
        may_match = KeyDefaultDict(self._build_manifest_evaluator)
        matching = [manifest for manifest in manifests if may_match[manifest.partition_spec_id](manifest)]
        oldest = min((manifest.min_sequence_number or 0 for manifest in matching if _lists_data(manifest)), default=0)
        # Deletes that are older than all data do not apply to it.
        opened = [
            manifest for manifest in matching if _lists_data(manifest) or (manifest.sequence_number or 0) >= oldest
        ]
        in_partition, by_metrics = KeyDefaultDict(self._build_partition_evaluator), self._build_metrics_evaluator()
        in_specs = {manifest.partition_spec_id: in_partition[manifest.partition_spec_id] for manifest in opened}
        keys = None if all(map(_lists_data, opened)) else PartitionKeys(self.table_metadata)

        def matching_entries(manifest: ManifestFile) -> list[ManifestEntry]:
            is_inside = in_specs[manifest.partition_spec_id]
            entries = read_entries(manifest, self.io, keep=lambda file: is_inside(file) and by_metrics(file))
            if _ONLY_ADDED in self.options:
                # A merged manifest also lists files of earlier snapshots.
                entries = [entry for entry in entries if entry.status == ManifestEntryStatus.ADDED]
            if keys is not None:
                for entry in entries:
                    entry.data_file[_PARTITION] = keys.of(entry.data_file)
            return entries

        if len(opened) == 1:
            return iter([matching_entries(opened[0])])
        return ExecutorFactory.get_or_create().map(matching_entries, opened)

    def _build_partition_evaluator(self, spec_id: int) -> Callable[[DataFile], bool]:
        metadata = self.table_metadata
        partition = Schema(*metadata.specs()[spec_id].partition_type(metadata.schema()).fields)
        is_inside = matching(bind(partition, self.partition_filters[spec_id], self.case_sensitive))
        return lambda file: is_inside(file.partition)

    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], ResidualEvaluator]:
        # One for all files of a spec: they are judged one after the other.
        spec, schema = self.table_metadata.specs()[spec_id], self.table_metadata.schema()
        evaluator = residual_evaluator(spec, self.row_filter, schema)
        return lambda _: evaluator


class NullSafeScan(DataScan):
    """A scan that can be planned with NULL in partitions."""

    @classmethod
    def of_table(
        cls, table: Table, *, only_added: bool = False, current_columns: bool = False, **settings: Any
    ) -> "NullSafeScan":
        """Like `Table.scan`; if `only_added`, only of files that the snapshot added.

        If `current_columns`, rows have the columns that the table has now, not those of the snapshot.
        """
        options = {_ONLY_ADDED: only_added, _CURRENT_COLUMNS: current_columns}
        return cls(
            options={name: "true" for name, is_set in options.items() if is_set},
            table_metadata=table.metadata,
            io=table.io,
            catalog=table.catalog,
            table_identifier=table.name(),
            **settings,
        )

    @property
    def only_added(self) -> bool:
        """Whether only files that the snapshot added are read."""
        return _ONLY_ADDED in self.options

    @property
    def current_columns(self) -> bool:
        """Whether rows have the columns that the table has now."""
        return _CURRENT_COLUMNS in self.options

    def projection(self) -> Schema:
        """The columns to read."""
        if not self.current_columns:
            return super().projection()
        schema = self.table_metadata.schema()
        return schema if "*" in self.selected_fields else schema.select(*self.selected_fields)

    def to_arrow(self) -> pa.Table:  # type: ignore[override]
        """Read all rows."""
        reader = FileReader(self.table_metadata, self.io, self.projection(), self.row_filter, self.limit)
        return reader.to_table(self.plan_files())

    def plan_files(self) -> Iterable[FileScanTask]:
        """Like PyIceberg's, with another error for deletes that it cannot read.

        Raises:
            NotImplementedError: The table has equality deletes, or data files of a format that Arrow cannot read.
        """
        try:
            with reading_files(self.table_metadata.location):
                tasks = list(super().plan_files())
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            raise NotImplementedError("it has equality deletes, which only Spark can read") from error
        if other := next((task.file.file_format for task in tasks if task.file.file_format not in _READABLE), None):
            raise NotImplementedError(f"it has {other.value} files, which only Spark can read")
        return tasks

    def _plan_files_local(self) -> Iterable[FileScanTask]:
        snapshot = self.snapshot()
        manifests = read_manifests(snapshot, self.io)
        if self.only_added and snapshot is not None:
            manifests = [each for each in manifests if each.added_snapshot_id == snapshot.snapshot_id]
        return self._manifest_planner.plan_files(manifests)

    @cached_property
    def _manifest_planner(self) -> ManifestGroupPlanner:
        return _Planner(
            table_metadata=self.table_metadata,
            io=self.io,
            row_filter=self.row_filter,
            case_sensitive=self.case_sensitive,
            options=self.options,
        )


def _lists_data(manifest: ManifestFile) -> bool:
    return manifest.content == ManifestContent.DATA

"""Which Dagster partitions the files of a table hold rows of, from manifests alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from floe_dagster_iceberg.observations.assets import ObservedAsset
from floe_dagster_iceberg.partitions import build_slice
from floe_dagster_iceberg.table.filter.partition_slice import to_expression
from floe_dagster_iceberg.table.filter.row_filter import FileMatcher
from floe_dagster_iceberg.table.observation import ObservedTable

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile


def changed_keys(asset: ObservedAsset, found: ObservedTable, instance: dg.DagsterInstance) -> dict[str, str]:
    """The partitions whose rows may have changed since the last look, each with its data version.

    The version of a partition is the last snapshot that added or removed a file with rows of it. If it is not known
    what has changed, all partitions with rows have the version of the table.
    """
    keys = PartitionKeys(asset, found, instance)
    changed = found.changed_files()
    if changed is None:
        return dict.fromkeys(keys.of_files(found.live_files()), found.observation.data_version)
    return {key: str(snapshot_id) for snapshot_id, files in changed for key in keys.of_files(files)}


class PartitionKeys:
    """Finds the partitions that files may hold rows of, by their partition values and statistics."""

    def __init__(self, asset: ObservedAsset, found: ObservedTable, instance: dg.DagsterInstance) -> None:
        if asset.partitions_def is None:
            raise ValueError(f"Asset '{asset.key.to_user_string()}' has no partitions.")
        self._asset, self._metadata = asset, found.table.metadata
        self._keys = asset.partitions_def.get_partition_keys(dynamic_partitions_store=instance)

    def of_files(self, files: Sequence["DataFile"]) -> list[str]:
        """Keys in Dagster's order."""
        return self._search(self._keys, files)

    def rows_of(self, keys: Sequence[str]) -> tuple[list[str], "BooleanExpression"]:
        """The partition columns, and the filter of exactly the rows of these keys."""
        rows = build_slice(self._asset.partitions_def, keys, partition_expr=self._asset.partition_expr)
        row_filter = to_expression(rows, self._metadata.schema(), naive_timezone=self._asset.naive_timezone)
        return list(rows.columns), row_filter

    def _search(self, keys: Sequence[str], files: Sequence["DataFile"]) -> list[str]:
        # By halves: adjacent time windows are one range, so that a few keys are found among thousands quickly.
        if not keys or not files:
            return []
        _, row_filter = self.rows_of(keys)
        matcher = FileMatcher(self._metadata, row_filter)
        matching = [file for file in files if not matcher.no_row(file)]
        if not matching or len(keys) == 1:
            return list(keys) if matching else []
        middle = len(keys) // 2
        return [*self._search(keys[:middle], matching), *self._search(keys[middle:], matching)]

"""Manifests written anew for entries that are there already."""
# ruff: noqa: SLF001 - private parts are what this module is for

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from floe_dagster_iceberg.table._pyiceberg import SnapshotProducer, TableTransaction
from floe_dagster_iceberg.table._pyiceberg.manifest_reading import read_entries
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.table.stored_files import delete_files


class ManifestRewriter:
    """Writes manifests for a snapshot that is yet to be made, of entries that others have written.

    They do not depend on the transaction that they are first meant for: a snapshot of the same id in
    a later one can list them as well.
    """

    def __init__(self, transaction: TableTransaction, snapshot_id: int) -> None:
        self._producer = SnapshotProducer(
            transaction,
            FileChanges(),
            operation=Operation.REPLACE,
            snapshot_id=snapshot_id,
            snapshot_properties={},
            branch=MAIN_BRANCH,
        )

    def rewrite(self, manifests: Sequence[ManifestFile], *, target_size_bytes: int) -> Iterator[ManifestFile]:
        """Live entries as they are, those of one partition beside each other, so that readers skip more.

        Args:
            manifests: Manifests of one partition spec.
            target_size_bytes: Size at which a manifest is closed.
        """
        producer = self._producer
        entries = sorted(
            (entry for manifest in manifests for entry in read_entries(manifest, producer._io)),
            key=lambda entry: _sortable(entry.data_file.partition),
        )
        waiting = iter(entries)
        for first in waiting:
            with producer.new_manifest_writer(producer.spec(manifests[0].partition_spec_id)) as writer:
                for entry in itertools.chain([first], waiting):
                    writer.existing(entry)
                    if writer.tell() >= target_size_bytes:
                        break
            yield writer.to_manifest_file()

    def discard(self) -> None:
        """Delete what was written; for a snapshot that definitely was not made."""
        delete_files(self._producer._io, self._producer._written_manifests)


def _sortable(partition: Record) -> tuple[tuple[bool, Any], ...]:
    """A partition as a key to sort by, NULL first."""
    return tuple((value is not None, "" if value is None else value) for value in partition._data)

"""Histories are those that PyIceberg finds, whatever branches and expiry made of them."""

import pyarrow as pa
from pyiceberg.table.snapshots import ancestors_of, is_ancestor_of
from support.lake import Lake

from floe_dagster_iceberg._pyiceberg.transaction import history_of, is_in_history
from floe_dagster_iceberg.table.manager import IcebergTableManager


def test_histories_are_those_that_pyiceberg_finds(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    ids = [manager.append("bronze.t", pa.table({"id": [number]})).snapshot_id for number in range(4)]
    manager.create_branch("bronze.t", "side", snapshot_id=ids[1])
    manager.append("bronze.t", pa.table({"id": [9]}), branch="side")
    manager.rollback_to_snapshot("bronze.t", ids[2])
    manager.expire_snapshots(
        "bronze.t", older_than=manager.list_snapshots("bronze.t")[0].timestamp, min_snapshots_to_keep=1
    )
    metadata = lake.table("bronze.t").metadata

    for head in metadata.snapshots:
        assert list(history_of(metadata, head)) == list(ancestors_of(head, metadata))
        for other in metadata.snapshots:
            theirs = is_ancestor_of(head.snapshot_id, other.snapshot_id, metadata)
            assert is_in_history(metadata, other.snapshot_id, of=head.snapshot_id) == theirs


def test_nothing_has_no_history(lake: Lake) -> None:
    metadata = lake.catalog.create_table("bronze.t", pa.schema([("id", pa.int64())])).metadata

    assert list(history_of(metadata, None)) == []
    assert not is_in_history(metadata, 1, of=2)

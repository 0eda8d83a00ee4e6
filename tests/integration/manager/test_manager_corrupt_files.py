"""Files of a table that are missing or corrupt: a typed error that names the table, and nothing changed."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.lake import Lake

from floe_dagster_iceberg.errors import ScanError
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})
DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"garbage" * 20),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "without its end": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "with another end": lambda path: path.write_bytes(path.read_bytes()[:-3] + b"xyz"),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}
FILES = {"data file": "**/*.parquet", "manifest": "**/*-m?.avro", "manifest list": "**/snap-*.avro"}


@pytest.mark.requirement("S2-E6")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("pattern", FILES.values(), ids=FILES)
def test_corrupt_files_are_reported_and_nothing_is_changed(
    lake: Lake, manager: IcebergTableManager, pattern: str, damage: Callable[[Path], object]
) -> None:
    manager.create_table("bronze.people", ROWS.schema)
    manager.append("bronze.people", ROWS)
    manager.append("bronze.people", ROWS)
    for path in lake.files(pattern):
        damage(path)
    files = lake.files()

    for use in (
        lambda: manager.scan("bronze.people"),
        lambda: manager.scan_batches("bronze.people").read_all(),
        lambda: manager.delete("bronze.people", "id = 1"),
        lambda: manager.upsert("bronze.people", pa.table({"id": [1], "name": ["z"]}), ["id"]),
        lambda: manager.compact_table("bronze.people"),
    ):
        with pytest.raises(ScanError, match=r"people.*(Restore it|missing)"):
            use()
    assert lake.files() == files


@pytest.mark.requirement("S2-E6")
def test_rows_can_be_appended_beside_corrupt_data(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.people", ROWS.schema)
    manager.append("bronze.people", ROWS)
    for path in lake.data_files():
        path.unlink()

    manager.append("bronze.people", ROWS)
    manager.overwrite("bronze.people", ROWS)

    assert len(lake.rows("bronze.people")) == 2

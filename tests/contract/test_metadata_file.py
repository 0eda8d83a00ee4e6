"""Metadata files are read as PyIceberg reads them, only quicker; what makes no sense is refused as by PyIceberg."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.sorting import SortOrder
from support.lake import Lake
from support.table_facts import to_path

from floe_dagster_iceberg.plugins._metadata_file import parse_metadata, read_metadata
from floe_dagster_iceberg.table.manager import IcebergTableManager

ROWS = pa.table({"id": [1, 2], "region": ["eu", None]})
Change = Callable[[dict[str, Any]], object]


def some_history(lake: Lake, manager: IcebergTableManager, version: str = "2") -> Path:
    """The metadata file of a table with a past."""
    manager.create_table("bronze.t", ROWS.schema, properties={"format-version": version, "owner": 'the "snapshots":[]'})
    manager.append("bronze.t", ROWS)
    manager.overwrite("bronze.t", ROWS, overwrite_filter="region = 'eu'")
    manager.create_tag("bronze.t", "first")
    manager.create_branch("bronze.t", "audit")
    manager.append("bronze.t", ROWS.append_column("amount", pa.array([1.5, None])))
    lake.table("bronze.t").update_spec().add_identity("region").commit()
    manager.compact_table("bronze.t")
    return to_path(lake.table("bronze.t").metadata_location)


def assert_same(ours: TableMetadata, theirs: TableMetadata) -> None:
    assert ours == theirs
    assert type(ours) is type(theirs)
    assert ours.model_dump_json() == theirs.model_dump_json()
    for mine, other in zip(ours.snapshots, theirs.snapshots, strict=True):
        assert repr(mine) == repr(other)
        assert mine.model_fields_set == other.model_fields_set
        assert mine.model_copy(deep=True) == other


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_metadata_file_is_read_as_pyiceberg_reads_it(lake: Lake, manager: IcebergTableManager, version: str) -> None:
    text = some_history(lake, manager, version).read_text()
    assert len(json.loads(text)["snapshots"]) > 3

    assert_same(parse_metadata(text), TableMetadataUtil.parse_raw(text))


def test_a_table_without_snapshots_is_read_as_pyiceberg_reads_it(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", ROWS.schema)
    text = to_path(lake.table("bronze.t").metadata_location).read_text()

    assert_same(parse_metadata(text), TableMetadataUtil.parse_raw(text))


ODDITIES: dict[str, Change] = {
    "no snapshots": lambda data: data.pop("snapshots"),
    "snapshots are null": lambda data: data.update(snapshots=None),
    "a number as text": lambda data: data["snapshots"][1].update(
        {"snapshot-id": str(data["snapshots"][1]["snapshot-id"])}
    ),
    "a number with a point": lambda data: data["snapshots"][1].update({"timestamp-ms": 1.0}),
    "no summary": lambda data: data["snapshots"][1].pop("summary"),
    "a summary that is null": lambda data: data["snapshots"][1].update(summary=None),
    "no sequence number": lambda data: data["snapshots"][1].pop("sequence-number"),
    "a parent that is null": lambda data: data["snapshots"][1].update({"parent-snapshot-id": None}),
    "fields of another version": lambda data: data["snapshots"][1].update({"first-row-id": 5, "added-rows": 2}),
    "a field that nobody knows": lambda data: data["snapshots"][1].update({"colour": "blue"}),
    "a sort order": lambda data: data.update({"sort-orders": [json.loads(SortOrder(order_id=0).model_dump_json())]}),
}


@pytest.mark.parametrize("change", ODDITIES.values(), ids=ODDITIES.keys())
def test_what_is_out_of_the_ordinary_is_read_as_pyiceberg_reads_it(
    lake: Lake, manager: IcebergTableManager, change: Change
) -> None:
    data = json.loads(some_history(lake, manager).read_text())
    change(data)
    text = json.dumps(data)

    try:
        theirs = TableMetadataUtil.parse_raw(text)
    except ValidationError:
        with pytest.raises(ValidationError):
            parse_metadata(text)
    else:
        assert_same(parse_metadata(text), theirs)


@pytest.mark.filterwarnings("ignore:Encountered invalid snapshot summary")
def test_a_summary_without_an_operation_is_read_as_pyiceberg_reads_it(lake: Lake, manager: IcebergTableManager) -> None:
    data = json.loads(some_history(lake, manager).read_text())
    del data["snapshots"][1]["summary"]["operation"]
    text = json.dumps(data)

    assert_same(parse_metadata(text), TableMetadataUtil.parse_raw(text))


NONSENSE: dict[str, Change] = {
    "no id": lambda data: data["snapshots"][0].pop("snapshot-id"),
    "an id that is a word": lambda data: data["snapshots"][0].update({"snapshot-id": "first"}),
    "no manifest list": lambda data: data["snapshots"][0].pop("manifest-list"),
    "a manifest list that is a number": lambda data: data["snapshots"][0].update({"manifest-list": 5}),
    "an operation that nobody knows": lambda data: data["snapshots"][0]["summary"].update(operation="guess"),
    "snapshots that are a text": lambda data: data.update(snapshots="none"),
    "a snapshot that is a number": lambda data: data.update(snapshots=[5]),
    "no schemas": lambda data: data.pop("schemas"),
    "a version of the future": lambda data: data.update({"format-version": 9}),
}


@pytest.mark.parametrize("change", NONSENSE.values(), ids=NONSENSE.keys())
def test_what_makes_no_sense_is_refused_as_pyiceberg_refuses_it(
    lake: Lake, manager: IcebergTableManager, change: Change
) -> None:
    data = json.loads(some_history(lake, manager).read_text())
    change(data)

    for parse in (parse_metadata, TableMetadataUtil.parse_raw):
        with pytest.raises(ValidationError):
            parse(json.dumps(data))


def test_a_compressed_metadata_file_is_read(lake: Lake, manager: IcebergTableManager, tmp_path: Path) -> None:
    stored = some_history(lake, manager)
    compressed = tmp_path / "00001.gz.metadata.json"
    compressed.write_bytes(gzip.compress(stored.read_bytes()))

    read = read_metadata(PyArrowFileIO().new_input(f"file://{compressed}"))

    assert_same(read, TableMetadataUtil.parse_raw(stored.read_text()))

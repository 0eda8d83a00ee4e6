"""Tables that other tools made, or that are broken: what a catalog may hold beside tables of ours.

Each has columns `id` (long) and `name` (string). Most are made by PyIceberg alone, some by editing the metadata file
or the catalog's database as no tool should; `HOSTILE` lists those. The ones that need Spark are made by the tests that
have it.
"""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType
from support.delete_files import delete_by_equality, delete_positions
from support.place import LocalPlace, Place
from support.table_facts import live_files, lose, to_path

NAMESPACE = "hostile"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
Maker = Callable[[Catalog, str], object]


@dataclass(frozen=True)
class State:
    """What must not change: where the catalog points, and every file with its content."""

    metadata_location: str | None
    files: dict[str, str]

    def differences(self, before: "State") -> list[str]:
        """What has changed: files that came, went or have another content, and the location of the metadata."""
        changed = {path for path, _ in self.files.items() ^ before.files.items()}
        moved = self.metadata_location != before.metadata_location
        return sorted(changed) + ([f"{before.metadata_location} to {self.metadata_location}"] if moved else [])


@dataclass(frozen=True)
class HostileLake:
    """A catalog of hostile tables, below a folder that can be restored to what it was when they were made."""

    folder: Path
    pristine: Path

    @classmethod
    @contextmanager
    def making(cls, folder: Path) -> Iterator["HostileLake"]:
        """A lake to make tables in; they are as they were made from then on."""
        lake = cls(folder / "lake", folder / "pristine")
        lake.folder.mkdir()
        with closing(lake.connect()) as catalog:
            catalog.create_namespace(NAMESPACE)
        yield lake
        shutil.copytree(lake.folder, lake.pristine)

    @property
    def place(self) -> LocalPlace:
        return LocalPlace.below(self.folder)

    def connect(self) -> Catalog:
        """The catalog, opened by PyIceberg alone."""
        return self.place.connect()

    def open(self) -> Catalog:
        """The catalog, opened by the plugin that users configure."""
        return Place.connect(self.place)

    def restore(self, table: str) -> None:
        """Undo everything that was done to a table since it was made."""
        shutil.copy(self.pristine / "catalog.db", self.folder / "catalog.db")
        files = Path("warehouse", NAMESPACE, table)
        shutil.rmtree(self.folder / files, ignore_errors=True)
        if (self.pristine / files).exists():
            shutil.copytree(self.pristine / files, self.folder / files)

    def state_of(self, table: str) -> State:
        """The row of a table in the catalog's database, and its files."""
        with closing(sqlite3.connect(self.folder / "catalog.db")) as database:
            found = database.execute(
                "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", [table]
            ).fetchone()
        files = {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (self.folder / "warehouse" / NAMESPACE / table).rglob("*")
            if path.is_file()
        }
        return State(None if found is None else found[0], files)


def edit_metadata(table: Table, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the metadata file of a table in place."""
    file = to_path(table.metadata_location)
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def filled(catalog: Catalog, name: str, **settings: Any) -> Table:
    """A table with three rows in a file."""
    rows = settings.pop("rows", ROWS)
    table = catalog.create_table((NAMESPACE, name), settings.pop("schema", SCHEMA), **settings)
    table.append(rows)
    return table


def _with_properties(**properties: str) -> Maker:
    def make(catalog: Catalog, name: str) -> None:
        named = {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
        with filled(catalog, name).transaction() as transaction:
            transaction.set_properties(named)

    return make


def _edited(edit: Callable[[dict[str, Any]], None]) -> Maker:
    return lambda catalog, name: edit_metadata(filled(catalog, name), edit)


def _set_version(version: int) -> Callable[[dict[str, Any]], None]:
    def edit(metadata: dict[str, Any]) -> None:
        metadata["format-version"] = version
        metadata["next-row-id"] = 3
        metadata["encryption-keys"] = [{"key-id": "k", "encrypted-key-metadata": "eA=="}]
        for snapshot in metadata["snapshots"]:
            snapshot |= {"first-row-id": 0, "added-rows": 3, "key-id": "k"}

    return edit


def _with_column(kind: object, **more: object) -> Maker:
    """A table of format version 3 with a column that was added after its rows."""

    def edit(metadata: dict[str, Any]) -> None:
        _set_version(3)(metadata)
        metadata["last-column-id"] = 3
        metadata["schemas"][0]["fields"].append({"id": 3, "name": "extra", "type": kind, "required": False, **more})

    return _edited(edit)


def _name_column(metadata: dict[str, Any], name: str) -> None:
    metadata["schemas"][0]["fields"].append({"id": 3, "name": name, "type": "long", "required": False})
    metadata["last-column-id"] = 3


def _set_transform(metadata: dict[str, Any], transform: str) -> None:
    field = {"source-id": 1, "field-id": 1000, "name": "odd", "transform": transform}
    metadata["partition-specs"].append({"spec-id": 1, "fields": [field]})
    metadata |= {"default-spec-id": 1, "last-partition-id": 1000}


def _without_first_manifest(catalog: Catalog, name: str) -> None:
    table = filled(catalog, name)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    lose(snapshot.manifests(table.io)[0].manifest_path)


def _without_manifest_list(catalog: Catalog, name: str) -> None:
    snapshot = filled(catalog, name).current_snapshot()
    assert snapshot is not None
    lose(snapshot.manifest_list)


def _without_data_file(catalog: Catalog, name: str) -> None:
    lose(next(iter(live_files(filled(catalog, name)))))


def _rewritten_metadata(content: Callable[[str], str]) -> Maker:
    def make(catalog: Catalog, name: str) -> None:
        file = to_path(filled(catalog, name).metadata_location)
        file.write_text(content(file.read_text()), errors="surrogateescape")

    return make


def _at_location(location: str) -> Maker:
    def make(catalog: Catalog, name: str) -> None:
        filled(catalog, name)
        _execute(catalog, "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", location, name)

    return make


def _view(catalog: Catalog, name: str) -> None:
    filled(catalog, name)
    _execute(catalog, "UPDATE iceberg_tables SET iceberg_type = ? WHERE table_name = ?", "VIEW", name)


def _execute(catalog: Catalog, statement: str, *values: str) -> None:
    with closing(sqlite3.connect(catalog.properties["uri"].removeprefix("sqlite:///").partition("?")[0])) as database:
        database.execute(statement, values)
        database.commit()


def _dropped_partition_column(catalog: Catalog, name: str) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(3, "region", StringType()))
    spec = PartitionSpec(PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="region"))
    rows = ROWS.append_column("region", pa.array(["EU"] * 3))
    table = filled(catalog, name, schema=schema, partition_spec=spec, rows=rows)
    with table.update_spec() as change:
        change.remove_field("region")
    with table.update_schema(allow_incompatible_changes=True) as columns:
        columns.delete_column("region")


def _sorted(catalog: Catalog, name: str) -> None:
    filled(catalog, name, sort_order=SortOrder(SortField(source_id=1, transform=IdentityTransform())))


def _with_statistics(catalog: Catalog, name: str) -> None:
    table = filled(catalog, name)
    location = f"{table.location()}/metadata/made-up.puffin"
    to_path(location).write_bytes(b"PFA1")
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    statistics = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=location,
        file_size_in_bytes=4,
        file_footer_size_in_bytes=4,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(statistics)


def _with_equality_deletes(catalog: Catalog, name: str) -> None:
    table = filled(catalog, name)
    delete_by_equality(table, next(iter(live_files(table).values())), "id", 2)


def _with_position_deletes(catalog: Catalog, name: str) -> None:
    table = filled(catalog, name)
    delete_positions(table, next(iter(live_files(table).values())), 1)


def _with_avro_file(catalog: Catalog, name: str) -> None:
    """A second file, whose manifest entry says that it is an Avro file."""
    table = filled(catalog, name)
    location = f"{table.location()}/data/theirs.avro"
    to_path(location).write_bytes(b"Obj\x01")
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.AVRO,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=4,
        lower_bounds={1: (100).to_bytes(8, "little")},
        upper_bounds={1: (100).to_bytes(8, "little")},
        value_counts={1: 1},
        null_value_counts={1: 0},
    )
    file.spec_id = 0
    with table.transaction() as transaction:
        producer = _FastAppendFiles(Operation.APPEND, transaction, table.io)
        producer.append_data_file(file)
        producer.commit()


def _empty(catalog: Catalog, name: str) -> None:
    catalog.create_table((NAMESPACE, name), SCHEMA)


def _version_1(catalog: Catalog, name: str) -> None:
    filled(catalog, name, properties={"format-version": "1"})


HOSTILE: dict[str, Maker] = {
    "absent": lambda _catalog, _name: None,
    "avro_file": _with_avro_file,
    "bad_merge_count": _with_properties(commit_manifest_min__count__to__merge="x"),
    "bad_metrics_mode": _with_properties(write_metadata_metrics_default="some"),
    "bad_name_mapping": _with_properties(schema_name__mapping_default="{"),
    "bad_parquet_codec": _with_properties(write_parquet_compression__codec="lzo"),
    "bad_previous_versions": _edited(
        lambda metadata: metadata["properties"].update({"write.metadata.previous-versions-max": "x"})
    ),
    "bad_target_size": _with_properties(write_target__file__size__bytes="99999999999999999999"),
    "dropped_partition_column": _dropped_partition_column,
    "empty": _empty,
    "encryption_key": _with_properties(encryption_key__id="k"),
    "equality_deletes": _with_equality_deletes,
    "format_3": _edited(_set_version(3)),
    "format_3_default": _with_column("date", **{"initial-default": "2024-01-01", "write-default": "2024-01-02"}),
    "format_3_geometry": _with_column("geometry(srid:4326)"),
    "format_3_nanoseconds": _with_column("timestamp_ns"),
    "format_3_unknown": _with_column("unknown"),
    "format_3_variant": _with_column("variant"),
    "format_4": _edited(_set_version(4)),
    "gc_disabled": _with_properties(gc_enabled="false"),
    "metadata_binary": _rewritten_metadata(lambda text: text.replace("{", "\udcff\udcfe", 1)),
    "metadata_elsewhere": _at_location("nowhere://bucket/v1.metadata.json"),
    "metadata_empty": _rewritten_metadata(lambda _: ""),
    "metadata_list": _rewritten_metadata(lambda _: "[]"),
    "metadata_missing": _at_location("file:///nowhere/00001-x.metadata.json"),
    "metadata_truncated": _rewritten_metadata(lambda text: text[: len(text) // 2]),
    "no_data_file": _without_data_file,
    "no_manifest": _without_first_manifest,
    "no_manifest_list": _without_manifest_list,
    "no_such_snapshot": _edited(lambda metadata: metadata.update({"current-snapshot-id": 7})),
    "odd_column": _edited(lambda metadata: _name_column(metadata, "a.b \"c\" 'd' `e`\n☃")),
    "position_deletes": _with_position_deletes,
    "sorted": _sorted,
    "statistics": _with_statistics,
    "unknown_transform": _edited(lambda metadata: _set_transform(metadata, "zorder[3]")),
    "unnamed_column": _edited(lambda metadata: _name_column(metadata, "")),
    "version_1": _version_1,
    "view": _view,
}

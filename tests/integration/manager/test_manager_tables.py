"""Creating tables, as the catalog and the disk see it."""

import inspect
from abc import ABC
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField as IcebergPartitionField, PartitionSpec as IcebergPartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType, DecimalType, ListType, LongType, MapType, NestedField, StringType, StructType
from support.events_table import NESTED, events
from support.lake import Lake

from floe_dagster_iceberg.errors import TableAlreadyExistsError, ValidationError
from floe_dagster_iceberg.models import (
    FieldType,
    IcebergTableManagerConfig,
    PartitionField,
    PartitionSpec,
    PartitionTransform,
    SchemaField,
    TableSchema,
)
from floe_dagster_iceberg.plugins.sql import SqlCatalogConfig, SqlCatalogPlugin
from floe_dagster_iceberg.plugins.storage import LocalStorageConfig, LocalStoragePlugin
from floe_dagster_iceberg.table.manager import IcebergTableManager


def by(transform: PartitionTransform, *, source: int = 2, **argument: int) -> PartitionSpec:
    field = PartitionField(
        source_field_id=source, partition_field_id=1000, name="part", transform=transform, **argument
    )
    return PartitionSpec(fields=[field])


class CountingPlugin(SqlCatalogPlugin):
    """A real plugin that remembers how often it was asked to connect, and with what."""

    connections: list[Mapping[str, str]]

    def connect(self, config: Mapping[str, str]) -> Any:
        self.connections = [*getattr(self, "connections", []), config]
        return super().connect(config)


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[CountingPlugin]:
    plugin = CountingPlugin(
        SqlCatalogConfig(uri=f"sqlite:///{tmp_path}/plugin.db", warehouse=f"file://{tmp_path}/warehouse")
    )
    yield plugin
    plugin.shutdown()


@pytest.mark.lakes
@pytest.mark.requirement("S2-US1.1", "S2-FR-008")
def test_a_whole_life_of_a_table_needs_only_the_manager(manager: IcebergTableManager) -> None:
    manager.create_namespace("silver")
    manager.create_table("silver.orders", pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
    first = manager.append("silver.orders", pa.table({"id": [1, 2], "amount": [1.0, 2.0]}))
    manager.overwrite("silver.orders", pa.table({"id": [2], "amount": [9.0]}), overwrite_filter="id = 2")
    manager.upsert("silver.orders", pa.table({"id": [3], "amount": [3.0]}), ["id"])
    manager.delete("silver.orders", "id = 1")
    manager.compact_table("silver.orders")

    assert manager.scan("silver.orders").sort_by("id").to_pydict() == {"id": [2, 3], "amount": [9.0, 3.0]}
    assert manager.scan("silver.orders", snapshot_id=first.snapshot_id).num_rows == 2
    assert len(manager.list_snapshots("silver.orders")) == 5


@pytest.mark.requirement("S2-US1.2", "S2-FR-004", "S0-D2")
def test_catalog_and_storage_plugins_make_the_same_manager_as_a_bare_catalog(
    plugin: CountingPlugin, tmp_path: Path
) -> None:
    storage = LocalStoragePlugin(LocalStorageConfig(warehouse=f"file://{tmp_path}/elsewhere"))
    manager = IcebergTableManager(plugin, storage, IcebergTableManagerConfig(max_commit_retries=1))
    manager.create_namespace("bronze")
    manager.create_table(events())
    manager.append("bronze.events", pa.table({"id": [1]}))

    assert manager.catalog is plugin.catalog
    assert manager.catalog.load_table("bronze.events").scan().to_arrow().column("id").to_pylist() == [1]


@pytest.mark.requirement("S2-FR-009")
def test_a_plugin_is_connected_once_and_only_when_needed(plugin: CountingPlugin) -> None:
    manager = IcebergTableManager(plugin)
    assert not hasattr(plugin, "connections")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: manager.list_namespaces(), range(8)))

    assert len(plugin.connections) == 1


@pytest.mark.requirement("S4-TM-init", "S2-C1", "S0-D1")
def test_the_manager_is_a_plain_class_over_a_catalog(lake: Lake) -> None:
    manager = IcebergTableManager(lake.catalog, tracer=None, logger=None)

    assert manager.catalog is lake.catalog
    assert ABC not in IcebergTableManager.__mro__
    assert not inspect.isabstract(IcebergTableManager)
    assert list(inspect.signature(IcebergTableManager).parameters)[:3] == ["catalog_plugin", "storage_plugin", "config"]


@pytest.mark.lakes
@pytest.mark.requirement("S2-US2.1", "S2-FR-001", "S1-T027-30", "S4-create_table")
def test_a_table_of_a_config_is_in_the_catalog_and_can_be_written(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table(events())

    assert lake.catalog.table_exists("bronze.events")
    manager.append("bronze.events", pa.table({"id": [7]}))
    assert lake.rows("bronze.events") == [(7, None, None)]


TRANSFORMS = [
    (by(PartitionTransform.IDENTITY, source=3), "identity"),
    (by(PartitionTransform.YEAR), "year"),
    (by(PartitionTransform.MONTH), "month"),
    (by(PartitionTransform.DAY), "day"),
    (by(PartitionTransform.HOUR), "hour"),
    (by(PartitionTransform.BUCKET, source=1, num_buckets=8), "bucket[8]"),
    (by(PartitionTransform.TRUNCATE, source=3, width=2), "truncate[2]"),
]


@pytest.mark.requirement("S2-US2.2", "S2-US6.1", "S2-FR-013", "S2-FR-033")
@pytest.mark.parametrize(("spec", "transform"), TRANSFORMS, ids=[name for _, name in TRANSFORMS])
def test_the_partition_spec_of_a_config_is_that_of_the_table(
    lake: Lake, manager: IcebergTableManager, spec: PartitionSpec, transform: str
) -> None:
    manager.create_table(events(partition_spec=spec))

    (field,) = lake.table("bronze.events").spec().fields
    assert (field.name, str(field.transform), field.source_id) == ("part", transform, spec.fields[0].source_field_id)


@pytest.mark.lakes
@pytest.mark.requirement("S2-US2.3", "S2-FR-016", "S2-C2", "S0-D3")
def test_a_name_that_is_taken_is_an_error_and_the_table_stays_as_it_is(
    lake: Lake, manager: IcebergTableManager
) -> None:
    before = manager.create_table(events())
    files = lake.files()

    with pytest.raises(TableAlreadyExistsError, match=r"bronze\.events") as refused:
        manager.create_table("bronze.events", pa.schema([("other", pa.string())]))

    assert refused.value.table == "bronze.events"
    assert lake.table("bronze.events").metadata == before.metadata
    assert lake.files() == files


@pytest.mark.lakes
@pytest.mark.requirement("S2-US2.3", "S2-FR-016", "S4-create_table_if_not_exists")
def test_an_existing_table_is_returned_untouched_and_no_file_is_left_beside_it(
    lake: Lake, manager: IcebergTableManager
) -> None:
    before = manager.create_table(events())
    files = lake.files()

    same = manager.create_table_if_not_exists("bronze.events", pa.schema([("other", pa.string())]))
    also = manager.create_table(events(), if_not_exists=True)

    assert same.metadata == also.metadata == before.metadata
    assert lake.files() == files


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-016", "S4-create_table_if_not_exists")
def test_threads_that_create_the_same_table_all_get_it(lake: Lake, manager: IcebergTableManager) -> None:
    with ThreadPoolExecutor(8) as threads:
        tables = list(threads.map(lambda _: manager.create_table_if_not_exists(events()), range(8)))

    assert {table.metadata.table_uuid for table in tables} == {lake.table("bronze.events").metadata.table_uuid}


@pytest.mark.lakes
@pytest.mark.requirement("S2-US2.4", "S2-FR-014", "S0-T2")
def test_properties_are_the_production_defaults_with_the_tables_own_on_top(
    lake: Lake, manager: IcebergTableManager
) -> None:
    own = {"write.target-file-size-bytes": "1048576", "owner": "team-a"}

    manager.create_table(events(properties=own))

    # Servers add defaults of their own.
    assert (
        lake.table("bronze.events").properties.items()
        >= {
            "write.target-file-size-bytes": "1048576",
            "write.parquet.row-group-size-bytes": str(128 * 1024 * 1024),
            "history.expire.max-snapshot-age-ms": str(7 * 24 * 60 * 60 * 1000),
            "history.expire.min-snapshots-to-keep": "10",
            "owner": "team-a",
        }.items()
    )


@pytest.mark.requirement("S2-FR-012", "S4-create_table")
def test_an_arrow_schema_becomes_an_iceberg_schema(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.nested", NESTED)

    schema = lake.table("bronze.nested").schema()
    assert {field.name: str(field.field_type) for field in schema.fields} == {
        "price": "decimal(12, 2)",
        "day": "date",
        "opens": "time",
        "key": "uuid",
        "hash": "fixed[16]",
        "tags": "list<string>",
        "address": "struct<10: city: optional string, 11: zip: optional int>",
        "scores": "map<string, double>",
    }


@pytest.mark.requirement("S2-FR-012")
def test_a_pyiceberg_schema_is_taken_as_it_is(lake: Lake, manager: IcebergTableManager) -> None:
    schema = Schema(
        NestedField(1, "price", DecimalType(12, 2), required=True, doc="in euros"),
        NestedField(2, "day", DateType(), required=False),
        NestedField(3, "tags", ListType(4, StringType(), element_required=True), required=False),
        NestedField(5, "m", MapType(6, StringType(), 7, LongType(), value_required=False), required=False),
        NestedField(8, "s", StructType(NestedField(9, "x", LongType(), required=False)), required=False),
        identifier_field_ids=[1],
    )

    manager.create_table("bronze.given", schema)

    created = lake.table("bronze.given").schema()
    assert [field.name for field in created.fields] == ["price", "day", "tags", "m", "s"]
    assert (created.find_field("price").doc, created.find_field("price").required) == ("in euros", True)
    assert created.identifier_field_names() == {"price"}


@pytest.mark.requirement("S0-T1")
def test_field_ids_are_given_in_order_and_partition_fields_follow_them(
    lake: Lake, manager: IcebergTableManager
) -> None:
    fields = [
        SchemaField(field_id=70, name="id", field_type=FieldType.LONG),
        SchemaField(field_id=50, name="day", field_type=FieldType.DATE),
    ]
    spec = by(PartitionTransform.DAY, source=50)

    manager.create_table(events(table_schema=TableSchema(fields=fields), partition_spec=spec))

    table = lake.table("bronze.events")
    assert [(field.field_id, field.name) for field in table.schema().fields] == [(1, "id"), (2, "day")]
    assert table.spec().fields[0].source_id == 2


@pytest.mark.lakes
def test_a_pyiceberg_spec_may_partition_a_column_twice_and_a_nested_field(
    lake: Lake, manager: IcebergTableManager
) -> None:
    schema = pa.schema([("at", pa.date32()), ("who", pa.struct([("city", pa.string())]))])
    spec = IcebergPartitionSpec(
        IcebergPartitionField(source_id=1, field_id=1000, transform=DayTransform(), name="at_day"),
        IcebergPartitionField(source_id=1, field_id=1001, transform=IdentityTransform(), name="at"),
        IcebergPartitionField(source_id=3, field_id=1002, transform=IdentityTransform(), name="city"),
    )

    manager.create_table("bronze.twice", schema, spec)

    assert [field.name for field in lake.table("bronze.twice").spec().fields] == ["at_day", "at", "city"]


class Unreachable:
    """A catalog plugin that fails the test when it is connected to."""

    name = "unreachable"

    def connect(self, config: Mapping[str, str]) -> Any:
        raise AssertionError(f"a request left with {config}")


BAD_TABLES = {
    "no namespace": (("events", NESTED), "has no namespace"),
    "bad name": (("bronze.ev ents", NESTED), "not valid"),
    "no schema": (("bronze.events",), "needs a schema"),
    "no columns": (("bronze.events", pa.schema([])), "has no columns"),
    "no schema type": (("bronze.events", {"id": "long"}), "not dict"),
    "untyped column": (("bronze.events", pa.schema([("x", pa.null())])), "no type"),
    "type that Iceberg lacks": (("bronze.events", pa.schema([("x", pa.duration("s"))])), "Iceberg does not have"),
    "columns twice": (("bronze.events", pa.schema([("x", pa.int64()), ("x", pa.int64())])), "more than once"),
    "unknown source": (("bronze.events", NESTED, by(PartitionTransform.DAY, source=99)), "not in the schema"),
    "transform of another type": (("bronze.events", NESTED, by(PartitionTransform.DAY, source=1)), "supports this"),
    "config and more": ((events(), NESTED), "do not pass them"),
    "no table name": ((42, NESTED), "not as int"),
}


@pytest.mark.requirement("S2-FR-015")
@pytest.mark.parametrize(("arguments", "words"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_table_that_is_invalid_is_refused_before_a_request_leaves(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        IcebergTableManager(Unreachable()).create_table(*arguments)


@pytest.mark.requirement("S2-SC-003")
def test_a_partitioned_table_is_created_written_and_read(manager: IcebergTableManager) -> None:
    manager.create_table(events(partition_spec=by(PartitionTransform.DAY)))
    manager.append("bronze.events", pa.table({"id": range(1000)}))

    assert manager.scan("bronze.events")["id"].to_pylist() == list(range(1000))

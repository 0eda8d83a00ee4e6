"""Every public method of the table manager on tables that Spark made, of kinds that PyIceberg does not write."""

from contextlib import closing

import pytest
from support.hostile_calls import problems_of
from support.hostile_tables import NAMESPACE, HostileLake
from support.spark_lake import SparkLake

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.slow

INSERT = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 'a'), (2, 'b'), (3, NULL)"
DELETE = "DELETE FROM {t} WHERE id = 2"
# The columns beside id and name, the properties, and what is done with the table; {t} is its name.
TABLES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "avro": ("", {"write.format.default": "avro"}, [INSERT]),
    "avro_beside_parquet": (
        "",
        {},
        [
            "ALTER TABLE {t} ADD PARTITION FIELD name",
            "INSERT INTO {t} VALUES (1, 'a')",
            "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default' = 'avro')",
            "INSERT INTO {t} VALUES (2, 'b')",
        ],
    ),
    "dropped_partition_column": (
        "region STRING",
        {},
        [
            "ALTER TABLE {t} ADD PARTITION FIELD region",
            "INSERT INTO {t} VALUES (1, 'a', 'EU'), (2, 'b', 'US')",
            "ALTER TABLE {t} DROP PARTITION FIELD region",
            "ALTER TABLE {t} DROP COLUMN region",
        ],
    ),
    "format_3": ("", {"format-version": "3"}, [INSERT]),
    "format_3_deletion_vectors": (
        "",
        {"format-version": "3", "write.delete.mode": "merge-on-read"},
        [INSERT, DELETE],
    ),
    "format_3_variant": (
        "v VARIANT",
        {"format-version": "3"},
        ["INSERT INTO {t} SELECT 1, 'a', parse_json('[1]')"],
    ),
    "merge_on_read": ("", {"write.delete.mode": "merge-on-read"}, [INSERT, DELETE]),
    "orc": ("", {"write.format.default": "orc"}, [INSERT]),
    "sorted_with_statistics": (
        "",
        {},
        [
            INSERT,
            "ALTER TABLE {t} WRITE ORDERED BY name DESC NULLS FIRST, bucket(4, id)",
            "CALL floe.system.compute_table_stats('{t}')",
        ],
    ),
    "version_1": ("", {"format-version": "1"}, [INSERT]),
}
VIEW = "CREATE VIEW floe.hostile.view AS SELECT id, name FROM floe.hostile.version_1"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> HostileLake:
    with HostileLake.making(tmp_path_factory.mktemp("hostile")) as lake:
        session = SparkLake.open(lake.folder).session
        for name, (columns, properties, statements) in TABLES.items():
            table, more = f"floe.{NAMESPACE}.{name}", f", {columns}" if columns else ""
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in {"made-by": "Spark", **properties}.items())
            session.sql(f"CREATE TABLE {table} (id BIGINT, name STRING{more}) TBLPROPERTIES ({listed})")
            for statement in statements:
                session.sql(statement.format(t=table))
        session.sql(VIEW)
    return lake


@pytest.mark.parametrize("table", [*TABLES, "view"])
def test_every_method_succeeds_or_raises_an_error_of_ours_and_changes_nothing(lake: HostileLake, table: str) -> None:
    assert problems_of(lake, table) == []


def test_orc_files_are_read_and_avro_files_refused_unless_a_filter_skips_them(lake: HostileLake) -> None:
    with closing(lake.open()) as catalog:
        manager = IcebergTableManager(catalog)

        assert manager.scan("hostile.orc").to_pydict() == {"id": [1, 2, 3], "name": ["a", "b", None]}
        assert manager.scan("hostile.orc", ["id"], "name = 'b'")["id"].to_pylist() == [2]
        assert manager.scan("hostile.avro_beside_parquet", row_filter="name = 'a'")["id"].to_pylist() == [1]
        for table in ("hostile.avro", "hostile.avro_beside_parquet"):
            with pytest.raises(EngineCapabilityError, match="AVRO files, which only Spark can read"):
                manager.scan(table)
            with pytest.raises(EngineCapabilityError, match="AVRO files, which only Spark can read"):
                manager.scan_batches(table)
            with pytest.raises(EngineCapabilityError, match="AVRO files, which only Spark can read"):
                manager.upsert(table, manager.scan("hostile.orc"), ["id"])

"""Rows whose columns are not those of the table: what fits, what changes the schema, what is refused."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, LongType, NestedField, StructType
from support.lake import Lake
from support.table_facts import live_files

from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError, SchemaEvolutionError
from floe_dagster_iceberg.table.manager import IcebergTableManager

INT, LONG = pa.int32(), pa.int64()


def one(**columns: Any) -> pa.Table:
    """A table of one row."""
    return pa.table({name: value if isinstance(value, pa.Array) else [value] for name, value in columns.items()})


def typed(value: Any, arrow_type: pa.DataType) -> pa.Array:
    return pa.array([value], arrow_type)


def types_of(lake: Lake, table: str) -> dict[str, str]:
    return {field.name: str(field.field_type) for field in lake.table(table).schema().fields}


@pytest.mark.requirement("S2-US3.1", "S3-4")
def test_new_columns_are_added_and_old_rows_read_null(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("a", LONG)]))
    first = manager.append("bronze.t", one(a=1))

    manager.append("bronze.t", one(a=2, b="x", c=typed([{"d": 1}], pa.list_(pa.struct([("d", INT)])))))

    assert lake.rows("bronze.t") == [(1, None, None), (2, "x", [{"d": 1}])]
    assert manager.scan("bronze.t", snapshot_id=first.snapshot_id).column_names == ["a"]
    assert not lake.table("bronze.t").schema().find_field("b").required


@pytest.mark.requirement("S2-US3.2", "S3-4")
@pytest.mark.parametrize(
    ("small", "large", "becomes"),
    [
        (typed(1, INT), typed(2**40, LONG), "long"),
        (typed(1.5, pa.float32()), typed(1e300, pa.float64()), "double"),
        (
            typed(decimal.Decimal("1.50"), pa.decimal128(5, 2)),
            typed(decimal.Decimal("9e17"), pa.decimal128(20, 2)),
            "decimal(20, 2)",
        ),
        (typed([1], pa.list_(INT)), typed([2**40], pa.list_(LONG)), "list<long>"),
        (
            typed([("k", 1)], pa.map_(pa.string(), INT)),
            typed([("k", 2**40)], pa.map_(pa.string(), LONG)),
            "map<string, long>",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_type_that_is_too_small_is_widened_and_smaller_rows_still_fit(
    lake: Lake, manager: IcebergTableManager, *, small: pa.Array, large: pa.Array, becomes: str
) -> None:
    manager.create_table("bronze.t", one(v=small).schema)
    manager.append("bronze.t", one(v=small))

    manager.append("bronze.t", one(v=large))
    manager.append("bronze.t", one(v=small))

    assert types_of(lake, "bronze.t") == {"v": becomes}
    assert sorted(map(str, manager.scan("bronze.t").column("v").to_pylist())) == sorted(
        map(str, [*small.to_pylist(), *large.to_pylist(), *small.to_pylist()])
    )


def test_a_partition_column_can_be_widened(lake: Lake, manager: IcebergTableManager) -> None:
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="v"))
    manager.create_table("bronze.t", pa.schema([("v", INT)]), spec)
    manager.append("bronze.t", one(v=typed(1, INT)))

    manager.append("bronze.t", one(v=2**40))
    manager.overwrite("bronze.t", one(v=1), overwrite_filter="v = 1")

    assert lake.rows("bronze.t") == [(1,), (1099511627776,)]
    assert {file.partition[0] for file in live_files(lake.table("bronze.t")).values()} == {1, 2**40}


def test_columns_may_be_missing_or_come_in_another_order(lake: Lake, manager: IcebergTableManager) -> None:
    inner = pa.struct([("x", LONG), ("y", pa.string())])
    manager.create_table("bronze.t", pa.schema([("a", LONG), ("s", inner), ("l", pa.list_(inner)), ("z", pa.string())]))

    manager.append("bronze.t", one(z="z", a=1))
    manager.append("bronze.t", one(s={"y": "q"}, a=2))
    manager.append(
        "bronze.t", one(l=typed([{"y": "q", "x": 5}], pa.list_(pa.struct([("y", pa.string()), ("x", LONG)]))), a=3)
    )

    # Not through PyIceberg's own scan, which reads a NULL list of structs as an empty one.
    assert [tuple(row.values()) for row in manager.scan("bronze.t").sort_by("a").to_pylist()] == [
        (1, None, None, "z"),
        (2, {"x": None, "y": "q"}, None, None),
        (3, None, [{"x": 5, "y": "q"}], None),
    ]
    assert len(types_of(lake, "bronze.t")) == 4


def test_fields_inside_structs_lists_and_maps_are_added(lake: Lake, manager: IcebergTableManager) -> None:
    def rows(value: dict[str, int]) -> pa.Table:
        inner = pa.struct([(name, LONG) for name in value])
        return one(
            s=typed(value, inner),
            l=typed([value], pa.list_(inner)),
            m=typed([("k", value)], pa.map_(pa.string(), inner)),
        )

    manager.create_table("bronze.t", rows({"a": 1}).schema)
    manager.append("bronze.t", rows({"a": 1}))
    manager.append("bronze.t", rows({"a": 2, "b": 3}))

    old, new = {"a": 1, "b": None}, {"a": 2, "b": 3}
    assert lake.rows("bronze.t") == [(old, [old], [("k", old)]), (new, [new], [("k", new)])]


@pytest.mark.requirement("S2-FR-020", "S3-4")
@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (typed(1, LONG), typed("x", pa.string())),
        (typed("x", pa.string()), typed(b"x", pa.binary())),
        (typed(1, LONG), typed(1.5, pa.float64())),
        (typed(dt.date(2024, 1, 1), pa.date32()), typed(0, pa.timestamp("us"))),
        (typed(0, pa.timestamp("us", "UTC")), typed(0, pa.timestamp("us"))),
        (typed(b"ab", pa.binary(2)), typed(b"abc", pa.binary(3))),
        (typed(decimal.Decimal("1.5"), pa.decimal128(9, 1)), typed(decimal.Decimal("1.55"), pa.decimal128(9, 2))),
        (typed({"x": 1}, pa.struct([("x", LONG)])), typed(1, LONG)),
        (typed([1], pa.list_(LONG)), typed({"x": 1}, pa.struct([("x", LONG)]))),
        (typed([(1, 1)], pa.map_(INT, INT)), typed([(2**40, 1)], pa.map_(LONG, INT))),
    ],
    ids=lambda array: str(array.type),
)
def test_types_that_do_not_convert_are_refused_and_nothing_changes(
    lake: Lake, manager: IcebergTableManager, table: pa.Array, rows: pa.Array
) -> None:
    manager.create_table("bronze.t", one(v=table).schema)
    manager.append("bronze.t", one(v=table))
    files = lake.files()

    with pytest.raises(
        IncompatibleSchemaChangeError, match=r"Schema of 'bronze\.t' cannot change at column 'v"
    ) as refused:
        manager.append("bronze.t", one(v=rows))

    assert refused.value.column is not None
    assert lake.files() == files


@pytest.mark.requirement("S2-FR-020")
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (one(a=typed(1, INT), b=2), "Column 'b' of 'bronze.t' is not in the table"),
        (one(a=2**40), "Column 'a' of 'bronze.t' is int, too narrow for rows with long"),
        (one(s={"x": 1, "new": 2}), "Column 's.new'"),
    ],
    ids=["new", "wider", "nested"],
)
def test_without_schema_evolution_rows_must_fit_as_they_are(
    lake: Lake, manager: IcebergTableManager, rows: pa.Table, words: str
) -> None:
    manager.create_table("bronze.t", pa.schema([("a", INT), ("s", pa.struct([("x", LONG)]))]))

    for write in (manager.append, manager.overwrite):
        with pytest.raises(SchemaEvolutionError, match=words):
            write("bronze.t", rows, evolve_schema=False)
    manager.append("bronze.t", one(a=typed(1, INT)), evolve_schema=False)

    assert lake.metadata_versions("bronze.t") == 2
    assert len(lake.data_files()) == 1


STRICT = Schema(
    NestedField(1, "a", LongType(), required=True),
    NestedField(2, "s", StructType(NestedField(3, "x", LongType(), required=True)), required=False),
    NestedField(4, "l", ListType(5, LongType(), element_required=True), required=False),
)


@pytest.mark.requirement("S2-E3", "S3-4")
def test_null_in_a_required_column_makes_it_optional_when_the_schema_may_change(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table("bronze.t", STRICT)

    manager.append("bronze.t", pa.table({"a": [1, None]}))

    assert not lake.table("bronze.t").schema().find_field("a").required
    assert lake.metadata_versions("bronze.t") == 2


@pytest.mark.requirement("S2-E3")
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pa.table({"a": [1, None]}), "Column 'a' .*is required and the rows hold NULL"),
        (pa.table({"a": [1, None]}).to_reader(), "Column 'a' .*is required and the rows hold NULL"),
        (pa.table({"l": [[1]]}), "The rows lack column 'a'"),
        (pa.table({"a": pa.nulls(1)}), "The rows lack column 'a'"),
        (one(a=1, s=typed({"x": None}, pa.struct([("x", LONG)]))), "required inside its column"),
        (one(a=1, s=typed({}, pa.struct([("y", LONG)]))), "The rows lack column 's.x'"),
        (one(a=1, l=typed([1, None], pa.list_(LONG))), "required inside its column"),
    ],
    ids=["null", "null in stream", "missing", "untyped", "null in struct", "missing in struct", "null in list"],
)
def test_a_required_column_takes_no_null(lake: Lake, manager: IcebergTableManager, rows: Any, words: str) -> None:
    manager.create_table("bronze.t", STRICT)

    with pytest.raises(SchemaEvolutionError, match=words):
        manager.append("bronze.t", rows, evolve_schema=False)

    assert lake.metadata_versions("bronze.t") == 1
    assert lake.data_files() == set()


def test_a_struct_that_is_null_or_missing_may_have_required_fields(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", STRICT)

    manager.append("bronze.t", one(a=1))
    manager.append("bronze.t", one(a=2, s=typed(None, pa.struct([("x", LONG)]))))
    manager.append("bronze.t", one(a=3, s={"x": 1}, l=[1]))

    assert lake.rows("bronze.t") == [(1, None, None), (2, None, None), (3, {"x": 1}, [1])]


def test_a_column_of_no_type_is_null_where_the_table_knows_it_and_refused_where_not(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table("bronze.t", pa.schema([("a", LONG), ("b", pa.string())]))

    manager.append("bronze.t", one(a=1, b=pa.nulls(1)))
    with pytest.raises(SchemaEvolutionError, match="Column 'c' holds only NULL and has no type"):
        manager.append("bronze.t", one(a=1, c=pa.nulls(1)))

    assert lake.rows("bronze.t") == [(1, None)]


@pytest.mark.parametrize("new", [["A"], ["x", "X"]], ids=["of the table", "of each other"])
def test_columns_that_differ_only_in_case_are_refused(lake: Lake, manager: IcebergTableManager, new: list[str]) -> None:
    manager.create_table("bronze.t", pa.schema([("a", LONG)]))

    with pytest.raises(IncompatibleSchemaChangeError, match="differs only in case"):
        manager.append("bronze.t", one(a=1, **dict.fromkeys(new, 1)))

    assert types_of(lake, "bronze.t") == {"a": "long"}


def test_a_name_that_is_also_the_path_of_a_field_is_refused(manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("a", pa.struct([("b", LONG)]))]))

    with pytest.raises(SchemaEvolutionError, match=r"a\.b"):
        manager.append("bronze.t", pa.table({"a.b": [1]}))
    with pytest.raises(SchemaEvolutionError, match=r"a\.b"):
        manager.append("bronze.t", pa.table({"a": [{"b": 1}], "a.b": [1]}))


def test_field_ids_of_another_table_or_file_do_not_swap_columns(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("a", LONG), ("b", LONG)]))
    foreign = pa.schema(
        [
            pa.field("a", LONG, metadata={"PARQUET:field_id": "2"}),
            pa.field("b", LONG, metadata={"PARQUET:field_id": "1"}),
        ]
    )

    manager.append("bronze.t", pa.table([[1], [2]], schema=foreign))

    assert lake.rows("bronze.t") == [(1, 2)]


def test_a_new_column_brings_its_documentation(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("a", LONG)]))
    schema = pa.schema([pa.field("a", LONG), pa.field("b", LONG, metadata={"doc": "in euros"})])

    manager.append("bronze.t", pa.table([[1], [2]], schema=schema))

    assert lake.table("bronze.t").schema().find_field("b").doc == "in euros"

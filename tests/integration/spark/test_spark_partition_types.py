"""Every type that a table can be partitioned by, with every transform: written by Arrow, read by raw Spark and by us.

Spark also applies Iceberg's own transforms to the rows, and skips manifests and files by what we wrote about them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg import expressions as expr, types
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from support.spark_lake import EVENTS, SparkLake

TABLE = "floe.public.events"
NUMBERS = ("identity", "bucket[4]", "truncate[10]", "void")
TEXTS = ("identity", "bucket[4]", "truncate[2]", "void")
PLAIN = ("identity", "bucket[4]", "void")
# Of Spark's functions, by the transform.
FUNCTIONS = {"bucket[4]": "bucket(4, ", "truncate[10]": "truncate(10, ", "truncate[2]": "truncate(2, "} | {
    name: f"{name}s(" for name in ("year", "month", "day", "hour")
}


def as_text(kind: str) -> Callable[[Any], str]:
    return lambda value: f"CAST('{value}' AS {kind})"


def as_bytes(value: bytes) -> str:
    return f"X'{value.hex()}'"


@dataclass(frozen=True)
class Kind:
    """Values of a type, and how Spark is asked for one.

    Attributes:
        transforms: Those of one column. Transforms of time get a column each: Iceberg allows one per column.
        times: Transforms of time.
    """

    type: types.IcebergType
    values: tuple[Any, ...]
    transforms: tuple[str, ...]
    literal: Callable[[Any], str]
    times: tuple[str, ...] = ()
    version: int = 2


FIXED = Kind(types.FixedType(4), (b"\0\0\0\0", b"abcd", b"\xff\xff\xff\xff"), PLAIN, as_bytes)
SPARK_KINDS: Mapping[str, Kind] = {
    "boolean": Kind(types.BooleanType(), (True, False), ("identity", "void"), str),
    "int": Kind(types.IntegerType(), (-(2**31) + 8, -1, 0, 2**31 - 1), NUMBERS, as_text("INT")),
    "long": Kind(types.LongType(), (-(2**63) + 8, -1, 0, 2**63 - 1), NUMBERS, as_text("BIGINT")),
    "float": Kind(types.FloatType(), (-0.5, 0.0, 1.5, math.nan), ("identity", "void"), as_text("FLOAT")),
    "double": Kind(
        types.DoubleType(), (-0.5, 0.0, 0.1, math.nan, math.inf, -math.inf), ("identity", "void"), as_text("DOUBLE")
    ),
    "decimal": Kind(
        types.DecimalType(9, 2),
        tuple(map(Decimal, ("-1234567.89", "-0.01", "0.00", "9999999.99"))),
        NUMBERS,
        as_text("DECIMAL(9, 2)"),
    ),
    "long decimal": Kind(
        types.DecimalType(38, 10),
        (Decimal("-1234567890123456789012345678.0123456789"), Decimal("0.0000000001")),
        NUMBERS,
        as_text("DECIMAL(38, 10)"),
    ),
    "date": Kind(
        types.DateType(),
        (date(1, 1, 1), date(1969, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)),
        PLAIN,
        as_text("DATE"),
        ("year", "month", "day"),
    ),
    "timestamp": Kind(
        types.TimestampType(),
        (datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29, 12, 30)),  # noqa: DTZ001 - it has none
        PLAIN,
        as_text("TIMESTAMP_NTZ"),
        ("year", "month", "day", "hour"),
    ),
    "timestamptz": Kind(
        types.TimestamptzType(),
        (
            datetime(1900, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
        ),
        PLAIN,
        as_text("TIMESTAMP"),
        ("year", "month", "day", "hour"),
    ),
    "string": Kind(
        types.StringType(), ("", "a", "Zürich ✓", "a/b=c%20 d", "😀😀😀", "null"), TEXTS, lambda value: f"'{value}'"
    ),
    "binary": Kind(types.BinaryType(), (b"", b"\0", b"\xff\xfe\xfd", b"abc"), TEXTS, as_bytes),
    "fixed": FIXED,
    "fixed of version 1": Kind(FIXED.type, FIXED.values, FIXED.transforms, FIXED.literal, version=1),
    # Java takes the first bit for a sign.
    "uuid": Kind(
        types.UUIDType(),
        tuple(map(UUID, ("7fffffff-0000-4000-8000-000000000001", "80000000-0000-4000-8000-000000000001"))),
        PLAIN,
        lambda value: f"'{value}'",
    ),
}
TIMES = Kind(types.TimeType(), (time(0), time(12, 30), time(23, 59, 59, 999_999)), PLAIN, str)


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    opened = SparkLake.open(tmp_path)
    opened.manager.create_namespace("public")
    opened.session.conf.set("spark.sql.session.timeZone", "UTC")
    return opened


def fill(lake: SparkLake, kind: Kind) -> list[Any]:
    """A table partitioned by everything at once; the value of each row, NULL in the last one."""
    values = [*kind.values, None]
    columns = ["x", *(f"x_{transform}" for transform in kind.times)]
    schema = Schema(
        types.NestedField(1, "id", types.LongType(), required=True),
        *(types.NestedField(2 + at, column, kind.type) for at, column in enumerate(columns)),
    )
    sources = [(2, transform) for transform in kind.transforms]
    sources += [(3 + at, transform) for at, transform in enumerate(kind.times)]
    # A void field of a column that is never NULL is NULL all the same.
    fields = [PartitionField(1, 999, parse_transform("void"), "nothing")]
    fields += [
        PartitionField(source, 1000 + at, parse_transform(transform), name_of(transform))
        for at, (source, transform) in enumerate(sources)
    ]
    lake.manager.create_table(EVENTS, schema, PartitionSpec(*fields), {"format-version": str(kind.version)})
    held = lake.table().schema().as_arrow()
    stored = [value.bytes if isinstance(value, UUID) else value for value in values]
    rows = pa.table(
        {"id": range(len(values))} | {column: pa.array(stored, held.field(column).type) for column in columns}
    )
    for number in range(len(values)):
        # The last commit merges all manifests, which writes what was read of the others.
        strategy = "merge_commit" if values[number] is None else "fast_append"
        lake.manager.append(EVENTS, rows.slice(number, 1), commit_strategy=strategy)
    assert len(lake.table().inspect.manifests()) == 1
    return values


def name_of(transform: str) -> str:
    return "x" if transform == "identity" else f"p_{transform.partition('[')[0]}"


def sql(lake: SparkLake, statement: str) -> list[tuple[Any, ...]]:
    return list(map(tuple, lake.session.sql(statement.replace("EVENTS", TABLE)).collect()))


def condition(kind: Kind, column: str, value: Any) -> str:
    return f"{column} IS NULL" if value is None else f"{column} = {kind.literal(value)}"


def expression(value: Any) -> expr.BooleanExpression:
    if value is None:
        return expr.IsNull("x")
    return expr.IsNaN("x") if value != value else expr.EqualTo("x", value)  # noqa: PLR0124 - NaN is not


@pytest.mark.parametrize("name", SPARK_KINDS)
def test_spark_finds_every_row_by_its_value_and_agrees_about_its_partition(lake: SparkLake, name: str) -> None:
    kind = SPARK_KINDS[name]
    values = fill(lake, kind)
    columns = ["x", *(f"x_{transform}" for transform in kind.times)]

    wanted = [(column, number) for column in columns for number in range(len(values))]
    asked = " UNION ALL ".join(
        f"SELECT '{column}', {number}, id FROM EVENTS WHERE {condition(kind, column, values[number])}"  # noqa: S608 - of this file
        for column, number in wanted
    )
    assert sorted(sql(lake, asked)) == sorted((column, number, number) for column, number in wanted)
    assert sorted(sql(lake, "SELECT id FROM EVENTS")) == [(number,) for number in range(len(values))]
    ((summaries,),) = sql(lake, "SELECT partition_summaries FROM EVENTS.manifests")
    assert len(summaries) == 1 + len(kind.transforms) + len(kind.times)
    assert {summary.contains_null for summary in summaries} == {True}
    # For Spark a UUID is text, which has other buckets; and metadata tables fail, also for what Spark itself wrote.
    if name != "uuid":
        assert_same_partitions(lake, kind, values)


def assert_same_partitions(lake: SparkLake, kind: Kind, values: list[Any]) -> None:
    checks = {name_of(transform): (transform, "x") for transform in kind.transforms if transform in FUNCTIONS}
    checks |= {name_of(transform): (transform, f"x_{transform}") for transform in kind.times}
    differs = [
        f"NOT (_partition.{partition} <=> floe.system.{FUNCTIONS[transform]}{column}))"
        for partition, (transform, column) in checks.items()
    ]
    assert sql(lake, f"SELECT id FROM EVENTS WHERE {' OR '.join(['false', *differs])}") == []  # noqa: S608 - of this file
    shown = sql(lake, "SELECT partition.x, partition.nothing, partition.p_void FROM EVENTS.partitions")
    assert {(comparable(value), *nothing) for value, *nothing in shown} == {
        (comparable(value), None, None) for value in values
    }
    bounds = sql(lake, "SELECT readable_metrics.x.lower_bound, readable_metrics.x.upper_bound FROM EVENTS.files")
    assert len(bounds) == len(values)


def comparable(value: Any) -> str:
    """Instants are for PySpark what this machine's clock showed then, and decimals have zeros at their end."""
    match value:
        case datetime(tzinfo=zone) if zone is not None:
            return repr(value.astimezone().replace(tzinfo=None))
        case Decimal():
            return repr(value.normalize(Context(prec=38)))
        case _:
            return repr(value)


@pytest.mark.parametrize("name", [*SPARK_KINDS, "time"])
def test_we_find_every_row_by_its_value(lake: SparkLake, name: str) -> None:
    values = fill(lake, TIMES if name == "time" else SPARK_KINDS[name])

    for number, value in enumerate(values):
        assert lake.manager.scan(EVENTS, row_filter=expression(value))["id"].to_pylist() == [number]
    assert sorted(lake.table().scan().to_arrow()["id"].to_pylist()) == list(range(len(values)))
    lake.manager.delete(EVENTS, expression(values[0]))
    assert sorted(lake.manager.scan(EVENTS)["id"].to_pylist()) == list(range(1, len(values)))


@pytest.mark.parametrize("name", ["fixed", "uuid"])
def test_partitions_that_spark_wrote_in_its_own_way_are_read_and_changed(lake: SparkLake, name: str) -> None:
    """Java writes the length of a fixed value into manifests, and orders UUIDs as numbers with a sign."""
    kind = SPARK_KINDS[name]
    schema = Schema(types.NestedField(1, "id", types.LongType()), types.NestedField(2, "x", kind.type))
    lake.manager.create_table(EVENTS, schema, PartitionSpec(PartitionField(2, 1000, parse_transform("identity"), "x")))
    values = ", ".join(f"({number}, {kind.literal(value)})" for number, value in enumerate(kind.values))
    sql(lake, f"INSERT INTO EVENTS VALUES {values}, (9, NULL)")  # noqa: S608 - of this file

    for number, value in enumerate(kind.values):
        assert lake.manager.scan(EVENTS, row_filter=expression(value))["id"].to_pylist() == [number]
    lake.manager.delete(EVENTS, expression(kind.values[0]))
    lake.manager.compact_table(EVENTS)

    remaining = [(number,) for number in range(1, len(kind.values))]
    assert sorted(sql(lake, "SELECT id FROM EVENTS")) == [*remaining, (9,)]
    for number, value in list(enumerate(kind.values))[1:]:
        assert sql(lake, f"SELECT id FROM EVENTS WHERE {condition(kind, 'x', value)}") == [(number,)]  # noqa: S608 - of this file


def test_java_finds_times_of_day_which_spark_cannot_read(lake: SparkLake) -> None:
    values = fill(lake, TIMES)
    # Spark opens a session's catalog with the session's first statement.
    assert sql(lake, "SHOW TABLES IN floe.public")
    jvm = lake.session._jvm
    catalog = lake.session._jsparkSession.sessionState().catalogManager().catalog("floe").icebergCatalog()
    table = catalog.loadTable(jvm.org.apache.iceberg.catalog.TableIdentifier.parse(str(EVENTS)))
    expressions = jvm.org.apache.iceberg.expressions.Expressions

    for number, value in enumerate(values):
        where = expressions.isNull("x") if value is None else expressions.equal("x", str(value))
        found = jvm.org.apache.iceberg.data.IcebergGenerics.read(table).where(where).build().iterator()
        ids = []
        while found.hasNext():
            ids.append(found.next().getField("id"))
        assert ids == [number]

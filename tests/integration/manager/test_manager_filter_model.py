"""Scans and deletes compared with a model of a few lines: three-valued logic over Python values."""

import math
import operator as op
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from support.lake import open_catalog

from floe_dagster_iceberg.table.manager import IcebergTableManager

NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("inner", pa.struct([("n", pa.int64())])),
        ("row", pa.int64()),
    ]
)


Truth = bool | None
Row = dict[str, object]
Judge = Callable[[Any, Any], bool]
NUMBERS = st.one_of(st.none(), st.integers(-2, 2))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "ab", "b", "bc"]))
FLOATS = st.one_of(st.none(), st.sampled_from([-1.5, -0.0, 0.0, 2.5, NAN]))
ROWS = st.lists(
    st.builds(
        lambda n, s, x, inner: {"n": n, "s": s, "x": x, "inner": None if inner is None else {"n": inner[0]}},
        NUMBERS,
        TEXTS,
        FLOATS,
        st.one_of(st.none(), st.tuples(NUMBERS)),
    ),
    max_size=6,
)
SPECS = [
    PartitionSpec(),
    PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="n")),
    PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(2), name="b")),
    PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=TruncateTransform(1), name="t")),
    PartitionSpec(
        PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="x"),
        PartitionField(source_id=6, field_id=1001, transform=IdentityTransform(), name="inner_n"),
    ),
]


class Filter:
    """An Iceberg filter, the same as a Python function, and its opposite.

    The opposite is not simply NOT: Iceberg turns `not x < 1` into `x >= 1`, and neither holds for NaN.
    """

    def __init__(
        self, expression: BooleanExpression, judge: Callable[[Row], Truth], opposite: Callable[[Row], Truth]
    ) -> None:
        self.expression, self.judge, self.opposite = expression, judge, opposite

    def __repr__(self) -> str:
        return str(self.expression)


def value_of(row: Row, column: str) -> Any:
    inner = row["inner"]
    return (inner["n"] if isinstance(inner, dict) else None) if column == "inner.n" else row[column]


def comparison(kind: type, column: str, literal: Any, judges: tuple[Judge, Judge]) -> Filter:
    def holds(judge: Judge, row: Row) -> Truth:
        value = value_of(row, column)
        return None if value is None else judge(value, literal)

    return Filter(kind(column, literal), partial(holds, judges[0]), partial(holds, judges[1]))


EQUAL, UNEQUAL, LESS, LESS_OR_EQUAL, MORE, MORE_OR_EQUAL = op.eq, op.ne, op.lt, op.le, op.gt, op.ge


def is_in(value: Any, literals: Any) -> bool:
    return value in literals


def is_not_in(value: Any, literals: Any) -> bool:
    return value not in literals


def starts(value: Any, prefix: Any) -> bool:
    return bool(value.startswith(prefix))


def does_not_start(value: Any, prefix: Any) -> bool:
    return not value.startswith(prefix)


COMPARISONS: list[tuple[type, tuple[Judge, Judge]]] = [
    (EqualTo, (EQUAL, UNEQUAL)),
    (NotEqualTo, (UNEQUAL, EQUAL)),
    (LessThan, (LESS, MORE_OR_EQUAL)),
    (LessThanOrEqual, (LESS_OR_EQUAL, MORE)),
    (GreaterThan, (MORE, LESS_OR_EQUAL)),
    (GreaterThanOrEqual, (MORE_OR_EQUAL, LESS)),
    (In, (is_in, is_not_in)),
    (NotIn, (is_not_in, is_in)),
]
LITERALS: dict[str, st.SearchStrategy[object]] = {
    "n": st.integers(-2, 2),
    "inner.n": st.integers(-2, 2),
    "s": st.sampled_from(["", "a", "ab", "b"]),
    "x": st.sampled_from([-1.5, -0.0, 0.0, 2.5]),
}


def null_test(column: str, *, wanted: bool) -> Filter:
    def judge(row: Row) -> Truth:
        return (value_of(row, column) is None) is wanted

    return Filter((IsNull if wanted else NotNull)(column), judge, lambda row: not judge(row))


def nan_test(*, wanted: bool) -> Filter:
    def judge(wants: bool, row: Row) -> Truth:  # noqa: FBT001
        return None if row["x"] is None else math.isnan(value_of(row, "x")) is wants

    return Filter((IsNaN if wanted else NotNaN)("x"), partial(judge, wanted), partial(judge, not wanted))


@st.composite
def predicates(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(list(LITERALS)))
    kind = draw(st.sampled_from(["compare", "compare", "compare", "null", "special"]))
    if kind == "null":
        return null_test(column, wanted=draw(st.booleans()))
    if kind == "special" and column == "x":
        return nan_test(wanted=draw(st.booleans()))
    if kind == "special" and column == "s":
        prefix = draw(st.sampled_from(["a", "ab", "b"]))
        if draw(st.booleans()):
            return comparison(StartsWith, "s", prefix, (starts, does_not_start))
        return comparison(NotStartsWith, "s", prefix, (does_not_start, starts))
    operator, judges = draw(st.sampled_from(COMPARISONS))
    many = operator in (In, NotIn)
    literal = draw(st.lists(LITERALS[column], min_size=2, max_size=3, unique=True) if many else LITERALS[column])
    return comparison(operator, column, literal, judges)


def negated(one: Filter) -> Filter:
    return Filter(Not(one.expression), one.opposite, one.judge)


def all_of(*truths: Truth) -> Truth:
    return False if False in truths else None if None in truths else True


def any_of(*truths: Truth) -> Truth:
    return True if True in truths else None if None in truths else False


def both(one: Filter, other: Filter) -> Filter:
    return Filter(
        And(one.expression, other.expression),
        lambda row: all_of(one.judge(row), other.judge(row)),
        lambda row: any_of(one.opposite(row), other.opposite(row)),
    )


def either(one: Filter, other: Filter) -> Filter:
    return Filter(
        Or(one.expression, other.expression),
        lambda row: any_of(one.judge(row), other.judge(row)),
        lambda row: all_of(one.opposite(row), other.opposite(row)),
    )


FILTERS = st.recursive(
    predicates(),
    lambda inner: st.one_of(
        inner.map(negated),
        st.tuples(inner, inner).map(lambda pair: both(*pair)),
        st.tuples(inner, inner).map(lambda pair: either(*pair)),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def fresh_table(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[PartitionSpec], tuple[IcebergTableManager, str]]]:
    folder: Path = tmp_path_factory.mktemp("model")
    with closing(open_catalog(folder)) as catalog:
        catalog.create_namespace("bronze")
        manager, numbers = IcebergTableManager(catalog), count()

        def create(spec: PartitionSpec) -> tuple[IcebergTableManager, str]:
            name = f"bronze.t{next(numbers)}"
            manager.create_table(name, SCHEMA, spec)
            return manager, name

        yield create


def numbered(found: pa.Table) -> list[int]:
    return sorted(found.column("row").to_pylist())


BATCHES = st.lists(ROWS, min_size=1, max_size=3)
CASES = {"batches": BATCHES, "row_filter": FILTERS, "spec": st.sampled_from(SPECS)}
Fresh = Callable[[PartitionSpec], tuple[IcebergTableManager, str]]


@pytest.mark.requirement("S2-E7", "S2-FR-036", "S2-US6.3")
@settings(max_examples=20, deadline=None)
@given(**CASES)
def test_scan_and_delete_agree_with_three_valued_logic(
    fresh_table: Fresh, batches: list[list[Row]], row_filter: Filter, spec: PartitionSpec
) -> None:
    compare_with_the_model(*fresh_table(spec), batches, row_filter)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(**CASES)
def test_scan_and_delete_agree_with_three_valued_logic_over_and_over(
    fresh_table: Fresh, batches: list[list[Row]], row_filter: Filter, spec: PartitionSpec
) -> None:
    compare_with_the_model(*fresh_table(spec), batches, row_filter)


def compare_with_the_model(
    manager: IcebergTableManager, table: str, batches: list[list[Row]], row_filter: Filter
) -> None:
    numbers, rows = count(), []
    for batch in batches:
        new = [{**row, "row": next(numbers)} for row in batch]
        rows += new
        manager.append(table, pa.Table.from_pylist(new, schema=SCHEMA))
    matching = [row["row"] for row in rows if row_filter.judge(row) is True]

    assert numbered(manager.scan(table, row_filter=row_filter.expression)) == matching
    assert numbered(manager.scan_batches(table, row_filter=row_filter.expression).read_all()) == matching
    manager.delete(table, row_filter.expression)
    assert numbered(manager.scan(table)) == [row["row"] for row in rows if row["row"] not in matching]


def test_nan_is_found_beside_one_other_value(fresh_table: Fresh) -> None:
    """Parquet's statistics leave NaN out, and Arrow believes them; when it no longer does, it may filter again."""
    manager, table = fresh_table(PartitionSpec())
    rows = [{"row": 0, "n": None, "s": None, "x": -1.5, "inner": None}]
    rows.append({**rows[0], "row": 1, "x": NAN})
    manager.append(table, pa.Table.from_pylist(rows, schema=SCHEMA))

    assert numbered(manager.scan(table, row_filter="x != -1.5")) == [1]
    assert manager.load_table(table).scan(row_filter="x != -1.5").to_arrow().num_rows == 0


def test_a_zero_is_found_in_a_list(fresh_table: Fresh) -> None:
    manager, table = fresh_table(PartitionSpec())
    rows = [{"row": 0, "n": None, "s": None, "x": 0.0, "inner": None}]
    manager.append(table, pa.Table.from_pylist(rows, schema=SCHEMA))

    assert numbered(manager.scan(table, row_filter="x in (0.0, -1.5)")) == [0]
    assert numbered(manager.scan(table, row_filter="x not in (0.0, -1.5)")) == []

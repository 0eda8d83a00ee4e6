"""Partitions are judged as PyIceberg judges them."""

import itertools

import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
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
from pyiceberg.expressions.visitors import bind, expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, NestedField, StringType

from floe_dagster_iceberg._pyiceberg.evaluators import matching

PARTITION = Schema(
    NestedField(1000, "day", IntegerType()),
    NestedField(1001, "region", StringType()),
    NestedField(1002, "ratio", DoubleType()),
)
RECORDS = [
    Record(*values)
    for values in itertools.product((None, 19_000, 19_001, 19_002), (None, "eu", "eu-west"), (None, 0.5, float("nan")))
]
SIMPLE: list[BooleanExpression] = [
    AlwaysTrue(),
    AlwaysFalse(),
    EqualTo("day", 19_001),
    NotEqualTo("day", 19_001),
    GreaterThan("day", 19_001),
    GreaterThanOrEqual("day", 19_001),
    LessThan("ratio", 0.75),
    LessThanOrEqual("day", 19_001),
    In("region", {"eu", "us"}),
    NotIn("region", {"eu", "us"}),
    IsNull("region"),
    NotNull("day"),
    IsNaN("ratio"),
    NotNaN("ratio"),
    StartsWith("region", "eu-"),
    NotStartsWith("region", "eu-"),
]
PAIRS = [kind(*pair) for pair in itertools.combinations(SIMPLE, 2) for kind in (And, Or)]
DEEP = [Not(And(SIMPLE[2], Or(SIMPLE[8], SIMPLE[6]))), Or(And(SIMPLE[5], SIMPLE[7]), Not(SIMPLE[10]))]


@pytest.mark.parametrize("condition", [*SIMPLE, *PAIRS, *DEEP], ids=repr)
def test_a_partition_matches_when_pyiceberg_says_so(condition: BooleanExpression) -> None:
    ours = matching(bind(PARTITION, condition, case_sensitive=True))
    theirs = expression_evaluator(PARTITION, condition, case_sensitive=True)

    assert [ours(record) for record in RECORDS] == [theirs(record) for record in RECORDS]

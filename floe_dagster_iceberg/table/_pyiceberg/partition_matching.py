"""Filters on partitions as plain functions, for plans that ask thousands of files.

PyIceberg walks the expression for every file. What it asks for each of them is asked here, without the walk.
"""

import operator
from collections.abc import Callable
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    Or,
)
from pyiceberg.expressions.visitors import _ExpressionEvaluationVisitor, visit
from pyiceberg.typedef import Record

Matches = Callable[[Record], bool]

_COMPARISONS: dict[type[Any], Callable[[Any, Any], bool]] = {
    BoundEqualTo: operator.eq,
    BoundGreaterThan: operator.gt,
    BoundGreaterThanOrEqual: operator.ge,
    BoundLessThan: operator.lt,
    BoundLessThanOrEqual: operator.le,
}


def matching(condition: BooleanExpression) -> Matches:
    """A function that tells whether a partition meets a bound expression."""
    match condition:
        case AlwaysTrue():
            return lambda _: True
        case And():
            left, right = matching(condition.left), matching(condition.right)
            return lambda partition: left(partition) and right(partition)
        case Or():
            left, right = matching(condition.left), matching(condition.right)
            return lambda partition: left(partition) or right(partition)
        case BoundLiteralPredicate() if type(condition) in _COMPARISONS:
            return _compared(condition, _COMPARISONS[type(condition)])
        case BoundIn():
            value_of, several = condition.term.eval, condition.value_set
            return lambda partition: value_of(partition) in several
        case _:
            return lambda partition: visit(condition, _ExpressionEvaluationVisitor(partition))


def _compared(condition: BoundLiteralPredicate, compare: Callable[[Any, Any], bool]) -> Matches:
    value_of, limit = condition.term.eval, condition.literal.value
    return lambda partition: (value := value_of(partition)) is not None and compare(value, limit)

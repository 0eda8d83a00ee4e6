"""Filters on partitions and statistics, where PyIceberg 0.12 stumbles over NULL and NaN.

- A partition whose value is NULL makes the planning of `day < x or amount > y` fail, and counts
  as unequal to every value although its rows match no comparison.
- Statistics without a NaN count are taken as proof that a column holds no NaN.
"""

import operator
from collections.abc import Callable
from typing import Any

from pyiceberg import expressions as expr
from pyiceberg.expressions import visitors
from pyiceberg.expressions.visitors import (
    ResidualEvaluator,
    _ExpressionEvaluationVisitor,
    _InclusiveMetricsEvaluator,
    _StrictMetricsEvaluationVisitor,
    _StrictMetricsEvaluator,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

Visit = Callable[..., expr.BooleanExpression]


def _unless_null(visit: Visit) -> Visit:
    def visit_value(self: ResidualEvaluator, term: Any, **literals: Any) -> expr.BooleanExpression:
        return expr.AlwaysFalse() if term.eval(self.struct) is None else visit(self, term, **literals)

    return visit_value


class _NullSafeResiduals(ResidualEvaluator):
    """What a partition leaves of a filter; NULL matches no comparison."""

    visit_less_than = _unless_null(ResidualEvaluator.visit_less_than)
    visit_less_than_or_equal = _unless_null(ResidualEvaluator.visit_less_than_or_equal)
    visit_greater_than = _unless_null(ResidualEvaluator.visit_greater_than)
    visit_greater_than_or_equal = _unless_null(ResidualEvaluator.visit_greater_than_or_equal)
    visit_not_equal = _unless_null(ResidualEvaluator.visit_not_equal)
    visit_not_in = _unless_null(ResidualEvaluator.visit_not_in)
    visit_not_nan = _unless_null(ResidualEvaluator.visit_not_nan)
    visit_not_starts_with = _unless_null(ResidualEvaluator.visit_not_starts_with)


def residual_evaluator(spec: PartitionSpec, row_filter: expr.BooleanExpression, schema: Schema) -> ResidualEvaluator:
    """Tells what is left of a filter once the partition of a file is known."""
    if spec.is_unpartitioned():
        return visitors.UnpartitionedResidualEvaluator(schema=schema, expr=row_filter)
    # NOT of "does not match" is "matches", which NULL never does; comparisons turned round keep that apart.
    return _NullSafeResiduals(spec=spec, expr=visitors.rewrite_not(row_filter), schema=schema, case_sensitive=True)


class ProvingEvaluator(_StrictMetricsEvaluator):
    """Whether statistics prove that every row of a file matches; a count that is not there proves nothing."""

    def __init__(self, schema: Schema, row_filter: expr.BooleanExpression) -> None:
        super().__init__(schema, row_filter)
        # Made once: for every file anew it would be most of the work.
        self._schema, self._columns = schema, schema.as_struct()

    def eval(self, file: DataFile) -> bool:
        return file.record_count == 0 or bool(
            visitors.visit(self.expr, _ProvingVisitor(self._schema, self._columns, file))
        )


class _ProvingVisitor(_StrictMetricsEvaluationVisitor):
    def __init__(self, schema: Schema, columns: StructType, file: DataFile) -> None:
        super().__init__(columns, file)
        self._schema = schema

    def _get_field(self, field_id: int) -> NestedField:
        # PyIceberg looks among the columns only, and fails for a field of a struct.
        return self._schema.find_field(field_id)

    def _can_contain_nulls(self, field_id: int) -> bool:
        return self.null_counts.get(field_id) != 0

    def _can_contain_nans(self, field_id: int) -> bool:
        is_float = isinstance(self._get_field(field_id).field_type, FloatType | DoubleType)
        return is_float and self.nan_counts.get(field_id) != 0

    def visit_not_equal(self, term: expr.BoundTerm, literal: Any) -> bool:
        return self._is_never_null(term) and super().visit_not_equal(term, literal)

    def visit_not_in(self, term: expr.BoundTerm, literals: set[Any]) -> bool:
        return self._is_never_null(term) and super().visit_not_in(term, literals)

    def visit_not_nan(self, term: expr.BoundTerm) -> bool:
        return self._is_never_null(term) and super().visit_not_nan(term)

    def _is_never_null(self, term: expr.BoundTerm) -> bool:
        return not self._can_contain_nulls(term.ref().field.field_id)


Matches = Callable[[Record], bool]

_COMPARISONS: dict[type[Any], Callable[[Any, Any], bool]] = {
    expr.BoundEqualTo: operator.eq,
    expr.BoundGreaterThan: operator.gt,
    expr.BoundGreaterThanOrEqual: operator.ge,
    expr.BoundLessThan: operator.lt,
    expr.BoundLessThanOrEqual: operator.le,
}


def matching(condition: expr.BooleanExpression) -> Matches:
    """A function that tells whether a partition meets a bound expression."""
    match condition:
        case expr.AlwaysTrue():
            return lambda _: True
        case expr.And():
            left, right = matching(condition.left), matching(condition.right)
            return lambda partition: left(partition) and right(partition)
        case expr.Or():
            left, right = matching(condition.left), matching(condition.right)
            return lambda partition: left(partition) or right(partition)
        case expr.BoundLiteralPredicate() if type(condition) in _COMPARISONS:
            return _compared(condition, _COMPARISONS[type(condition)])
        case expr.BoundIn():
            value_of, several = condition.term.eval, condition.value_set
            return lambda partition: value_of(partition) in several
        case _:
            return lambda partition: visitors.visit(condition, _ExpressionEvaluationVisitor(partition))


def _compared(condition: expr.BoundLiteralPredicate, compare: Callable[[Any, Any], bool]) -> Matches:
    value_of, limit = condition.term.eval, condition.literal.value
    return lambda partition: (value := value_of(partition)) is not None and compare(value, limit)


class MetricsMatcher:
    """Tells from column statistics whether all, none or some rows of a file match a filter."""

    def __init__(self, schema: Schema, row_filter: expr.BooleanExpression) -> None:
        self._strict = ProvingEvaluator(schema, row_filter)
        self._inclusive = _InclusiveMetricsEvaluator(schema, row_filter)

    def all_rows_match(self, file: DataFile) -> bool:
        """Whether the statistics prove that every row matches."""
        return bool(self._strict.eval(file) == visitors.ROWS_MUST_MATCH)

    def no_row_matches(self, file: DataFile) -> bool:
        """Whether the statistics prove that no row matches."""
        return bool(self._inclusive.eval(file) == visitors.ROWS_MIGHT_NOT_MATCH)

"""What column statistics prove about the rows of a file."""

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import (
    ROWS_MIGHT_NOT_MATCH,
    ROWS_MUST_MATCH,
    _InclusiveMetricsEvaluator,
)
from pyiceberg.manifest import (
    DataFile,
)
from pyiceberg.schema import Schema

from floe_dagster_iceberg.table._pyiceberg.nulls import ProvingEvaluator


class MetricsMatcher:
    """Tells from column statistics whether all, none or some rows of a file match a filter."""

    def __init__(self, schema: Schema, row_filter: BooleanExpression) -> None:
        self._strict = ProvingEvaluator(schema, row_filter)
        self._inclusive = _InclusiveMetricsEvaluator(schema, row_filter)

    def all_rows_match(self, file: DataFile) -> bool:
        """Whether the statistics prove that every row matches."""
        return bool(self._strict.eval(file) == ROWS_MUST_MATCH)

    def no_row_matches(self, file: DataFile) -> bool:
        """Whether the statistics prove that no row matches."""
        return bool(self._inclusive.eval(file) == ROWS_MIGHT_NOT_MATCH)

"""Whether all, none or some rows of a file match a filter, from its partition and its statistics."""

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from floe_dagster_iceberg._pyiceberg.evaluators import MetricsMatcher, residual_evaluator
from floe_dagster_iceberg.table.filter.row_filter import compares_uuids


class FileMatcher:
    """Decides for the files of a table, without reading them, whether their rows match a filter."""

    def __init__(self, metadata: TableMetadata, row_filter: BooleanExpression) -> None:
        schema = metadata.schema()
        self._always = isinstance(row_filter, AlwaysTrue)
        self._metrics = MetricsMatcher(schema, row_filter)
        # PyIceberg compares a UUID partition value with the filter's bytes, and they never match.
        self._ignores_partitions = compares_uuids(schema, row_filter)
        self._row_filter = row_filter
        self._residuals = {
            spec_id: residual_evaluator(spec, row_filter, schema) for spec_id, spec in metadata.specs().items()
        }
        # Computing a residual is the expensive part; files of one partition share it.
        self._known: dict[tuple[int, Record], BooleanExpression] = {}

    def all_rows(self, file: DataFile) -> bool:
        """Whether every row certainly matches."""
        return self._always or isinstance(self._residual(file), AlwaysTrue) or self._metrics.all_rows_match(file)

    def no_row(self, file: DataFile) -> bool:
        """Whether certainly no row matches."""
        if self._always:
            return False
        # Statistics first: comparing two bounds is cheaper.
        return self._metrics.no_row_matches(file) or isinstance(self._residual(file), AlwaysFalse)

    def _residual(self, file: DataFile) -> BooleanExpression:
        """What is left of the filter once the file's partition is known."""
        if self._ignores_partitions:
            return self._row_filter
        key = (file.spec_id, file.partition)
        if (residual := self._known.get(key)) is None:
            residual = self._known[key] = self._residuals[file.spec_id].residual_for(file.partition)
        return residual

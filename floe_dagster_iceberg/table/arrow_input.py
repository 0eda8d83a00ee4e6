"""Rows passed by users, as Arrow data with types that Iceberg has."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from floe_dagster_iceberg.errors import ValidationError, WriteError

RowFilter = Callable[[pa.RecordBatch], pa.RecordBatch]

ACCEPTED_TYPES = (
    "pyarrow.Table, pyarrow.RecordBatch, pyarrow.RecordBatchReader, pandas.DataFrame, "
    "polars.DataFrame, polars.LazyFrame"
)


class ArrowRows:
    """A table or a stream of batches whose types all have an Iceberg counterpart.

    Dictionaries are decoded, nanoseconds become microseconds if nothing is lost, small and unsigned integers become
    the next Iceberg integer. Columns of Arrow's null type are left out: the table fills them with NULL. Field ids
    are dropped: those of a file or of another table mean other columns here.

    Attributes:
        data_schema: The schema as it was passed.
        columns: All columns, with the types they are stored as or Arrow's null type.
        schema: The columns that have a type.
    """

    def __init__(self, data: pa.Table | pa.RecordBatchReader) -> None:
        self._data, self._was_read = data, False
        self.data_schema: pa.Schema = data.schema
        self.columns = to_storable_schema(data.schema)
        self.schema = pa.schema([field for field in self.columns if not pa.types.is_null(field.type)])

    def sorted_by(self, columns: Sequence[str]) -> "ArrowRows":
        """The rows sorted; a stream stays as it is."""
        if not columns or not isinstance(self._data, pa.Table):
            return self
        return ArrowRows(self._data.sort_by([(column, "ascending") for column in columns]))

    @property
    def replayable(self) -> bool:
        """Whether the rows can be read more than once; a stream cannot."""
        return isinstance(self._data, pa.Table)

    def null_counts(self) -> dict[str, int]:
        """NULLs in each column; empty for a stream."""
        if not isinstance(self._data, pa.Table):
            return {}
        return {name: self._data.column(name).null_count for name in self._data.column_names}

    def batches(self, keep: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch; of each batch those that `keep` returns.

        Raises:
            WriteError: They are a stream that was read already. It is empty now, and must not be written as no rows.
        """
        if self._was_read and not self.replayable:
            raise WriteError(
                "The rows are a stream that was read already, so they cannot be written again. Run it again."
            )
        self._was_read = True
        for batch in _read(self._data):
            fits = batch.schema.equals(self.schema, check_metadata=True)
            if not fits:
                columns = [_cast(batch.column(field.name), field) for field in self.schema]
                batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)  # noqa: PLW2901 - the same rows
            yield batch if keep is None else keep(batch)

    def to_table(self, keep: RowFilter | None = None) -> pa.Table:
        """All rows at once, columns of no type included."""
        rows = pa.Table.from_batches(list(self.batches(keep)), schema=self.schema)
        for field in self.columns:
            if pa.types.is_null(field.type):
                rows = rows.append_column(field.name, pa.nulls(rows.num_rows))
        return rows


def to_storable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with types that Iceberg has; columns of Arrow's null type stay.

    Raises:
        ValidationError: Columns share a name, or a type has no counterpart.
    """
    _refuse_duplicates(schema.names)
    return pa.schema(
        [field if pa.types.is_null(field.type) else _storable_field(field, field.name) for field in schema]
    )


def to_arrow_rows(data: Any) -> ArrowRows:
    """Arrow rows from data of any accepted type.

    Raises:
        ValidationError: The type is not accepted, or a column has no Iceberg counterpart.
    """
    if isinstance(data, ArrowRows):
        return data
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        return ArrowRows(data)
    if isinstance(data, pa.RecordBatch):
        return ArrowRows(pa.Table.from_batches([data]))
    # By name, so that a library that is not installed is not imported to find out.
    match f"{type(data).__module__.split('.')[0]}.{type(data).__name__}":
        case "pandas.DataFrame":
            return ArrowRows(_from_pandas(data))
        case "polars.DataFrame":
            return ArrowRows(data.to_arrow())
        case "polars.LazyFrame":
            return ArrowRows(_compute(data).to_arrow())
        case kind:
            raise ValidationError(f"Rows of type '{kind}' cannot be written. Use one of: {ACCEPTED_TYPES}.")


def _read(data: pa.Table | pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from data.to_batches() if isinstance(data, pa.Table) else data
    except pa.ArrowException as error:
        # Readers of files quote the value that they could not convert.
        raise WriteError(
            f"The stream of rows failed before its end ({type(error).__name__}). Read it in the asset to see why: "
            "its message may quote rows and is left out here."
        ) from None


def _compute(frame: Any) -> Any:
    from polars.exceptions import PolarsError  # noqa: PLC0415 - only those who use polars need it

    try:
        return frame.collect()
    except PolarsError as error:
        raise WriteError(
            f"The polars LazyFrame could not be computed ({type(error).__name__}). Collect it in the asset to see why: "
            "the message of polars may quote rows and is left out here."
        ) from None


def _from_pandas(frame: Any) -> pa.Table:
    _refuse_duplicates([str(name) for name in frame.columns])
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        # The first part of Arrow's message shows a value, the last one names the column.
        reason = error.args[-1] if len(error.args) > 1 else type(error).__name__
        raise ValidationError(
            f"The pandas DataFrame cannot be converted: {reason}. Give each column values of one type."
        ) from None


def _refuse_duplicates(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        duplicates = sorted({name for name in names if names.count(name) > 1})
        raise ValidationError(f"Columns appear more than once: {', '.join(duplicates)}. Rename or drop one of each.")


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type, safe=True)
    except pa.ArrowInvalid:
        # Arrow's own message would show the value.
        raise ValidationError(
            f"Column '{field.name}' of type {column.type} holds values that {field.type} cannot hold exactly. "
            "Round or cast the column before it is written."
        ) from None


_NEXT_ICEBERG_TYPE = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.time64("ns"): pa.time64("us"),
}

_TEXT_AND_BYTES = {pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.uuid()}
_NUMBERS_AND_TIMES = {pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.time64("us")}
_STORED_AS_THEY_ARE = frozenset({pa.bool_(), *_NUMBERS_AND_TIMES, *_TEXT_AND_BYTES})

_MOST_DECIMAL_DIGITS = 38


def _storable_field(field: pa.Field, path: str) -> pa.Field:
    doc = (field.metadata or {}).get(b"doc")
    return pa.field(
        field.name, _storable(field.type, path), nullable=field.nullable, metadata=None if doc is None else {"doc": doc}
    )


def _storable(arrow_type: pa.DataType, path: str) -> pa.DataType:
    is_extension = isinstance(arrow_type, pa.BaseExtensionType) and not isinstance(arrow_type, pa.UuidType)
    if pa.types.is_dictionary(arrow_type) or is_extension:
        inside = arrow_type.storage_type if is_extension else arrow_type.value_type
        return _storable(inside, path)
    if arrow_type in _STORED_AS_THEY_ARE or pa.types.is_fixed_size_binary(arrow_type):
        return arrow_type
    if pa.types.is_timestamp(arrow_type):
        return pa.timestamp("us", tz=None if arrow_type.tz is None else "UTC")
    if pa.types.is_decimal(arrow_type) and arrow_type.precision <= _MOST_DECIMAL_DIGITS and arrow_type.scale >= 0:
        return pa.decimal128(arrow_type.precision, arrow_type.scale)
    if pa.types.is_nested(arrow_type):
        return _storable_nested(arrow_type, path)
    if (known := _NEXT_ICEBERG_TYPE.get(arrow_type)) is not None:
        return known
    raise ValidationError(
        f"Column '{path}' is of type {arrow_type}, which Iceberg does not have. "
        "Cast it, to int64, string or decimal128(38, 0) for instance."
    )


def _storable_nested(arrow_type: pa.DataType, path: str) -> pa.DataType:
    def inner(field: pa.Field) -> pa.Field:
        return _storable_field(field, f"{path}.{field.name}")

    if pa.types.is_struct(arrow_type) and arrow_type.num_fields:
        _refuse_duplicates([f"{path}.{field.name}" for field in arrow_type])
        return pa.struct([inner(field) for field in arrow_type])
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(inner(arrow_type.value_field))
    if pa.types.is_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(inner(arrow_type.value_field))
    if pa.types.is_map(arrow_type):
        return pa.map_(inner(arrow_type.key_field), inner(arrow_type.item_field))
    raise ValidationError(f"Column '{path}' is of type {arrow_type}, which Iceberg does not have. Cast or drop it.")

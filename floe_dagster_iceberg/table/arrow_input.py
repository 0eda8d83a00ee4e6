"""Rows passed by users, as Arrow data with types that Iceberg has."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from numbers import Number
from typing import Any

import pyarrow as pa

from floe_dagster_iceberg._pyiceberg.foreign_types import ForeignArrowType
from floe_dagster_iceberg.errors import ValidationError, WriteError

RowFilter = Callable[[pa.RecordBatch], pa.RecordBatch]

ACCEPTED_TYPES = (
    "pyarrow.Table, pyarrow.RecordBatch, pyarrow.RecordBatchReader, pandas.DataFrame, "
    "polars.DataFrame, polars.LazyFrame"
)


class ArrowRows:
    """A table or a stream of batches whose types all have an Iceberg counterpart.

    Dictionaries are decoded, nanoseconds become microseconds if nothing is lost, small and unsigned integers become
    the next Iceberg integer. Extension types are refused, except for those whose meaning a type of Iceberg has. Columns
    of Arrow's null type are left out: the table fills them with NULL. Field ids are dropped: those of a file or of
    another table mean other columns here.

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

    def store_integers_as(self, floats: Mapping[str, pa.DataType]) -> None:
        """Convert integer columns to floats while they are read; values that these cannot hold exactly are an error."""
        for name, kind in floats.items():
            self.columns = _with_type(self.columns, name, kind)
            self.schema = _with_type(self.schema, name, kind)

    def sorted_by(self, columns: Sequence[str]) -> "ArrowRows":
        """The rows sorted; a stream stays as it is."""
        if not columns or not isinstance(self._data, pa.Table):
            return self
        rows = ArrowRows(self._data.sort_by([(column, "ascending") for column in columns]))
        rows.columns, rows.schema = self.columns, self.schema
        return rows

    @property
    def replayable(self) -> bool:
        """Whether the rows can be read more than once; a stream cannot."""
        return isinstance(self._data, pa.Table)

    @property
    def readable(self) -> bool:
        """Whether the rows can be read; a stream that was read cannot be read again."""
        return self.replayable or not self._was_read

    def null_count(self, column: str) -> int | None:
        """NULLs in a column, if the rows have it; None for a stream."""
        if not isinstance(self._data, pa.Table) or column not in self._data.column_names:
            return None
        return int(self._data.column(column).null_count)

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
            if not self.schema.names and batch.num_rows:
                # Arrow counts no rows without columns.
                raise WriteError(
                    f"No column of the rows has a type, because all values are NULL: {', '.join(self.columns.names)}. "
                    "Give at least one of them a type, such as pyarrow.int64()."
                )
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


def _with_type(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    return schema.set(schema.get_field_index(name), schema.field(name).with_type(kind))


def to_storable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with types that Iceberg has; columns of Arrow's null type stay.

    Raises:
        ValidationError: Columns share a name or have none, or a type has no counterpart.
    """
    _check_names(schema.names)
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
            return ArrowRows(_from_polars(data))
        case "polars.LazyFrame":
            return ArrowRows(_from_polars(_compute(data)))
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


def _from_polars(frame: Any) -> pa.Table:
    # polars hands out Python objects as their addresses in memory, and cannot hand out 128-bit integers.
    for name, kind in frame.schema.items():
        if foreign := next((each for each in _nested_types(kind) if each in {"Object", "Int128", "UInt128"}), None):
            raise ValidationError(
                f"Column '{name}' is of the polars type {foreign}, or holds values of it, which Iceberg does not have. "
                "Cast it, to String, Int64 or Decimal(38, 0) for instance."
            )
    return frame.to_arrow()


def _nested_types(kind: Any) -> Iterator[str]:
    """The names of a polars type and of those that it holds, if it is a list, an array or a struct."""
    yield str(kind)
    held = [kind.inner] if hasattr(kind, "inner") else [field.dtype for field in getattr(kind, "fields", ())]
    for each in held:
        yield from _nested_types(each)


def _from_pandas(frame: Any) -> pa.Table:
    frame = _with_index_columns(frame)
    _check_names([str(name) for name in frame.columns])
    for name, column in frame.items():
        _check_objects(str(name), column)
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except OverflowError:
        raise ValidationError(
            "The pandas DataFrame cannot be converted: a column holds integers of more than 64 bits. Convert them, to "
            "decimal.Decimal or text for instance."
        ) from None
    except (pa.ArrowException, TypeError) as error:
        # The first part of Arrow's message shows a value, the last one names the column.
        is_safe = len(error.args) > 1 or not isinstance(error, pa.ArrowException)
        reason = str(error.args[-1]).rstrip(".") if is_safe else type(error).__name__
        raise ValidationError(
            f"The pandas DataFrame cannot be converted: {reason}. Give each column values of one type."
        ) from None


def _with_index_columns(frame: Any) -> Any:
    """The DataFrame with the named levels of its index as its first columns; row numbers without a name are left out.

    Raises:
        ValidationError: An index without a name holds other labels than numbers, or columns have several levels.
    """
    if frame.columns.nlevels > 1:
        raise ValidationError(
            "The columns of the pandas DataFrame have several levels, as after a pivot. Give each one name: "
            "frame.columns = ['_'.join(map(str, name)) for name in frame.columns]."
        )
    names = list(frame.index.names)
    if names == [None] and (frame.index.dtype.kind in "iu" or frame.empty):
        return frame
    if None in names:
        raise ValidationError(
            "The index of the pandas DataFrame has labels, but no name. Name it with frame.rename_axis(...) to store "
            "it as a column, or drop it with frame.reset_index(drop=True)."
        )
    # As after set_index("id", drop=False).
    kept = [name for name in names if name in frame.columns and _is_index(frame, name)]
    if clash := [name for name in names if name in frame.columns and name not in kept]:
        raise ValidationError(
            f"The index of the pandas DataFrame and one of its columns are both named '{clash[0]}', with other values. "
            "Rename one of them, or drop the index with frame.reset_index(drop=True)."
        )
    return frame.reset_index(level=kept, drop=True).reset_index(drop=kept == names)


def _is_index(frame: Any, name: Any) -> bool:
    column = frame[name]
    # Several columns of that name are a DataFrame, and refused later.
    return bool(column.ndim == 1 and (column.to_numpy() == frame.index.get_level_values(name).to_numpy()).all())


def _check_objects(name: str, column: Any) -> None:
    """Refuse values of several kinds, of which Arrow would make one: a date of a time, bytes of a text, 1.0 of True."""
    if column.dtype != object:
        return
    values = column.dropna()
    kinds = {_family(kind) for kind in set(map(type, values))}
    if kinds == {"datetime"}:
        kinds = {"datetime with time zone" if value.tzinfo else "datetime without time zone" for value in values}
    if len(kinds) > 1:
        raise ValidationError(
            f"Column '{name}' of the pandas DataFrame holds values of several kinds: {', '.join(sorted(kinds))}. "
            "Give it values of one kind."
        )


def _family(kind: type) -> str:
    """Kinds of values that Arrow may mix without changing one."""
    if issubclass(kind, bool):
        return "bool"
    if issubclass(kind, Number):
        return "number"
    if issubclass(kind, list | tuple | set) or kind.__name__ == "ndarray":
        return "list"
    return "datetime" if issubclass(kind, datetime) else kind.__name__


def _check_names(names: Sequence[str], parent: str = "") -> None:
    if len(set(names)) < len(names):
        duplicates = sorted({f"{parent}{name}" for name in names if names.count(name) > 1})
        raise ValidationError(f"Columns appear more than once: {', '.join(duplicates)}. Rename or drop one of each.")
    if "" in names:
        where = f"Field {names.index('') + 1} of '{parent[:-1]}'" if parent else f"Column {names.index('') + 1}"
        raise ValidationError(f"{where} has no name, which Iceberg does not allow. Rename or drop it.")


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
_EXTENSIONS_OF_ICEBERG = (pa.UuidType, ForeignArrowType)
_EXTENSIONS_AS: Mapping[type[pa.DataType], pa.DataType] = {pa.JsonType: pa.string(), pa.Bool8Type: pa.bool_()}


def _storable_field(field: pa.Field, path: str) -> pa.Field:
    doc = (field.metadata or {}).get(b"doc")
    return pa.field(
        field.name, _storable(field.type, path), nullable=field.nullable, metadata=None if doc is None else {"doc": doc}
    )


def _storable(arrow_type: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if isinstance(arrow_type, pa.BaseExtensionType) and not isinstance(arrow_type, _EXTENSIONS_OF_ICEBERG):
        return _without_extension(arrow_type, path)
    is_fixed_or_foreign = pa.types.is_fixed_size_binary(arrow_type) or isinstance(arrow_type, ForeignArrowType)
    if arrow_type in _STORED_AS_THEY_ARE or is_fixed_or_foreign:
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


def _without_extension(arrow_type: pa.BaseExtensionType, path: str) -> pa.DataType:
    if (known := _EXTENSIONS_AS.get(type(arrow_type))) is not None:
        return known
    raise ValidationError(
        f"Column '{path}' is of the extension type {arrow_type.extension_name}, which Iceberg does not have: its "
        f"meaning would be lost. Convert it, for instance to text, or to {arrow_type.storage_type}, as it is stored."
    )


def _storable_nested(arrow_type: pa.DataType, path: str) -> pa.DataType:
    def inner(field: pa.Field) -> pa.Field:
        return _storable_field(field, f"{path}.{field.name}")

    if pa.types.is_struct(arrow_type) and arrow_type.num_fields:
        _check_names([field.name for field in arrow_type], parent=f"{path}.")
        return pa.struct([inner(field) for field in arrow_type])
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(inner(arrow_type.value_field))
    if pa.types.is_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(inner(arrow_type.value_field))
    if pa.types.is_map(arrow_type):
        return pa.map_(inner(arrow_type.key_field), inner(arrow_type.item_field))
    raise ValidationError(f"Column '{path}' is of type {arrow_type}, which Iceberg does not have. Cast or drop it.")

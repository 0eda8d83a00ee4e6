"""PyIceberg's Avro readers as plain functions, for entries of which a table has thousands.

A reader asks every field's reader, which asks the decoder; a record is filled position by position. The functions
here do the same with fewer calls between. What they do not know is left to the reader itself.
"""
# ruff: noqa: SLF001 - private parts are what this folder is for

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import (
    EMPTY_DICT,
    BinaryReader,
    IntegerReader,
    ListReader,
    MapReader,
    OptionReader,
    Reader,
    StringReader,
    StructReader,
)
from pyiceberg.avro.resolver import EnumReader
from pyiceberg.typedef import KeyDefaultDict, Record
from pyiceberg.utils.lazydict import LazyDict

Decode = Callable[[BinaryDecoder], Any]

_PRIMITIVES: Mapping[Callable[..., Any], Decode] = {
    IntegerReader.read: methodcaller("read_int"),
    StringReader.read: methodcaller("read_utf8"),
    BinaryReader.read: methodcaller("read_bytes"),
}
# A record's own way of setting it looks at every attribute's name first.
_set_fields = Record.__dict__["_data"].__set__


def decoding(reader: Reader) -> Decode:
    """A function that reads what a reader reads."""
    if (primitive := _PRIMITIVES.get(type(reader).read)) is not None:
        return primitive
    decode: Decode
    match reader:
        case OptionReader():
            decode = _optional(decoding(reader.option))
        case EnumReader():
            decode = _member(reader)
        case StructReader(create_struct=type() as kind) if issubclass(kind, Record):
            decode = _record(reader, kind)
        case MapReader() if reader._is_int_int:
            decode = _numbers_by_number
        case MapReader() if reader._is_int_bytes:
            decode = _bytes_by_number
        case ListReader() if reader._is_int_list:
            decode = _numbers
        case _:
            decode = reader.read
    return decode


def _optional(value: Decode) -> Decode:
    return lambda decoder: value(decoder) if decoder.read_int() > 0 else None


def _member(reader: EnumReader) -> Decode:
    value, members = decoding(reader.reader), KeyDefaultDict(reader.enum)
    return lambda decoder: members[value(decoder)]


def _record(reader: StructReader, kind: type[Record]) -> Decode:
    fields = [
        (position, field.skip if position is None else decoding(field)) for position, field in reader.field_readers
    ]
    create, size = kind.__new__, reader._max_pos

    def read(decoder: BinaryDecoder) -> Record:
        values: list[Any] = [None] * size
        for position, field in fields:
            if position is None:
                field(decoder)
            else:
                values[position] = field(decoder)
        record = create(kind)
        _set_fields(record, values)
        return record

    return read


def _numbers_by_number(decoder: BinaryDecoder) -> Mapping[int, int]:
    if not (count := decoder.read_int()):
        return EMPTY_DICT
    pairs = []
    while count:
        pairs.append(decoder.read_ints(2 * _counted(decoder, count)))
        count = decoder.read_int()
    return LazyDict(pairs)


def _bytes_by_number(decoder: BinaryDecoder) -> Mapping[int, bytes]:
    found: dict[int, bytes] = {}
    while count := decoder.read_int():
        decoder.read_int_bytes_dict(_counted(decoder, count), found)
    return found


def _numbers(decoder: BinaryDecoder) -> list[int]:
    found: list[int] = []
    while count := decoder.read_int():
        found.extend(decoder.read_ints(_counted(decoder, count)))
    return found


def _counted(decoder: BinaryDecoder, count: int) -> int:
    """How many items follow; a negative number is followed by their length in bytes."""
    if count > 0:
        return count
    decoder.skip_int()
    return -count

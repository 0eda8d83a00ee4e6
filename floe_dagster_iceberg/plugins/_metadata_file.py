"""A table's metadata file, read quickly however long the history in it is.

PyIceberg validates every snapshot and calls Python for each of their summaries, which is most of what it takes to
open an old table. `tests/contract/test_metadata_file.py` compares what both read.
"""

from itertools import product
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json
from pyiceberg.io import InputFile
from pyiceberg.serializers import Compressor
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import INITIAL_SEQUENCE_NUMBER, Operation, Snapshot, Summary

_OPERATIONS = {operation.value: operation for operation in Operation}
_FIELDS = {field.alias or name: name for name, field in Snapshot.model_fields.items()}
# Shared by all summaries: models are frozen.
_OPERATION_IS_SET = {"operation"}
_NUMBER, _MAYBE_NUMBER = (int,), (int, type(None))
# Of the fields in the order of `_to_snapshot`; as a set, because there is nothing quicker to ask.
_TYPES = frozenset(
    product(
        _NUMBER,
        _MAYBE_NUMBER,
        _MAYBE_NUMBER,
        _NUMBER,
        (str,),
        (Summary, type(None)),
        _MAYBE_NUMBER,
        _MAYBE_NUMBER,
        _MAYBE_NUMBER,
    )
)
# What Pydantic keeps beside a model's fields, set without its detours.
_set_fields_set, _set_extra, _set_private = (
    BaseModel.__dict__[f"__pydantic_{slot}__"].__set__ for slot in ("fields_set", "extra", "private")
)


def read_metadata(file: InputFile) -> TableMetadata:
    """Like PyIceberg's `FromInputFile.table_metadata`.

    Raises:
        pyiceberg.exceptions.ValidationError: The file makes no sense.
    """
    with (
        file.open() as stored,
        Compressor.get_compressor(location=file.location).stream_decompressor(stored) as stream,
    ):
        text = stream.read().decode()
    return parse_metadata(text)


def parse_metadata(text: str) -> TableMetadata:
    """Like PyIceberg's `TableMetadataUtil.parse_raw`, which is asked about everything that is out of the ordinary."""
    try:
        data = from_json(text)
        history = [_to_snapshot(snapshot) for snapshot in data.pop("snapshots")]
        metadata = TableMetadataUtil.parse_obj(data)
    except (ValueError, TypeError, KeyError, AttributeError):
        return TableMetadataUtil.parse_raw(text)
    return metadata.model_copy(update={"snapshots": history})


def _to_snapshot(stored: dict[str, Any]) -> Snapshot:
    """A snapshot whose fields are of the right types, or an error."""
    summary, get = stored.get("summary"), stored.get
    fields = {
        "snapshot_id": stored["snapshot-id"],
        "parent_snapshot_id": get("parent-snapshot-id"),
        "sequence_number": get("sequence-number", INITIAL_SEQUENCE_NUMBER),
        "timestamp_ms": stored["timestamp-ms"],
        "manifest_list": stored["manifest-list"],
        "summary": None if summary is None else _to_summary(summary),
        "schema_id": get("schema-id"),
        "first_row_id": get("first-row-id"),
        "added_rows": get("added-rows"),
    }
    if tuple(map(type, fields.values())) not in _TYPES:
        raise TypeError("a field of a snapshot is of another type")
    snapshot = object.__new__(Snapshot)
    snapshot.__dict__.update(fields)
    _set_fields_set(snapshot, {_FIELDS[key] for key in stored if key in _FIELDS})
    _set_extra(snapshot, None)
    _set_private(snapshot, None)
    return snapshot


def _to_summary(stored: dict[str, Any]) -> Summary:
    operation = _OPERATIONS[stored.pop("operation")]
    summary = object.__new__(Summary)
    summary.__dict__["operation"] = operation
    _set_fields_set(summary, _OPERATION_IS_SET)
    _set_extra(summary, None)
    # Whatever else is in a summary is not looked at by PyIceberg either.
    _set_private(summary, {"_additional_properties": stored})
    return summary

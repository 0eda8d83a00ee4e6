"""The quick way to write manifests writes what PyIceberg's own writes, whatever the partitions are."""

import datetime as dt
import io
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    write_manifest,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)
from test_manager_manifest_reading import fields_of

from floe_dagster_iceberg._pyiceberg.manifest_writer import _Encoder, manifest_writer

SNAPSHOT, EARLIER = 41, 40
TYPES: dict[str, tuple[Any, Any, Any]] = {
    "long": (LongType(), IdentityTransform(), -(2**62)),
    "string": (StringType(), IdentityTransform(), "Zürich ✓"),
    "boolean": (BooleanType(), IdentityTransform(), False),
    "double": (DoubleType(), IdentityTransform(), -0.5),
    "date": (DateType(), IdentityTransform(), (dt.date(1969, 7, 20) - dt.date(1970, 1, 1)).days),
    "day": (TimestamptzType(), DayTransform(), 20_000),
    "decimal": (DecimalType(20, 3), IdentityTransform(), Decimal("-12345678901234567.891")),
    "uuid": (UUIDType(), IdentityTransform(), UUID(int=7).bytes),
    "bucket": (StringType(), BucketTransform(16), 3),
}


def specified(kind: str) -> tuple[Schema, PartitionSpec]:
    of_type, transform, _ = TYPES[kind]
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "part", of_type))
    return schema, PartitionSpec(PartitionField(2, 1000, transform, "part"), spec_id=3)


def file_of(number: int, partition: Record) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file:///lake/part/{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=number * 1000,
        file_size_in_bytes=number**5,
        column_sizes={1: 10, 2: 8192, 300: 2**40},
        value_counts={1: number},
        null_value_counts={1: 0, 2: number},
        nan_value_counts={},
        lower_bounds={1: (number).to_bytes(8, "little")},
        upper_bounds={1: (number + 1).to_bytes(8, "little")},
        key_metadata=None,
        split_offsets=[4, 2**33],
        equality_ids=None,
        sort_order_id=None,
    )


def entries_of(count: int, value: Sequence[Any]) -> list[ManifestEntry]:
    """Added, kept and removed files of which some are in no partition."""
    found = []
    for number in range(count):
        partition = Record(*([None] * len(value) if number % 5 == 4 else value))
        status = list(ManifestEntryStatus)[number % 3]
        added = status is ManifestEntryStatus.ADDED
        found.append(
            ManifestEntry.from_args(
                status=status,
                snapshot_id=SNAPSHOT if added else EARLIER,
                sequence_number=None if added else 7,
                file_sequence_number=None if added else number,
                data_file=file_of(number, partition),
            )
        )
    return found


def written_by(writer: ManifestWriter, entries: list[ManifestEntry]) -> ManifestFile:
    with writer:
        for entry in entries:
            writer.add_entry(entry)
    manifest = writer.to_manifest_file()
    # The manifest list gives these two.
    manifest.sequence_number, manifest.min_sequence_number = 9, 7
    return manifest


def assert_same_manifests(
    folder: Path, schema: Schema, spec: PartitionSpec, entries: list[ManifestEntry], *, version: Any, codec: Any
) -> None:
    store = PyArrowFileIO()
    found = []
    for name, writer_of in (("theirs", write_manifest), ("ours", manifest_writer)):
        output = store.new_output(str(folder / f"{name}.avro"))
        manifest = written_by(writer_of(version, spec, schema, output, SNAPSHOT, codec), entries)
        assert manifest.manifest_length == (folder / f"{name}.avro").stat().st_size
        read = manifest.fetch_manifest_entry(store, discard_deleted=False)
        facts = [fields_of(field) for field in manifest._data[2:]]
        found.append((facts, [(fields_of(entry), entry.data_file.spec_id) for entry in read]))
    theirs, ours = found
    assert len(ours[1]) == len(entries)
    assert ours == theirs


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", TYPES)
def test_a_manifest_says_what_pyiceberg_would_say(tmp_path: Path, kind: str, version: int) -> None:
    schema, spec = specified(kind)
    assert_same_manifests(tmp_path, schema, spec, entries_of(7, [TYPES[kind][2]]), version=version, codec="gzip")


@pytest.mark.parametrize("version", [1, 2])
def test_so_does_one_without_partitions(tmp_path: Path, version: int) -> None:
    schema, _ = specified("long")
    entries = entries_of(3, [])
    assert_same_manifests(tmp_path, schema, UNPARTITIONED_PARTITION_SPEC, entries, version=version, codec="gzip")


@pytest.mark.parametrize("codec", ["null", "gzip", "deflate", "zstd"])
def test_a_long_one_has_several_blocks_whatever_compresses_them(tmp_path: Path, codec: str) -> None:
    schema, spec = specified("long")
    assert_same_manifests(tmp_path, schema, spec, entries_of(1_203, [5]), version=2, codec=codec)


def test_specs_that_look_alike_are_reported_apart(tmp_path: Path) -> None:
    for kind in ("string", "long", "decimal"):
        schema, spec = specified(kind)
        assert_same_manifests(tmp_path, schema, spec, entries_of(2, [TYPES[kind][2]]), version=2, codec="gzip")


def test_one_that_fails_on_the_way_is_not_stored(tmp_path: Path) -> None:
    schema, spec = specified("long")
    bad = entries_of(3, [1])[0]
    bad.sequence_number, bad.snapshot_id, bad.status = None, EARLIER, ManifestEntryStatus.EXISTING
    writer = manifest_writer(2, spec, schema, PyArrowFileIO().new_output(str(tmp_path / "m.avro")), SNAPSHOT, "deflate")
    with pytest.raises(ValueError, match="unassigned sequence number"):
        written_by(writer, [*entries_of(3, [1]), bad])
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_version_is_refused(tmp_path: Path) -> None:
    schema, spec = specified("long")
    output = PyArrowFileIO().new_output(str(tmp_path / "m.avro"))
    with pytest.raises(ValueError, match="version: 3"):
        manifest_writer(3, spec, schema, output, SNAPSHOT, "deflate")


def test_numbers_are_encoded_as_avro_wants_them() -> None:
    numbers = [*range(-70, 8300), 2**31, -(2**31), 2**63 - 1, -(2**63)]
    encoded = []
    for encoder_of in (BinaryEncoder, _Encoder):
        stream = io.BytesIO()
        for number in numbers:
            encoder_of(stream).write_int(number)
        encoded.append(stream.getvalue())
    assert encoded[0] == encoded[1]

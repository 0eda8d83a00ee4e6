"""Writes a long stream into a table and reads it back, and says what memory that took."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from benchmarks.workers.streaming import peak_mib
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

MIB = 1024 * 1024
SCHEMA = pa.schema(
    [("id", pa.int64()), ("part", pa.int32()), ("a", pa.float64()), ("b", pa.int64()), ("text", pa.string())]
)
BY_PART = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"))


def stream(total_mib: int, partitions: int, *, batch_rows: int, noise: bool) -> Iterator[pa.RecordBatch]:
    """Rows of about 90 bytes, made as they are asked for; their partitions are shuffled."""
    rng = np.random.default_rng(0)
    pool = [_columns(rng, batch_rows, noise=noise) for _ in range(4)]
    made, start = 0, 0
    while made < total_mib * MIB:
        ids = np.arange(start, start + batch_rows)
        parts = pa.array((ids * 7919 % partitions).astype("int32"))
        batch = pa.RecordBatch.from_arrays([pa.array(ids), parts, *pool[start // batch_rows % 4]], schema=SCHEMA)
        made, start = made + batch.nbytes, start + batch_rows
        yield batch


def _columns(rng: np.random.Generator, count: int, *, noise: bool) -> list[pa.Array]:
    if not noise:
        return [
            pa.array(np.full(count, 1.5)),
            pa.array(np.full(count, 7)),
            pa.array(["the same text again " * 3] * count),
        ]
    text = rng.bytes(count * 30).hex()
    texts = pa.array([text[at : at + 60] for at in range(0, len(text), 60)])
    return [pa.array(rng.random(count)), pa.array(rng.integers(0, 2**62, count)), texts]


def _open(folder: Path, store: dict[str, str] | None) -> Catalog:
    uri = f"sqlite:///{folder}/catalog.db"
    if store is None:
        return SqlCatalog("floe", uri=uri, warehouse=f"file://{folder}/warehouse")
    warehouse = store.pop("warehouse")
    return IcebergResource(catalog_uri=uri, warehouse=warehouse, storage_type="s3", storage_properties=store).catalog


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch-rows", type=int, default=50_000)
    parser.add_argument("--target-mib", type=int, default=16)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--store", type=json.loads, help="settings of an S3 server that holds the warehouse")
    options = parser.parse_args()
    with closing(_open(options.folder, options.store)) as catalog:
        catalog.create_namespace("bronze")
        manager = IcebergTableManager(catalog)
        target = {"write.target-file-size-bytes": str(options.target_mib * MIB)}
        manager.create_table("bronze.warm_up", SCHEMA, BY_PART, target)
        manager.append("bronze.warm_up", SCHEMA.empty_table())
        manager.create_table("bronze.long", SCHEMA, BY_PART, target)
        batches = stream(options.mib, options.partitions, batch_rows=options.batch_rows, noise=options.noise)
        first = next(batches)
        before = peak_mib()
        rows = pa.RecordBatchReader.from_batches(SCHEMA, (batch for part in ([first], batches) for batch in part))
        snapshot = manager.append("bronze.long", rows)
        written = peak_mib()
        found = sum(batch.num_rows for batch in manager.scan_batches("bronze.long"))
        report = {
            "rows": snapshot.added_records,
            "files": snapshot.added_files,
            "found": found,
            "written_mib": written - before,
            "read_mib": peak_mib() - before,
        }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()

"""Several processes that work on the same tables at the same time."""

import multiprocessing
import time
import traceback
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyiceberg.catalog.sql  # noqa: F401 - otherwise each process would import it, in the middle of the race
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.place import Place

from floe_dagster_iceberg.table.manager import IcebergTableManager

SCHEMA = pa.schema([("id", pa.int64()), ("worker", pa.int64())])
BY_WORKER = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="worker"))
SHARED = -1
_PATIENCE_SECONDS = 500


def race(place: Place, folder: Path, *, crew: int, rounds: int) -> list[str]:
    """Let a crew of processes do the same rounds together; what went wrong, which should be nothing."""
    # A server that has imported everything makes the processes: eight imports would take longer than the race.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", __name__])
    processes = [context.Process(target=_run, args=(place, folder, worker, crew, rounds)) for worker in range(crew)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_PATIENCE_SECONDS)
        process.kill()
    failures = [path.read_text() for path in folder.glob("failed-*")]
    return failures + [f"exit code {process.exitcode}" for process in processes if process.exitcode]


def _run(place: Place, folder: Path, worker: int, crew: int, rounds: int) -> None:
    try:
        manager = place.iceberg().table_manager
        with closing(manager.catalog):
            for number in range(rounds):
                _wait_for_all(folder, crew, f"{number}-{worker}")
                manager.create_namespace("bronze", if_not_exists=True)
                _work(manager, f"bronze.round{number}", worker)
    except BaseException:
        (folder / f"failed-{worker}").write_text(traceback.format_exc())
        raise


def _work(manager: IcebergTableManager, table: str, worker: int) -> None:
    """Create or find the table, add to what all share, replace what is one's own, and upsert one key for all."""
    manager.create_table_if_not_exists(table, SCHEMA, BY_WORKER)
    manager.append(table, _rows(SHARED, 1000 + worker))
    manager.append(table, _rows(worker, 1, 2, 3))
    manager.overwrite(table, _rows(worker, 10 * worker), overwrite_filter=f"worker = {worker}")
    manager.upsert(table, _rows(SHARED, 0), ["id", "worker"])


def _rows(worker: int, *ids: int) -> pa.Table:
    return pa.table([list(ids), [worker] * len(ids)], schema=SCHEMA)


def _wait_for_all(folder: Path, crew: int, mark: str) -> None:
    """Not every process starts at once; the race begins when all of them are there."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    (folder / f"ready-{mark}").touch()
    while len(list(folder.glob(f"ready-{mark.partition('-')[0]}-*"))) < crew:
        if time.monotonic() > deadline:
            raise TimeoutError("the others did not come")
        time.sleep(0.005)

"""Production that keeps appending: a row at a time to two tables, each printed once it is in both.

Run as `python -m support.appending_worker PLACE`; it ends when its standard input does.
"""

import pickle
import select
import sys
from datetime import date
from itertools import count
from pathlib import Path

import pyarrow as pa
from support.place import Place

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

TABLES = ("shop.orders", "shop.totals")
DAY = date(2026, 1, 5)
FIRST = 1000


def row_of(number: int) -> tuple[str, int]:
    """The row that was appended when this was printed."""
    return DAY.isoformat(), number


def save(place: Place, folder: Path) -> Path:
    """Save where the tables are, for the process."""
    saved = folder / "place.pickle"
    saved.write_bytes(pickle.dumps(place))
    return saved


def main() -> None:
    place: Place = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - of the test
    config = IcebergTableManagerConfig(max_commit_retries=10, retry_base_delay_seconds=0.2)
    manager = IcebergTableManager(place.connect(), config=config)
    for number in count(FIRST):
        for table in TABLES:
            manager.append(table, pa.table({"day": [DAY], "number": [number]}))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        if select.select([sys.stdin], [], [], 0.2)[0]:
            return


if __name__ == "__main__":
    main()

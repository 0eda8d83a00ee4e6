"""Many processes fill one table that none of them has seen before."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import io_writer

pytestmark = pytest.mark.requirement("S2-US5.3", "S2-FR-028", "S2-FR-029", "S2-FR-040")

WRITERS = 16


def fill(folder: Path, turns: int) -> None:
    command = [sys.executable, io_writer.__file__, str(folder), str(WRITERS), str(turns)]
    assert subprocess.run(command, check=False).returncode == 0, "so many writers failed"


def check(folder: Path) -> None:
    table = io_writer.open_iceberg(folder).catalog.load_table("public.events")
    rows = table.scan().to_arrow().to_pylist()
    found = sorted((row["day"].isoformat(), row["number"]) for row in rows)
    assert found == sorted((io_writer.key_of(key), n) for key in range(WRITERS) for n in range(io_writer.ROWS))
    assert len(table.metadata.snapshots) == WRITERS


def test_sixteen_partitions_of_a_new_table_at_once(tmp_path: Path) -> None:
    fill(tmp_path, turns=1)

    check(tmp_path / "turn-0")


@pytest.mark.slow
def test_sixteen_times_in_a_row(tmp_path: Path) -> None:
    fill(tmp_path, turns=16)

    for turn in range(16):
        check(tmp_path / f"turn-{turn}")

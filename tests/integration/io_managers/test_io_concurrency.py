"""Many processes fill one table that none of them has seen before."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import io_writer

pytestmark = pytest.mark.requirement("S2-US5.3", "S2-FR-028", "S2-FR-029", "S2-FR-040")


def fill(folder: Path, writers: int, turns: int) -> None:
    command = [sys.executable, io_writer.__file__, str(folder), str(writers), str(turns)]
    assert subprocess.run(command, check=False).returncode == 0, "so many writers failed"


def check(folder: Path, writers: int) -> None:
    table = io_writer.open_iceberg(folder).catalog.load_table("public.events")
    rows = table.scan().to_arrow().to_pylist()
    found = sorted((row["day"].isoformat(), row["number"]) for row in rows)
    assert found == sorted((io_writer.key_of(key), n) for key in range(writers) for n in range(io_writer.ROWS))
    assert len(table.metadata.snapshots) == writers


@pytest.mark.slow
def test_six_partitions_of_a_new_table_at_once(tmp_path: Path) -> None:
    fill(tmp_path, writers=6, turns=1)

    check(tmp_path / "turn-0", writers=6)


@pytest.mark.slow
def test_sixteen_partitions_four_times_in_a_row(tmp_path: Path) -> None:
    fill(tmp_path, writers=16, turns=4)

    for turn in range(4):
        check(tmp_path / f"turn-{turn}", writers=16)

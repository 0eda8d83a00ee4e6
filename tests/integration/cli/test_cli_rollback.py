"""`floe-iceberg rollback` shows what is undone, asks, and undoes exactly that."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import CommandLine

from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.cli.rollback import plan_rollback, roll_back
from floe_dagster_iceberg.errors import RollbackError

TABLE = "bronze.events"


@pytest.fixture
def lake(tmp_path: Path) -> CommandLine:
    lake = CommandLine(tmp_path)
    lake.fill(TABLE, files=4)
    return lake


def snapshot_ids(lake: CommandLine) -> list[int]:
    return [snapshot.snapshot_id for snapshot in lake.table(TABLE).snapshots()]


def current(lake: CommandLine) -> int | None:
    return lake.table(TABLE).metadata.current_snapshot_id


@pytest.mark.requirement("S2-US4.3")
def test_it_asks_and_a_no_changes_nothing(lake: CommandLine) -> None:
    _, target, *undone = snapshot_ids(lake)

    result = lake.run("rollback", TABLE, "--to", str(target), confirmation="n\n", exit_code=1)

    assert all(str(snapshot_id) in result.stdout for snapshot_id in (target, *undone))
    assert "Snapshots that readers would no longer see: 2" in result.stdout
    assert "Rows now: 4. Rows then: 2." in result.stdout
    assert current(lake) == undone[-1]


@pytest.mark.requirement("S2-US4.3")
def test_a_yes_goes_back_and_keeps_the_history(lake: CommandLine) -> None:
    ids = snapshot_ids(lake)

    lake.run("rollback", TABLE, "--to", str(ids[1]), confirmation="y\n")

    assert current(lake) == ids[1]
    assert snapshot_ids(lake) == ids
    assert lake.table(TABLE).scan().to_arrow().num_rows == 2


@pytest.mark.requirement("S2-US4.3")
def test_a_tag_and_a_timestamp_name_a_snapshot_too(lake: CommandLine) -> None:
    first, second, *_ = lake.table(TABLE).snapshots()
    lake.manager.create_tag(TABLE, "reviewed", snapshot_id=second.snapshot_id)

    lake.run("rollback", TABLE, "--to", "reviewed", "--yes")
    assert current(lake) == second.snapshot_id

    timestamp = datetime.fromtimestamp(first.timestamp_ms / 1000, tz=UTC).isoformat()
    lake.run("rollback", TABLE, "--as-of", timestamp, "--yes")
    assert current(lake) == first.snapshot_id


def test_going_where_the_table_is_changes_nothing(lake: CommandLine) -> None:
    before = lake.table(TABLE).metadata_location

    assert "already" in lake.run("rollback", TABLE, "--to", str(snapshot_ids(lake)[-1]), "--yes").stdout
    assert lake.table(TABLE).metadata_location == before


def test_what_was_not_shown_is_not_undone(lake: CommandLine) -> None:
    lakehouse = Lakehouse.open(lake.artifacts)
    plan = plan_rollback(lakehouse, TABLE, to=str(snapshot_ids(lake)[0]))
    lake.manager.append(TABLE, pa.table({"id": [99]}))

    with pytest.raises(RollbackError, match="was committed since then"):
        roll_back(lakehouse, plan)

    assert current(lake) == snapshot_ids(lake)[-1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "12345"], "has no snapshot, branch or tag '12345'"),
        (["--to", "no-tag"], "has no snapshot, branch or tag 'no-tag'"),
        (["--as-of", "2001-01-01"], "no snapshot of main is that old"),
        (["--as-of", "yesterday"], "is not a timestamp. Write it as 2026-01-31"),
    ],
)
def test_a_snapshot_that_cannot_be_had_is_reported(lake: CommandLine, arguments: list[str], sentence: str) -> None:
    before = current(lake)

    assert sentence in lake.run("rollback", TABLE, *arguments, "--yes", exit_code=1).stderr
    assert current(lake) == before


@pytest.mark.parametrize("arguments", [[], ["--to", "1", "--as-of", "2026-01-01"]])
def test_it_wants_to_know_where_to_and_only_once(lake: CommandLine, arguments: list[str]) -> None:
    assert "either --to or --as-of" in lake.run("rollback", TABLE, *arguments, exit_code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--as-of", "2020-01-01"], "no snapshot of main is that old"), (["--to", "aside"], "not part of main's history")],
    ids=["too early", "of a branch"],
)
def test_what_cannot_be_gone_back_to_is_answered_with_a_command(
    lake: CommandLine, arguments: list[str], reason: str
) -> None:
    lake.manager.create_branch(TABLE, "aside")
    lake.manager.append(TABLE, pa.table({"id": [7]}), branch="aside")

    message = lake.run("rollback", TABLE, *arguments, exit_code=1).output

    assert reason in message
    assert f"'floe-iceberg inspect {TABLE} --snapshots 100' lists the snapshots" in message
    assert "(" not in message

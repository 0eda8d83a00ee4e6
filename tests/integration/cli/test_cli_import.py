"""`floe-iceberg import`: existing Parquet files become part of a table, after a dry run."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import CommandLine


@pytest.fixture
def lake(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files as Hive writes them."""
    folder = tmp_path / "landing"
    for number, region in enumerate(["EU", "US"], start=1):
        path = folder / f"region={region}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": list(range(number))}), path)
    return folder


def test_a_dry_run_shows_what_is_imported(lake: CommandLine, source: Path) -> None:
    lake.fill("shop.other", files=1)
    command = ("import", str(source), "shop.sales", "--create", "--partition-by", "region")
    shown = " ".join(lake.run(*command).stdout.split())

    assert "region=EU 1 region=US 2" in shown
    assert "Would add 2 files with 3 rows" in shown
    assert "name mapping" in shown
    assert "Add --execute" in shown
    assert not lake.manager.table_exists("shop.sales")


def test_files_are_imported_once(lake: CommandLine, source: Path) -> None:
    command = ("import", str(source), "shop.sales", "--create", "--partition-by", "region", "--execute")
    report = lake.json(*command)
    table = lake.table("shop.sales")

    assert (report["rows"], report["created"], report["executed"]) == (3, True, True)
    assert report["snapshot_id"] == str(table.metadata.current_snapshot_id)
    assert sorted(table.scan().to_arrow()["region"].to_pylist()) == ["EU", "US", "US"]
    assert "has it already" in lake.run(*command, exit_code=1).stderr
    again = lake.json(*command, "--skip-existing")
    assert (again["files"], len(again["skipped"]), again["snapshot_id"]) == ([], 2, None)
    assert len(lake.table("shop.sales").metadata.snapshots) == 1


def test_files_of_another_owner_can_be_kept(lake: CommandLine, source: Path) -> None:
    lake.run("import", str(source), "shop.sales", "--create", "--partition-by", "region", "--keep-files", "--execute")

    assert lake.table("shop.sales").properties["gc.enabled"] == "false"


def test_what_cannot_be_imported_is_refused_with_a_reason(lake: CommandLine, source: Path) -> None:
    lake.fill("shop.other", files=1)
    for arguments, reason in (
        ((str(source), "shop.othr"), "Did you mean 'shop.other'?"),
        ((str(source), "shop.sales", "--create"), "Column 'region' is only in the paths"),
        ((str(source / "nowhere"), "shop.other"), "does not exist or has no files"),
        ((str(source), "shop.sales", "--create", "--partition-by", "week(id)"), "cannot be parsed"),
    ):
        error = lake.run("import", *arguments, exit_code=1).stderr
        assert reason in " ".join(error.split())

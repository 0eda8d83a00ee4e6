"""The schedule as it is in production: a daemon of its own process ticks, and its run compacts."""

import json
import sys
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus
from support.maintenance_lake import GROUP, NeglectedLake
from support.processes import running, wait_until

CODE_LOCATION = """
import pathlib
from floe_dagster_iceberg import create_iceberg_resources

defs = create_iceberg_resources(pathlib.Path({artifacts!r})).definitions()
"""


@pytest.mark.slow
@pytest.mark.requirement("D6", "S2-FR-032")
def test_the_daemon_ticks_the_schedule_that_is_enabled_and_no_other(tmp_path: Path) -> None:
    for folder in ("lake", "dagster"):
        (tmp_path / folder).mkdir()
    lake = NeglectedLake(tmp_path / "lake")
    lake.fill("bronze.orders", files=6)
    maintenance = {"compaction": {"enabled": True, "cron": "* * * * *"}, "expiry": {"cron": "* * * * *"}}
    artifacts, code_location = tmp_path / "artifacts.json", tmp_path / "location.py"
    artifacts.write_text(json.dumps(lake.artifacts(maintenance=maintenance)))
    code_location.write_text(CODE_LOCATION.format(artifacts=str(artifacts)))
    home, log = str(tmp_path / "dagster"), tmp_path / "daemon.log"
    (tmp_path / "dagster" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    daemon = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-f", str(code_location)]

    with DagsterInstance.from_config(home) as instance, running(daemon, log, {"DAGSTER_HOME": home}):
        wait_until(
            lambda: any(run.status is DagsterRunStatus.SUCCESS for run in instance.get_runs()),
            seconds=240,
            what="a run that succeeds",
        )
        started_by = {run.tags["dagster/schedule_name"] for run in instance.get_runs()}

    assert started_by == {f"{GROUP}_compaction_schedule"}
    assert (lake.files("bronze.orders"), lake.ids("bronze.orders")) == (1, list(range(6)))

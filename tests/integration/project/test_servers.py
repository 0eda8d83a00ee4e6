"""The servers of the tests themselves: they keep strangers out, and nothing of them survives."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import fs
from support.lake_choice import skip_unless_ci
from support.processes import is_listening, wait_until
from support.servers.running import ServerMissing, Servers

PROGRAM = """
import sys, time
from pathlib import Path
from support.servers.running import Servers

with Servers.below(Path(sys.argv[1])) as servers:
    print(servers.postgres.port, servers.s3.endpoint.rpartition(":")[2], flush=True)
    time.sleep(600)
"""
HERE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_servers_go_with_the_process_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(HERE)}) as process:
        assert process.stdout is not None
        ports = [int(port) for port in process.stdout.readline().split()]
        assert all(map(is_listening, ports))
        process.send_signal(how)

    wait_until(lambda: not any(map(is_listening, ports)), seconds=30, what="The end of the servers")


def test_a_server_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "s3").write_text("a file, and no folder")

    with Servers.below(tmp_path) as servers:
        for _ in range(2):
            with pytest.raises(ServerMissing, match="S3 did not start"):
                _ = servers.s3


def test_the_store_refuses_a_wrong_secret(servers: Servers) -> None:
    right = servers.s3.file_system()
    wrong = fs.S3FileSystem(
        endpoint_override=servers.s3.endpoint,
        access_key=servers.s3.access_key_id,
        secret_key="wrong",
        region=servers.s3.region,
    )

    assert right.get_file_info("lake").type == fs.FileType.Directory
    with pytest.raises(OSError, match=r"ACCESS_DENIED|SIGNATURE|403"):
        wrong.get_file_info("lake")


@pytest.mark.requirement("S1-T097-101")
@pytest.mark.parametrize(("ci", "outcome"), [("true", ServerMissing), ("", pytest.skip.Exception)])
def test_a_missing_server_fails_in_continuous_integration_and_is_reported_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)

    with pytest.raises(outcome, match="no network"):
        skip_unless_ci(ServerMissing("S3 did not start: no network"))

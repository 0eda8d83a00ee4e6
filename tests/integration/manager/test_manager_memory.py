"""Streams longer than the memory that writing and reading them takes, and files of the size that was asked for."""

import json
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.lake import Lake, open_catalog
from support.memory_probe import MIB
from support.place import LocalPlace
from support.servers.running import BUCKET, Servers
from support.table_facts import live_files

TARGET = 16 * MIB


def measure(folder: Path, *options: str) -> dict[str, Any]:
    """Run the probe in a process of its own, where no other memory counts."""
    here = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-W", "error", "-m", "support.memory_probe", str(folder), *options]
    return json.loads(subprocess.run(command, cwd=here, check=True, capture_output=True, timeout=1500).stdout)


def sizes_by_partition(folder: Path) -> list[list[int]]:
    """Sizes of each partition's files in the order they were written."""
    sizes: dict[object, list[tuple[str, int]]] = defaultdict(list)
    with closing(open_catalog(folder)) as catalog:
        for path, file in live_files(Lake(LocalPlace.below(folder), catalog).table("bronze.long")).items():
            sizes[file.partition[0]].append((path, file.file_size_in_bytes))
    return [[size for _, size in sorted(found)] for found in sizes.values()]


@pytest.mark.slow
def test_a_stream_into_partitions_takes_less_memory_than_it_is_long(tmp_path: Path) -> None:
    report = measure(tmp_path, "--mib", "300", "--noise")

    assert report["rows"] == report["found"] > 3_000_000
    assert report["written_mib"] < 250
    for sizes in sizes_by_partition(tmp_path):
        assert all(0.5 * TARGET <= size <= 1.5 * TARGET for size in sizes[:-1])
        assert sizes[-1] <= 1.5 * TARGET


@pytest.mark.slow
def test_crumbs_for_many_partitions_are_gathered(tmp_path: Path) -> None:
    report = measure(tmp_path, "--mib", "40", "--partitions", "300", "--batch-rows", "500")

    assert report["rows"] == report["found"]
    assert report["files"] == 300
    assert report["written_mib"] < 400


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--noise"], []], ids=["noise", "compressible"])
def test_a_gigabyte_takes_a_fraction_of_its_size(tmp_path: Path, options: list[str]) -> None:
    report = measure(tmp_path, "--mib", "1024", *options)

    assert report["rows"] == report["found"] > 10_000_000
    assert report["written_mib"] < 500
    assert report["read_mib"] < 700
    for sizes in sizes_by_partition(tmp_path):
        assert all(0.5 * TARGET <= size <= 1.5 * TARGET for size in sizes[:-1])


@pytest.mark.slow
def test_more_partitions_than_a_process_may_have_files_open_are_written(tmp_path: Path) -> None:
    report = measure(tmp_path, "--mib", "200", "--noise", "--partitions", "2000", "--batch-rows", "20000")

    assert report["rows"] == report["found"]
    assert report["written_mib"] < 700


@pytest.mark.slow
def test_large_files_on_an_object_store_take_a_fraction_of_their_size(tmp_path: Path, servers: Servers) -> None:
    servers.s3.empty(BUCKET)
    store = {**servers.storage_config, "warehouse": f"s3://{BUCKET}/warehouse"}

    # A peak includes what Arrow's allocator keeps on a busy machine; memory without a bound is exceeded each time.
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        report = measure(folder, "--mib", "7600", "--noise", "--target-mib", "64", "--store", json.dumps(store))
        servers.s3.empty(BUCKET)
        if report["written_mib"] < 512 and report["read_mib"] < 512:
            break
    assert report["rows"] == report["found"]
    assert report["files"] >= 64
    assert report["written_mib"] < 512
    assert report["read_mib"] < 512

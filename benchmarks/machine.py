"""The machine of a benchmark, without names of people or paths."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("floe-dagster-iceberg", "pyiceberg", "pyarrow", "dagster", "pyspark")


def machine_facts() -> dict[str, Any]:
    """Processor, memory, versions, and the current load of the machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    details = Path("/proc/cpuinfo")
    if not details.is_file():
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in details.read_text().splitlines() if "model name" in line]
    return names[0] if names else platform.machine()

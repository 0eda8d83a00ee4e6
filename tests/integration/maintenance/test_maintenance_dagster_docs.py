"""What docs/maintenance.md shows is what happens."""

import re
from pathlib import Path

import pytest

from floe_dagster_iceberg.maintenance.settings import MAINTENANCE_ASSETS

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "maintenance.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.requirement("S2-SC-001")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_code_block_runs_as_it_stands(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "floe"))

    exec(compile(BLOCKS[number], f"maintenance.md, block {number + 1}", "exec"), {"__name__": "guide"})  # noqa: S102


def test_every_asset_is_explained() -> None:
    assert all(f"`iceberg_maintenance/{which}`" in GUIDE for which in MAINTENANCE_ASSETS)

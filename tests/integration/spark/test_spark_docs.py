"""What the page on scaling shows is what happens; in a process of its own, because its Spark is not the tests'."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "scaling.md"


@pytest.mark.slow
@pytest.mark.requirement("D7")
def test_the_code_of_the_page_on_scaling_runs_from_top_to_bottom(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = tmp_path / "page.py"
    code.write_text("\n".join(blocks))

    done = subprocess.run(
        [sys.executable, str(code)],
        env={**os.environ, "FLOE_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert len(blocks) == 5
    assert done.returncode == 0, done.stderr[-4000:]

"""What the pages on partitions and write modes show is what happens."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.requirement("S2-US8.1", "S2-US8.4", "S2-FR-038")
@pytest.mark.parametrize("page", ["partitions.md", "write-modes.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    names = {"__name__": "docs"}

    assert blocks
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page}, python block {number}", "exec"), names)  # noqa: S102 - the page is ours

"""What the README shows is what happens."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
TARGETS = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_has_code() -> None:
    assert BLOCKS


@pytest.mark.requirement("S2-SC-001", "S2-SC-002")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_code_block_runs_as_it_stands(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "floe"))

    exec(compile(BLOCKS[number], f"README.md, python block {number + 1}", "exec"), {"__name__": "readme"})  # noqa: S102

    # The first one makes a newcomer's first table.
    assert number or list(tmp_path.rglob("shop/orders/**/*.parquet"))


def test_every_make_command_in_the_readme_is_a_target() -> None:
    named = set(re.findall(r"`make ([a-z0-9-]+)", README))

    assert named >= {"demo", "test", "check"}
    assert named <= set(TARGETS)


def test_every_link_of_the_readme_leads_somewhere() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README)

    assert [link for link in linked if not (ROOT / link).exists()] == []
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(linked)

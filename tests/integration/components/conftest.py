"""A project as `dg` makes it, of which each test writes the YAML."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.component_project import ComponentProject


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComponentProject]:
    project = ComponentProject.create(tmp_path / "shop")
    monkeypatch.chdir(project.root)
    monkeypatch.syspath_prepend(project.root / "src")
    yield project
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]

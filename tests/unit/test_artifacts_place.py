"""Where a process finds its artifacts."""

from pathlib import Path

import pytest

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.errors import ValidationError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOE_ARTIFACTS", raising=False)


def write(path: Path, product: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"metadata": {{"product_name": "{product}"}}, "plugins": {{}}}}')


def test_there_may_be_none() -> None:
    assert CompiledArtifacts.from_environment() is None


@pytest.mark.requirement("S0-F3")
def test_the_default_place_is_looked_at() -> None:
    write(Path(".floe/compiled_artifacts.json"), "here")

    found = CompiledArtifacts.from_environment()

    assert found is not None
    assert found.product_name == "here"


@pytest.mark.parametrize(("variable", "product"), [("there.json", "there"), ("", "here")])
def test_the_variable_wins_unless_it_is_empty(variable: str, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path(".floe/compiled_artifacts.json"), "here")
    write(Path("there.json"), "there")
    monkeypatch.setenv("FLOE_ARTIFACTS", variable)

    found = CompiledArtifacts.from_environment()

    assert found is not None
    assert found.product_name == product


def test_a_variable_that_names_no_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_ARTIFACTS", "missing.json")

    with pytest.raises(ValidationError, match=r"'missing\.json' cannot be read"):
        CompiledArtifacts.from_environment()

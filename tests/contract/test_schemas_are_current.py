"""`docs/schemas/` says what the models say."""

import json
from pathlib import Path

import pytest

from scripts import export_schemas

RENDERED = export_schemas.render_schemas()


@pytest.mark.requirement("S2-FR-045", "S1-T102-107")
def test_the_schema_files_are_those_of_the_models() -> None:
    assert not export_schemas.find_differences(), "Run `make schemas`."


@pytest.mark.parametrize("name", RENDERED)
def test_every_property_of_a_schema_is_described(name: str) -> None:
    schema = json.loads(RENDERED[name])
    properties = [each.get("properties", {}) for each in (schema, *schema.get("$defs", {}).values())]

    assert not [key for each in properties for key, value in each.items() if not value.get("description")]


@pytest.mark.parametrize(
    ("name", "text"),
    [("TableSchema.json", "{}\n"), ("TableSchema.json", None), ("Gone.json", "{}\n")],
    ids=["stale", "missing", "left over"],
)
def test_a_file_that_differs_is_found_and_put_right(name: str, text: str | None, tmp_path: Path) -> None:
    export_schemas.write_schemas(tmp_path)
    (tmp_path / name).unlink(missing_ok=True) if text is None else (tmp_path / name).write_text(text)

    assert export_schemas.find_differences(tmp_path) == [name]
    export_schemas.write_schemas(tmp_path)
    assert not export_schemas.find_differences(tmp_path)

"""A project in the layout of create-dagster, in a folder of its own."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import dagster as dg

_FILES = {
    "pyproject.toml": """
        [project]
        name = "shop"
        version = "0.1.0"

        [tool.dg]
        directory_type = "project"

        [tool.dg.project]
        root_module = "shop"
        """,
    "src/shop/__init__.py": "",
    "src/shop/definitions.py": """
        from pathlib import Path

        from dagster import definitions, load_from_defs_folder


        @definitions
        def defs():
            return load_from_defs_folder(path_within_project=Path(__file__).parent)
        """,
    "src/shop/defs/__init__.py": "",
}


@dataclass(frozen=True)
class ComponentProject:
    root: Path

    @classmethod
    def create(cls, root: Path) -> Self:
        for name, text in _FILES.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())
        return cls(root)

    def write(self, name: str, component: str, attributes: str, **files: str) -> Path:
        """Write the YAML of a component, with the files that it refers to."""
        folder = self.root / "src" / "shop" / "defs" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file.replace("_sql", ".sql")).write_text(text)
        body = textwrap.indent(textwrap.dedent(attributes).strip("\n"), "  ")
        path = folder / "defs.yaml"
        path.write_text(f"type: floe_dagster_iceberg.components.{component}\nattributes:\n{body}\n")
        return path

    def load(self) -> dg.Definitions:
        return dg.load_from_defs_folder(path_within_project=self.root)

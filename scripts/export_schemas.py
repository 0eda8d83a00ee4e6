"""Export the JSON Schema of every public model, one file per model in `docs/schemas/`.

With `--check`, change nothing and fail if a file is stale, missing or left over.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from floe_dagster_iceberg import models

SCHEMAS: Final = Path(__file__).resolve().parent.parent / "docs" / "schemas"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def public_models() -> list[type[BaseModel]]:
    """The models that `floe_dagster_iceberg.models` exports, by name."""
    exported = (getattr(models, name) for name in sorted(models.__all__))
    return [model for model in exported if isinstance(model, type) and issubclass(model, BaseModel)]


def render_schemas() -> dict[str, str]:
    """File name to file text, the same on every machine."""
    schemas = {model.__name__: {"$schema": DIALECT, **model.model_json_schema()} for model in public_models()}
    return {f"{name}.json": json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in schemas.items()}


def find_differences(folder: Path = SCHEMAS) -> list[str]:
    """Names of the files that are stale, missing or left over."""
    rendered = render_schemas()
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*")}
    return sorted(name for name in rendered.keys() | written.keys() if rendered.get(name) != written.get(name))


def write_schemas(folder: Path = SCHEMAS) -> None:
    """Write the current schemas and remove others."""
    rendered = render_schemas()
    folder.mkdir(parents=True, exist_ok=True)
    for name in find_differences(folder):
        if name in rendered:
            (folder / name).write_text(rendered[name], encoding="utf-8")
        else:
            (folder / name).unlink()


def main() -> None:
    """Write the schemas, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="check only, change nothing")
    if not parser.parse_args().check:
        write_schemas()
        print(f"{len(public_models())} schemas in docs/schemas/")
    elif differences := find_differences():
        sys.exit(f"docs/schemas/ is out of date: {', '.join(differences)}. Run `make schemas`.")


if __name__ == "__main__":
    main()

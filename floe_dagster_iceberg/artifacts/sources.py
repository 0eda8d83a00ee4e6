"""Artifacts from files, text and objects, as a dict."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from floe_dagster_iceberg.errors import ValidationError

FILE_VARIABLE: Final = "FLOE_ARTIFACTS"
DEFAULT_FILE: Final = Path(".floe/compiled_artifacts.json")


def find_file() -> Path | None:
    """Return `$FLOE_ARTIFACTS`, whether or not the file exists, else `.floe/compiled_artifacts.json` if it exists."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def read(source: object) -> dict[str, Any]:
    """Read a path, text, a mapping, or a live object with `model_dump`."""
    match source:
        case Path():
            return read_file(source)
        case str() if "\n" in source or source.lstrip().startswith("{"):
            return read_text(source)
        case str():
            return read_file(Path(source))
        case Mapping():
            return dict(source)
        case _ if callable(dump := getattr(source, "model_dump", None)):
            # JSON mode writes enums and dates as the file would have them.
            return dict(dump(mode="json"))
        case _:
            raise ValidationError(
                f"Artifacts cannot be read from {type(source).__name__}. Give a path, a dict, JSON or YAML text."
            )


def read_file(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValidationError(
            f"Artifacts file '{path}' cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    return read_text(text, origin=f"file '{path}'")


def read_text(text: str, *, origin: str = "text") -> dict[str, Any]:
    """Read JSON or YAML text."""
    try:
        # JSON first: compilers write it, and the YAML parser is a hundred times slower.
        data = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        line = getattr(error, "lineno", None) or getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line})"
        # Not chained: the parser quotes the text around the error, which may hold a secret.
        raise ValidationError(f"Artifacts {origin} is neither JSON nor YAML{where}.") from None
    if not isinstance(data, dict):
        raise ValidationError(f"Artifacts {origin} holds {type(data).__name__}, not a mapping.")
    return data


def unwrap(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the artifacts inside a Kubernetes ConfigMap; others as they are."""
    if data.get("kind") != "ConfigMap":
        return dict(data)
    entries = data.get("data")
    if not isinstance(entries, Mapping) or not entries:
        raise ValidationError("The ConfigMap has no data. Put the artifacts below 'data'.")
    documents = [text for name, text in entries.items() if "artifacts" in str(name)] or list(entries.values())
    if len(documents) != 1 or not isinstance(documents[0], str):
        raise ValidationError(
            f"It is unclear which entry of the ConfigMap holds the artifacts: {', '.join(map(str, entries))}. "
            "Name one of them 'compiled_artifacts.json'."
        )
    return read_text(documents[0], origin="in the ConfigMap")

"""Anything that holds artifacts -> a dict."""

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
    """Where the artifacts of this process are: `$FLOE_ARTIFACTS`, else `.floe/compiled_artifacts.json` if it exists.

    A file that the variable names is returned unseen: that it is missing is an error to be told.
    """
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
            # JSON mode turns enums and dates into what the file would hold.
            return dict(dump(mode="json"))
        case _:
            raise ValidationError(
                f"Artifacts cannot be read from {type(source).__name__}. Give a path, a dict, JSON or YAML text."
            )


def read_file(path: Path) -> dict[str, Any]:
    """Read a file of JSON or YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValidationError(
            f"Artifacts file '{path}' cannot be read: {error.strerror}. Check the path and its rights."
        ) from error
    return read_text(text, origin=f"file '{path}'")


def read_text(text: str, *, origin: str = "text") -> dict[str, Any]:
    """Read JSON or YAML text."""
    try:
        # JSON first: it is what compilers write, and YAML takes a hundred times longer over it.
        data = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        line = getattr(error, "lineno", None) or getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line})"
        # Not chained: the parser quotes the text around the fault, which may hold a secret.
        raise ValidationError(f"Artifacts {origin} is neither JSON nor YAML{where}.") from None
    if not isinstance(data, dict):
        raise ValidationError(f"Artifacts {origin} holds {type(data).__name__}, not a mapping.")
    return data


def unwrap(data: Mapping[str, Any]) -> dict[str, Any]:
    """Look through a Kubernetes ConfigMap to the artifacts it carries."""
    if data.get("kind") != "ConfigMap":
        return dict(data)
    carried = data.get("data")
    if not isinstance(carried, Mapping) or not carried:
        raise ValidationError("The ConfigMap holds no data. Put the artifacts below 'data'.")
    documents = [text for name, text in carried.items() if "artifacts" in str(name)] or list(carried.values())
    if len(documents) != 1 or not isinstance(documents[0], str):
        raise ValidationError(
            f"It is unclear which entry of the ConfigMap holds the artifacts: {', '.join(map(str, carried))}. "
            "Name one of them 'compiled_artifacts.json'."
        )
    return read_text(documents[0], origin="in the ConfigMap")

"""`floe-iceberg init`: a small project to begin with."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from floe_dagster_iceberg.cli import starter
from floe_dagster_iceberg.errors import ValidationError

# Where each file of the starter goes. A dot in front would hide them from us, too.
_FILES: Final = {
    "definitions.py": "definitions.py",
    "workspace.yaml": "workspace.yaml",
    "compiled_artifacts.json": ".floe/compiled_artifacts.json",
    "gitignore": ".floe/.gitignore",
}


def write_starter(folder: Path) -> list[Path]:
    """Write the starter into a folder, which is made if needed.

    Returns:
        The files that were written.

    Raises:
        ValidationError: One of the files is there already, or the folder cannot be written to; nothing was written.
    """
    places = {name: folder / place for name, place in _FILES.items()}
    if taken := [str(place) for place in places.values() if place.exists()]:
        raise ValidationError(f"There already, and left as it is: {', '.join(taken)}. Name an empty or a new folder.")
    try:
        for name, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text((files(starter) / name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"'{folder}' cannot be written to: {error.strerror}. Name another folder.") from error
    return list(places.values())

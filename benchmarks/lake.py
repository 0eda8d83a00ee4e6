"""The benchmark's own lake: one SQLite catalog and one folder that all contenders work on.

A table that took long to make is frozen once and thawed before every timed operation, so that each of
them finds exactly the same version. Metadata files never change, so that is a matter of pointing the
catalog at the old one, and of linking back the files that an operation deleted.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

NAMESPACE = "bench"


class RowsDifferError(AssertionError):
    """Contenders ended with different rows, so their times cannot be compared."""


class Lake:
    """A catalog and a warehouse below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.warehouse.mkdir(parents=True)
        # Contenders must not fail because SQLite is busy.
        self.uri = f"sqlite:///{folder}/catalog.db?timeout=60"
        self.catalog = SqlCatalog("floe", uri=self.uri, warehouse=self.warehouse.as_uri(), schema_version="v1")
        self.catalog.create_namespace(NAMESPACE)

    @property
    def settings(self) -> dict[str, str]:
        """What a worker needs to open the same lake."""
        return {"uri": self.uri, "warehouse": self.warehouse.as_uri()}

    def close(self) -> None:
        """Close the database."""
        self.catalog.close()

    def table(self, name: str) -> Table:
        """A table, loaded by PyIceberg."""
        return self.catalog.load_table((NAMESPACE, name))

    def freeze(self, name: str) -> "FrozenTable":
        """Freeze the current version of a table."""
        location = _path(self.table(name).location())
        backup = self.folder / "frozen" / f"{name}-{os.urandom(4).hex()}"
        for file in _files(location):
            kept = backup / file.relative_to(location)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.hardlink_to(file)
        return FrozenTable(self, self.table(name).metadata_location, location, backup)

    def drop(self, *names: str) -> None:
        """Drop tables but keep their files."""
        for name in names:
            if self.catalog.table_exists((NAMESPACE, name)):
                self.catalog.drop_table((NAMESPACE, name))

    def delete_files(self, *names: str) -> None:
        """Drop tables and delete everything in their locations."""
        locations = {_path(self.table(name).location()) for name in names}
        self.drop(*names)
        for location in locations:
            shutil.rmtree(location)

    def check_equal_rows(self, *names: str) -> None:
        """Compare the rows of the contenders' tables.

        Raises:
            RowsDifferError: Two tables hold different rows.
        """
        first, *others = names
        expected = self.digest(first)
        for other in others:
            if (found := self.digest(other)) != expected:
                raise RowsDifferError(f"'{other}' does not hold the rows of '{first}': {found} is not {expected}.")

    def digest(self, name: str) -> list[dict[str, Any]]:
        """Every column of every day, summed up as integers, regardless of the order of rows."""
        rows = self.table(name).scan().to_arrow()
        numbers = {column: _as_number(rows.column(column)) for column in rows.column_names if column != "day"}
        counted = pa.table({"day": rows.column("day"), **numbers})
        sums: list[Any] = [([], "count_all"), *((column, "sum") for column in numbers)]
        days: list[dict[str, Any]] = counted.group_by("day").aggregate(sums).sort_by("day").to_pylist()
        return days


@dataclass(frozen=True)
class FrozenTable:
    """A version of a table that can be restored."""

    lake: Lake
    metadata_location: str
    location: Path
    backup: Path

    def thaw(self, name: str) -> None:
        """Restore this version as a table, replacing one of the same name."""
        for kept in _files(self.backup):
            file = self.location / kept.relative_to(self.backup)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.hardlink_to(kept)
        self.lake.drop(name)
        self.lake.catalog.register_table((NAMESPACE, name), self.metadata_location)

    def tidy(self, *names: str) -> None:
        """Drop restored tables, and delete files written after the freeze."""
        self.lake.drop(*names)
        for file in _files(self.location):
            if not (self.backup / file.relative_to(self.location)).exists():
                file.unlink()

    def discard(self) -> None:
        """Delete the frozen files."""
        shutil.rmtree(self.backup)


def _as_number(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers, whose sum is exact in any order; strings are represented by their lengths."""
    if pa.types.is_floating(values.type):
        return pc.round(pc.multiply(values, 1000.0)).cast(pa.int64())
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) else pc.binary_length(values)


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _files(folder: Path) -> Sequence[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]

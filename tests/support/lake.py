"""A real lake, asked by tests that do not believe the manager."""

from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from support.place import LocalPlace, Place

NAMESPACE = "bronze"


@dataclass
class Lake:
    """What a test asks when it does not want to believe the manager."""

    place: Place
    catalog: Catalog

    @property
    def warehouse(self) -> Path:
        """The folder of this machine where the files end up."""
        return self.place.warehouse

    def connect(self) -> Catalog:
        """A second, independent client of the same catalog."""
        return self.place.connect()

    def table(self, identifier: str) -> Table:
        return self.catalog.load_table(identifier)

    def rows(self, identifier: str) -> list[tuple[object, ...]]:
        """All rows as tuples, sorted, read by PyIceberg alone."""
        found = self.table(identifier).scan().to_arrow()
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def files(self, pattern: str = "**/*") -> set[Path]:
        """Files on disk below the warehouse."""
        return self.place.files(pattern)

    def data_files(self) -> set[Path]:
        return self.files("**/*.parquet")

    def metadata_versions(self, identifier: str) -> int:
        """How many versions of the table were ever committed."""
        return len(self.table(identifier).metadata.metadata_log) + 1


def open_catalog(folder: Path) -> Catalog:
    """The SQLite catalog of a folder."""
    return LocalPlace.below(folder).connect()

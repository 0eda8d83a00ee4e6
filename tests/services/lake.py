"""A real lake: a SQLite catalog and a warehouse folder of its own, asked by tests that do not believe the manager."""

from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

NAMESPACE = "bronze"


@dataclass
class Lake:
    """What a test asks when it does not want to believe the manager."""

    folder: Path
    catalog: SqlCatalog

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def connect(self) -> SqlCatalog:
        """A second, independent client of the same catalog."""
        return open_catalog(self.folder)

    def table(self, identifier: str) -> Table:
        return self.catalog.load_table(identifier)

    def rows(self, identifier: str) -> list[tuple[object, ...]]:
        """All rows as tuples, sorted, read by PyIceberg alone."""
        found = self.table(identifier).scan().to_arrow()
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def files(self, pattern: str = "**/*") -> set[Path]:
        """Files on disk below the warehouse."""
        return {path for path in self.warehouse.glob(pattern) if path.is_file()}

    def data_files(self) -> set[Path]:
        return self.files("**/*.parquet")

    def metadata_versions(self, identifier: str) -> int:
        """How many versions of the table were ever committed."""
        return len(self.table(identifier).metadata.metadata_log) + 1


def open_catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog("floe", uri=f"sqlite:///{folder}/catalog.db?timeout=60", warehouse=f"file://{folder}/warehouse")

"""What changed in a table, and how far a reader is."""

from enum import StrEnum
from typing import Self

from pydantic import Field

from floe_dagster_iceberg.models.base import FrozenModel, SnapshotId


class ChangesMode(StrEnum):
    """How the changes between two snapshots are read."""

    APPENDS = "appends"
    """Rows of added files; anything but appends is an error."""
    CHANGELOG = "changelog"
    """Inserted and deleted rows, as in Spark's `create_changelog_view`."""
    PARTITIONS = "partitions"
    """All rows of the partitions in which something changed."""


class Cursor(FrozenModel):
    """How far a reader of a table is: the table, by its UUID, and the last snapshot whose changes it has."""

    table_uuid: str = Field(description="UUID of the table, which another table of the same name does not have.")
    snapshot_id: SnapshotId = Field(description="The last snapshot whose changes were read.")

    def __str__(self) -> str:
        return f"{self.table_uuid}/{self.snapshot_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cursor as `str` writes it.

        >>> Cursor.parse("8e1f/42").snapshot_id
        42

        Raises:
            ValueError: It is no cursor.
        """
        table_uuid, _, snapshot_id = text.rpartition("/")
        return cls(table_uuid=table_uuid, snapshot_id=int(snapshot_id))

"""What one look at a table's metadata says, and what a later look needs of it."""

from collections.abc import Mapping
from typing import Final, Self

from pydantic import AwareDatetime, Field

from floe_dagster_iceberg.models import snapshot_properties
from floe_dagster_iceberg.models.base import FrozenModel, Items, SnapshotId
from floe_dagster_iceberg.models.identifiers import TableIdentifier

# What engines write into the summary of their snapshots, by the engine's name.
_APPLICATION_KEYS: Final = {
    "spark": "spark.app.id",
    "flink": "flink.job-id",
    "trino": "trino_query_id",
}


class SnapshotWriter(FrozenModel):
    """Who wrote a snapshot, as far as its summary says."""

    engine: str | None = Field(default=None, description="Engine, such as spark, flink or dagster.")
    version: str | None = Field(default=None, description="Version of the engine.")
    application: str | None = Field(default=None, description="The engine's application, job, query or run.")

    @classmethod
    def from_summary(cls, summary: Mapping[str, str]) -> Self:
        """Read the summary of a snapshot; all is None if the writer left no name."""
        if (run_id := summary.get(snapshot_properties.RUN_ID)) is not None:
            return cls(engine="dagster", application=run_id)
        named = (engine for engine, key in _APPLICATION_KEYS.items() if key in summary)
        engine = summary.get("engine-name") or next(named, None)
        application = summary.get(_APPLICATION_KEYS.get(engine or "", "app-id"), summary.get("app-id"))
        return cls(engine=engine, version=summary.get("engine-version"), application=application)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.engine, self.version, self.application))) or "unknown"


class TableState(FrozenModel):
    """What a look at a table leaves for the next one, which tells from it what has changed."""

    table_uuid: str = Field(description="Identity of the table; a table that is created again has another one.")
    snapshot_id: SnapshotId | None = Field(
        default=None, description="Newest snapshot of main; none for a table without one."
    )
    sequence_number: int = Field(
        default=0, ge=0, description="Sequence number of the table's last commit, on any branch."
    )
    data_version: str = Field(
        description="Id of the last snapshot of main that changed rows; the table's UUID while there is none."
    )
    last_updated: AwareDatetime | None = Field(
        default=None, description="When that snapshot was committed; none if it expired before the first look."
    )
    observed_at: AwareDatetime | None = Field(
        default=None, description="When the table was looked at; partitions that ended later are looked at then."
    )


class TableObservation(FrozenModel):
    """One look at the main branch of a table. It reads metadata only. What is not recorded in it is None."""

    table: TableIdentifier = Field(description="The table.")
    state: TableState = Field(description="What the next look needs of this one.")
    rows_changed: bool = Field(description="Whether the data version differs from that of the look before.")
    row_count: int | None = Field(default=None, description="Rows, as far as the summary tells with delete files.")
    data_files: int | None = Field(default=None, description="Data files.")
    total_bytes: int | None = Field(default=None, description="Bytes of the data and delete files.")
    snapshots: int | None = Field(default=None, description="Snapshots that the table keeps.")
    writer: SnapshotWriter = Field(default_factory=SnapshotWriter, description="Who made the last change of rows.")
    added_rows: int | None = Field(default=None, description="Rows in files that were added since the look before.")
    added_files: int | None = Field(default=None, description="Data files that were added since the look before.")
    new_snapshots: Items[SnapshotId] | None = Field(
        default=None,
        description="Snapshots that changed rows since the look before, oldest first; none if that is not known: at "
        "the first look, after a rollback, or if the snapshots in between have expired.",
    )
    note: str | None = Field(default=None, description="Why it is not known what has changed, if it is not.")

    @property
    def data_version(self) -> str:
        """The data version in Dagster."""
        return self.state.data_version

"""The environments of a catalog, which are branches `env-<name>` of its tables: list, compare, publish, drop."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from pydantic import AwareDatetime, Field
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_all_entries, read_manifests
from floe_dagster_iceberg._pyiceberg.transaction import history_of, summary_property
from floe_dagster_iceberg.environments import INTERNAL_PREFIX, branch_of, environment_name, environment_of
from floe_dagster_iceberg.errors import NoSuchTableError, SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.models import SnapshotInfo, snapshot_properties
from floe_dagster_iceberg.models.base import FrozenModel, Items, nearest
from floe_dagster_iceberg.table.joint_publication import PublicationResult
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.selection import EVERY_TABLE, select_tables


class EnvironmentInfo(FrozenModel):
    """An environment and the tables that it has written."""

    name: str = Field(description="The environment.")
    branch: str = Field(description="Its branch in each table.")
    tables: Items[str] = Field(description="Tables with that branch.")
    last_written: AwareDatetime = Field(description="When the newest snapshot of its branches was committed.")


class TableDifference(FrozenModel):
    """What an environment's branch of a table has that main lacks, and the reverse; from metadata alone."""

    table: str = Field(description="The table.")
    rows_in_main: int = Field(description="Rows of main.")
    rows_in_environment: int = Field(description="Rows of the environment's branch.")
    rows_added: int = Field(description="Rows in files that only the environment has.")
    rows_removed: int = Field(description="Rows in files that only main has.")
    files_added: int = Field(description="Data files that only the environment has.")
    files_removed: int = Field(description="Data files that only main has.")
    delete_files: int = Field(description="Delete files that only one of them has: their rows are not counted.")
    partitions: Items[str] = Field(description="Iceberg partitions of those files; none for an unpartitioned table.")
    columns_added: Items[str] = Field(description="Columns that main's newest snapshot was written without.")
    commits: int = Field(description="Snapshots of the environment since it left main.")
    main_commits: int = Field(description="Snapshots of main since then; publishing replays on top of them.")

    @property
    def is_empty(self) -> bool:
        """Whether the two hold the same files."""
        return not (self.files_added or self.files_removed or self.delete_files)


class EnvironmentDiff(FrozenModel):
    """How an environment differs from main."""

    name: str = Field(description="The environment.")
    tables: Items[TableDifference] = Field(description="The tables that it has written.")


class DroppedEnvironment(FrozenModel):
    """An environment whose branches were removed."""

    name: str = Field(description="The environment.")
    tables: Items[str] = Field(description="Tables that had its branch.")
    empty_tables: Items[str] = Field(description="Those of them that it created, and that main has no rows of.")


class IcebergEnvironments:
    """The environments of a catalog."""

    def __init__(self, manager: IcebergTableManager) -> None:
        self._manager = manager

    def list(self) -> "Sequence[EnvironmentInfo]":
        """All environments, by name. Loads the metadata of every table."""
        found: dict[str, dict[str, datetime]] = {}
        for table in self._tables():
            for branch, ref in table.metadata.refs.items():
                head = table.metadata.snapshot_by_id(ref.snapshot_id)
                if (name := environment_of(branch)) is not None and head is not None:
                    written = SnapshotInfo.from_pyiceberg_snapshot(head).timestamp
                    found.setdefault(name, {})[table_name(table)] = written
        return [
            EnvironmentInfo(name=name, branch=branch_of(name), tables=sorted(tables), last_written=max(tables.values()))
            for name, tables in sorted(found.items())
        ]

    def diff(self, name: str) -> EnvironmentDiff:
        """Compare an environment with main, by manifests; no data file is read.

        Raises:
            ValidationError: No table has such an environment.
        """
        name, tables = self._find(name)
        return EnvironmentDiff(name=name, tables=[_difference(table, branch_of(name)) for table in tables])

    def publish(self, name: str) -> PublicationResult:
        """Put the changes of an environment onto main, in all its tables at once, and remove its branches.

        What others committed to main meanwhile stays: the changes are replayed on top.

        Raises:
            ValidationError: No table has such an environment.
            CommitConflictError: Production has changed rows that the environment replaced; nothing was changed.
            CommitOutcomeUnknownError: The catalog became unreachable; publishing again is safe.
            WriteError: The catalog cannot publish several tables at once, and some are published. Publish again.
        """
        name, tables = self._find(name)
        return self._manager.publish_branches(tables, branch_of(name))

    def drop(self, name: str) -> DroppedEnvironment:
        """Remove the branches of an environment; its snapshots expire with the others.

        A table that the environment created stays, without rows: production may have begun to use it.

        Raises:
            ValidationError: No table has such an environment.
        """
        name, tables = self._find(name)
        for table in tables:
            for ref in (branch_of(name), *_branches_of_audits(table, name)):
                # Another process may have dropped it, and the environment must not be left half dropped.
                with suppress(SnapshotNotFoundError, NoSuchTableError):
                    self._manager.remove_ref(table, ref)
        return DroppedEnvironment(
            name=name, tables=[table_name(table) for table in tables], empty_tables=_without_rows(tables)
        )

    def _find(self, name: str) -> "tuple[str, Sequence[Table]]":
        """The environment of a name, or of the Git branch that it was made of, and its tables."""
        name = environment_name(name)
        tables = [table for table in self._tables() if branch_of(name) in table.metadata.refs]
        if tables:
            return name, tables
        known = [each.name for each in self.list()]
        guess = nearest(name, known)
        listed = f"Environments are {', '.join(known)}." if known else "There are no environments."
        raise ValidationError(
            f"No table has environment '{name}'. {f'Did you mean {guess!r}?' if guess else listed} An environment "
            "begins when a run in it first writes a table."
        )

    def _tables(self) -> Iterator[Table]:
        for identifier in select_tables(self._manager, [EVERY_TABLE]).found:
            try:
                yield self._manager.load_table(identifier)
            except NoSuchTableError:
                # Dropped since they were listed.
                continue


def _branches_of_audits(table: Table, name: str) -> list[str]:
    """Branches on which audits of an environment have left rows: rejected ones, and those of killed processes."""
    heads = {
        ref: table.metadata.snapshot_by_name(ref) for ref in table.metadata.refs if ref.startswith(INTERNAL_PREFIX)
    }
    return [
        ref for ref, head in heads.items() if head and summary_property(head, snapshot_properties.ENVIRONMENT) == name
    ]


def _without_rows(tables: Sequence[Table]) -> list[str]:
    heads = [(table_name(table), table.metadata.current_snapshot()) for table in tables]
    return [name for name, head in heads if head is None or (head.parent_snapshot_id is None and not _rows(head))]


def _rows(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None else SnapshotInfo.from_pyiceberg_snapshot(snapshot).total_records


def _difference(table: Table, branch: str) -> TableDifference:
    metadata = table.metadata
    ours, main = metadata.snapshot_by_name(branch), metadata.snapshot_by_name(MAIN_BRANCH)
    added, removed = _files_apart(table, ours, main)
    changed = [*added, *removed]
    data = [[file for file in files if file.content is DataFileContent.DATA] for files in (added, removed)]
    ids = [[snapshot.snapshot_id for snapshot in history_of(metadata, head)] for head in (ours, main)]
    names = {column for column in _columns(table, ours) if column not in _columns(table, main)} if main else set()
    return TableDifference(
        table=table_name(table),
        rows_in_main=_rows(main),
        rows_in_environment=_rows(ours),
        rows_added=sum(file.record_count for file in data[0]),
        rows_removed=sum(file.record_count for file in data[1]),
        files_added=len(data[0]),
        files_removed=len(data[1]),
        delete_files=len(changed) - len(data[0]) - len(data[1]),
        partitions=sorted({_partition(table, file) for file in changed} - {""}),
        columns_added=sorted(names),
        commits=len(set(ids[0]) - set(ids[1])),
        main_commits=len(set(ids[1]) - set(ids[0])),
    )


def _files_apart(table: Table, ours: Snapshot | None, main: Snapshot | None) -> tuple[list[DataFile], list[DataFile]]:
    """The files of only one of two snapshots; manifests that they share are not read."""
    lists = [{each.manifest_path: each for each in read_manifests(snapshot, table.io)} for snapshot in (ours, main)]
    shared = lists[0].keys() & lists[1].keys()
    files = []
    for manifests in lists:
        own = [manifest for path, manifest in manifests.items() if path not in shared]
        entries = (entry for each in read_all_entries(own, table.io) for entry in each)
        files.append({entry.data_file.file_path: entry.data_file for entry in entries})
    added, removed = ([files[a][path] for path in files[a].keys() - files[b].keys()] for a, b in ((0, 1), (1, 0)))
    return added, removed


def _partition(table: Table, file: DataFile) -> str:
    spec = table.specs()[file.spec_id]
    return spec.partition_to_path(file.partition, table.schema()) if spec.fields else ""


def _columns(table: Table, snapshot: Snapshot | None) -> Sequence[str]:
    schema = None if snapshot is None or snapshot.schema_id is None else table.schemas().get(snapshot.schema_id)
    return (schema or table.schema()).column_names

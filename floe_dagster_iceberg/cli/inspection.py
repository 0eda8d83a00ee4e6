"""`floe-iceberg tables` and `inspect`: all tables at a glance, and everything about one of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pyiceberg.table import Table
from rich.console import Console

from floe_dagster_iceberg.cli import reports
from floe_dagster_iceberg.cli.console import Listing, cell, heading, short_run
from floe_dagster_iceberg.cli.lakehouse import Lakehouse
from floe_dagster_iceberg.errors import FloeStorageError, ScanError, UnsupportedMetadataError
from floe_dagster_iceberg.maintenance.health_checks import find_breaches
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy import PolicySource
from floe_dagster_iceberg.models import ChangesMode, HealthTier, SnapshotInfo, TableHealth, TableIdentifier
from floe_dagster_iceberg.models.quantities import counted, format_bytes
from floe_dagster_iceberg.secrets import describe_failure, redact, redact_properties
from floe_dagster_iceberg.table.changes.cursors import TableReader
from floe_dagster_iceberg.table.changes.plan import plan_changes
from floe_dagster_iceberg.table.maintenance.health import measure_health
from floe_dagster_iceberg.table.maintenance.raw_metadata import RawMetadata
from floe_dagster_iceberg.table.names import to_identifier
from floe_dagster_iceberg.table.selection import TableReaders

# The sections of a policy that apply to a single table, and the settings that are always shown.
_OF_A_TABLE: Final = ("compaction.", "expiry.", "orphans.", "manifests.", "thresholds.", "engine")
_SHOWN: Final = frozenset(
    {
        "compaction.enabled",
        "compaction.target_file_size_bytes",
        "compaction.min_input_files",
        "expiry.enabled",
        "expiry.max_age",
        "expiry.min_snapshots_to_keep",
        "orphans.enabled",
        "orphans.older_than",
        "orphans.grace",
        "manifests.enabled",
        "manifests.min_manifests",
    }
)


def list_tables(lakehouse: Lakehouse, glob: str) -> reports.TablesReport:
    """Read the metadata of every table; one that cannot be read is listed with its error."""
    selected = lakehouse.select(glob)
    return reports.TablesReport(
        catalog=lakehouse.iceberg.catalog_name,
        tables=[_table_entry(lakehouse, table) for table in selected.found],
        skipped=dict(selected.skipped),
    )


def show_tables(report: reports.TablesReport, console: Console) -> None:
    """Print a line per table."""
    for namespace, reason in report.skipped.items():
        console.print(cell(f"The tables of namespace '{namespace}' cannot be listed. {reason}", "yellow"))
    if not report.tables:
        console.print(cell(f"Catalog '{report.catalog}' has no tables yet."))
        return
    numbers = ("rows", "files", "size", "snapshots")
    listing = Listing("table", *numbers, "last written (UTC)", "by run", "partition", numbers=numbers)
    for entry in report.tables:
        written = entry.snapshot
        listing.add(
            entry.table,
            entry.rows,
            entry.data_files,
            None if entry.total_bytes is None else format_bytes(entry.total_bytes),
            entry.snapshots,
            cell("unreadable", "red") if entry.error else "never" if written is None else written.committed_at,
            written and short_run(written.run_id),
            written and written.partition_key,
        )
    listing.print(console)
    for entry in report.tables:
        if (message := entry.error or entry.warning) is not None:
            console.print()
            console.print(cell(f"{entry.table}: {message}", "red" if entry.error else "yellow"))


def _table_entry(lakehouse: Lakehouse, name: TableIdentifier) -> reports.TableEntry:
    try:
        table = lakehouse.tables.load_table(name)
        health = measure_health(table, tier=HealthTier.SUMMARY)
    except UnsupportedMetadataError as error:
        return _partly_known_entry(name, error)
    # Of any kind: one table that cannot be read must not hide the others.
    except Exception as error:  # noqa: BLE001
        message = redact(str(error)) if isinstance(error, FloeStorageError) else describe_failure(error)
        return reports.TableEntry(table=str(name), error=message)
    current = table.current_snapshot()
    found = [] if current is None else [SnapshotInfo.from_pyiceberg_snapshot(current)]
    return _entry(health, next(iter(snapshot_entries(table, found)), None))


def _partly_known_entry(name: TableIdentifier, error: UnsupportedMetadataError) -> reports.TableEntry:
    message = redact(str(error))
    if not error.document:
        return reports.TableEntry(table=str(name), error=message)
    raw = RawMetadata(error)
    found = [] if raw.current_snapshot is None else [raw.current_snapshot]
    return _entry(raw.health(name), next(iter(_raw_snapshot_entries(raw, found)), None), warning=message)


def _entry(
    health: TableHealth, snapshot: reports.SnapshotEntry | None, *, warning: str | None = None
) -> reports.TableEntry:
    return reports.TableEntry(
        table=str(health.table),
        rows=health.records,
        data_files=health.data_files,
        total_bytes=health.total_bytes,
        snapshots=health.snapshots,
        snapshot=snapshot,
        warning=warning,
    )


def inspect(lakehouse: Lakehouse, name: str, *, snapshots: int) -> reports.InspectReport:
    """Read a table's metadata, manifests and newest snapshots; no data file is opened.

    Raises:
        NoSuchTableError: There is no such table.
        ScanError: A metadata file is missing or corrupt.
    """
    try:
        table = lakehouse.load_table(name)
    except UnsupportedMetadataError as error:
        return _inspect_raw(to_identifier(lakehouse.full_name(name)), error, snapshots=snapshots)
    identifier = to_identifier(table)
    effective, problem = lakehouse.policy_of(table)
    policy = effective.policy
    health = TableMaintenance(lakehouse.tables).health(identifier, policy)
    return reports.InspectReport(
        table=str(identifier),
        location=table.location(),
        format_version=table.metadata.format_version,
        columns=[
            reports.Column(
                id=field.field_id, name=field.name, type=str(field.field_type), required=field.required, doc=field.doc
            )
            for field in table.schema().fields
        ],
        partitioning=[
            reports.PartitionEntry(
                name=field.name, transform=str(field.transform), column=_column(table, field.source_id)
            )
            for field in table.spec().fields
        ],
        sort_order=[
            f"{field.transform}({_column(table, field.source_id)}) {field.direction}"
            for field in table.sort_order().fields
        ],
        properties=redact_properties(dict(sorted(table.properties.items()))),
        refs=[
            reports.RefEntry(name=ref, type=str(where.snapshot_ref_type.value), snapshot_id=where.snapshot_id)
            for ref, where in sorted(table.metadata.refs.items())
        ],
        health=health,
        faults=[
            reports.BreachEntry(message=breach.sentence, grave=breach.grave, remedy=breach.remedy)
            for breach in find_breaches(health, policy.thresholds)
        ],
        policy=[] if problem else reports.PolicyEntry.of(effective, *_OF_A_TABLE),
        warnings=[] if problem is None else [problem],
        readers=[_reader_entry(table, reader) for reader in TableReaders(lakehouse.tables).readers_of(table)],
        snapshots=snapshot_entries(table, lakehouse.tables.list_snapshots(identifier, limit=snapshots)),
    )


def _reader_entry(table: Table, reader: TableReader) -> reports.ReaderEntry:
    position = reader.cursor.snapshot_id
    try:
        behind = len(plan_changes(table, mode=ChangesMode.CHANGELOG, since=position).steps)
    except ScanError:
        behind = None
    return reports.ReaderEntry(table=reader.table, snapshot_id=position, behind=behind)


def _inspect_raw(name: TableIdentifier, error: UnsupportedMetadataError, *, snapshots: int) -> reports.InspectReport:
    """What is known of a table whose metadata PyIceberg cannot parse."""
    raw = RawMetadata(error)
    names = {column.get("id"): str(column.get("name")) for column in raw.columns}
    return reports.InspectReport(
        table=str(name),
        location=raw.location,
        format_version=raw.format_version,
        columns=[
            reports.Column(
                id=int(column.get("id", 0)),
                name=str(column.get("name")),
                type=_shown_type(column.get("type")),
                required=bool(column.get("required")),
                doc=column.get("doc"),
            )
            for column in raw.columns
        ],
        partitioning=[
            reports.PartitionEntry(
                name=str(field.get("name")),
                transform=str(field.get("transform")),
                column=names.get(field.get("source-id"), "unknown"),
            )
            for field in raw.partition_fields
        ],
        sort_order=[],
        properties=redact_properties(dict(sorted(raw.properties.items()))),
        refs=[
            reports.RefEntry(name=ref, type=str(where.get("type")), snapshot_id=_snapshot_of(where))
            for ref, where in sorted(raw.refs.items())
        ],
        health=raw.health(name),
        faults=[],
        policy=[],
        warnings=[redact(str(error))],
        snapshots=_raw_snapshot_entries(raw, raw.snapshots[:snapshots]),
    )


def _raw_snapshot_entries(raw: RawMetadata, snapshots: Iterable[SnapshotInfo]) -> list[reports.SnapshotEntry]:
    refs = {ref: _snapshot_of(where) for ref, where in sorted(raw.refs.items())}
    return [
        reports.SnapshotEntry.from_snapshot(
            snapshot, [ref for ref, snapshot_id in refs.items() if snapshot_id == snapshot.snapshot_id]
        )
        for snapshot in snapshots
    ]


def _snapshot_of(ref: Mapping[str, object]) -> int:
    return int(str(ref.get("snapshot-id", 0)))


def _shown_type(kind: object) -> str:
    return str(kind.get("type")) if isinstance(kind, Mapping) else str(kind)


def snapshot_entries(table: Table, snapshots: Iterable[SnapshotInfo]) -> list[reports.SnapshotEntry]:
    """Snapshots with their branches and tags."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, ref in sorted(table.metadata.refs.items()):
        names[ref.snapshot_id].append(name)
    return [reports.SnapshotEntry.from_snapshot(snapshot, names[snapshot.snapshot_id]) for snapshot in snapshots]


def show(report: reports.InspectReport, console: Console) -> None:
    """Print a report, section by section."""
    console.print(cell(report.table, "bold"))
    console.print(cell(f"{report.location}, format version {report.format_version}"))
    _show_columns(report, console)
    heading(console, "Partitioning")
    fields = ", ".join(f"{field.name} = {field.transform}({field.column})" for field in report.partitioning)
    console.print(cell(fields or "none"))
    if report.sort_order:
        console.print(cell(f"sorted by {', '.join(report.sort_order)}"))
    _show_health(report, console)
    if not report.warnings:
        show_policy([entry for entry in report.policy if entry.name in _SHOWN or is_decided(entry)], console)
    if report.properties:
        heading(console, "Properties")
        for name, value in report.properties.items():
            console.print(cell(f"{name} = {value}"))
    if report.readers:
        heading(console, "Incremental readers")
        for reader in report.readers:
            behind = "its next snapshots have expired" if reader.behind is None else f"{reader.behind} snapshots behind"
            console.print(cell(f"{reader.table}: has read up to {reader.snapshot_id}, {behind}"))
    heading(console, "Snapshots, newest first")
    show_snapshots(report.snapshots, console)
    if (more := report.health.snapshots - len(report.snapshots)) > 0:
        console.print(f"and {more} older; --snapshots {report.health.snapshots} shows them")


def show_snapshots(snapshots: Sequence[reports.SnapshotEntry], console: Console) -> None:
    """Print a line per snapshot, with the run and the partition that wrote it."""
    if not snapshots:
        console.print("none yet")
        return
    numbers = ("rows", "total")
    listing = Listing("snapshot", "committed (UTC)", "operation", *numbers, "run", "partition", "refs", numbers=numbers)
    for entry in snapshots:
        listing.add(
            str(entry.snapshot_id),
            entry.committed_at,
            entry.operation,
            _change(entry),
            entry.total_records,
            short_run(entry.run_id),
            entry.partition_key,
            ", ".join(entry.refs),
        )
    listing.print(console)


def show_policy(policy: Sequence[reports.PolicyEntry], console: Console) -> None:
    """Print a line per value, with its source."""
    heading(console, "Maintenance policy")
    if not policy:
        console.print("the package's defaults")
        return
    listing = Listing("setting", "value", "decided by")
    for entry in policy:
        listing.add(entry.name, entry.value, entry.source)
    listing.print(console)


def is_decided(entry: reports.PolicyEntry) -> bool:
    """Whether a value is not the package's default."""
    return entry.source is not PolicySource.DEFAULT


def _show_columns(report: reports.InspectReport, console: Console) -> None:
    heading(console, "Columns")
    # The types of nested columns are long.
    listing = Listing("name", "id", "NULL", "type", "meaning", numbers=("id",), wrapped="type")
    for column in report.columns:
        listing.add(column.name, column.id, "no" if column.required else "yes", column.type, column.doc)
    listing.print(console)


def _show_health(report: reports.InspectReport, console: Console) -> None:
    heading(console, "Health")
    for breach in report.faults:
        word, style = ("bad", "bold red") if breach.grave else ("warning", "yellow")
        console.print(cell(f"{word}: {breach.message}", style))
    if not report.faults:
        console.print(cell("healthy", "green"))
    console.print(cell(", ".join(_measures(report.health))))


def _measures(health: TableHealth) -> Iterator[str]:
    files = f"{counted(health.data_files, 'file')} ({format_bytes(health.total_bytes)})"
    yield f"{counted(health.records, 'row')} in {files}"
    yield f"{health.small_files or 0:,} of them small"
    yield counted(health.delete_files, "delete file")
    yield counted(health.partitions or 0, "partition")
    yield counted(health.manifests or 0, "manifest")
    yield counted(health.snapshots, "snapshot")
    yield f"metadata of {format_bytes(health.metadata_json_bytes or 0)}"


def _change(entry: reports.SnapshotEntry) -> str:
    added = f"+{entry.added_records:,}" if entry.added_records or not entry.deleted_records else ""
    removed = f"-{entry.deleted_records:,}" if entry.deleted_records else ""
    return " ".join(filter(None, (added, removed)))


def _column(table: Table, field_id: int) -> str:
    return table.schema().find_column_name(field_id) or f"column {field_id}"

"""From an output's Dagster context to a write, and from its result to metadata.

Separate from the IO managers so that loading a code location does not load PyIceberg and Arrow.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dagster import MetadataValue, OutputContext
from pyiceberg.manifest import DataFile
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg import run_identity
from floe_dagster_iceberg._pyiceberg.manifest_reader import added_files
from floe_dagster_iceberg.asset_metadata import build_output_metadata, declared_columns
from floe_dagster_iceberg.asset_settings import AssetSettings
from floe_dagster_iceberg.environments import branch_of
from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.incremental import (
    ReadChanges,
    changes_metadata,
    changes_read,
    cursor_properties,
    position_check,
    replaces_everything,
)
from floe_dagster_iceberg.io_managers.engines import Engine, StagedWrite
from floe_dagster_iceberg.io_managers.managers import name_of, output_settings, owner_of
from floe_dagster_iceberg.models import CommitStrategy, WriteMode
from floe_dagster_iceberg.models.partition_slice import PartitionSlice
from floe_dagster_iceberg.models.quantities import counted, format_bytes
from floe_dagster_iceberg.models.writing import FORMAT_VERSION, FORMAT_VERSIONS, EvolutionMode, MergeRules, RowsOutside
from floe_dagster_iceberg.partitions import build_slice, derive_layout, load_slice, partitions_def_of
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.filter.partition_slice import match_rows, to_expression
from floe_dagster_iceberg.table.filter.row_filter import CheckedFilter, FileMatcher
from floe_dagster_iceberg.table.manager.repair import MetadataRepair
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, describe_written
from floe_dagster_iceberg.telemetry.metrics import count_deduplicated, count_written

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.managers import IcebergIOManagerBase


# Rows times partitions; beyond that, counting the rows of each partition takes longer than it is worth.
_MOST_COMPARISONS: Final = 300_000_000
_MOST_TRIES_PER_FILE: Final = 5


def store_output(io_manager: "IcebergIOManagerBase", context: OutputContext, data: Any) -> None:
    """Write data into the table of an output, and report the result as metadata."""
    started = time.perf_counter()
    known = {attrs.CATALOG: io_manager.iceberg.catalog_name, **run_identity.describe_run(context)}
    with run_identity.telemetry_of(context).operation("handle_output", known) as operation:
        notes = run_identity.notes_of_step(context)
        read = changes_read(owner_of(context), notes) if notes else {}
        write = build_table_write(io_manager, context, read)
        strategy = CommitStrategy.MERGE_COMMIT if write.merge_manifests else CommitStrategy.FAST_APPEND
        operation.set_attributes(
            {
                **describe_table(write.table),
                attrs.WRITE_MODE: write.mode.value,
                attrs.COMMIT_STRATEGY: strategy.value,
            }
        )
        engine = data.engine if isinstance(data, StagedWrite) else engine_for(io_manager, data, context)
        operation.attributes[attrs.ENGINE] = engine.name
        repairs: list[MetadataRepair] = []

        def on_repair(repair: MetadataRepair) -> None:
            context.log.warning(str(repair))
            repairs.append(repair)

        result = data.publish() if isinstance(data, StagedWrite) else engine.write(data, write, on_repair)
        operation.set_attributes(
            {
                **describe_written(result.snapshot),
                attrs.ATTEMPTS: result.attempts,
                attrs.DEDUPLICATED: result.deduplicated,
                attrs.TABLE_CREATED: result.created,
            }
        )
        operation.sentence = _describe_write(operation.attributes, deduplicated=result.deduplicated)
        if result.deduplicated:
            count_deduplicated(operation.attributes)
        else:
            count_written(operation.attributes)
    if result.handed_over is not None:
        context.log.info("Spark wrote '%s': %s.", write.table, result.handed_over)
    if write.is_format_version_set and result.table.metadata.format_version != write.format_version:
        _warn_of_format_version(context, write, result.table.metadata.format_version)
    partitions = len(context.asset_partition_keys) if context.has_asset_partitions else 0
    seconds = time.perf_counter() - started
    metadata = build_output_metadata(
        result,
        write,
        partitions=partitions,
        seconds=seconds,
        repair=next(iter(repairs), None),
        catalog=io_manager.iceberg.catalog_of_table_names,
    )
    more = _report_rows_before(context, write, result) if write.mode is WriteMode.APPEND else {}
    more = {**more, **data.metadata} if isinstance(data, StagedWrite) else more
    context.add_output_metadata({**metadata, **more, **(changes_metadata(read) if read else {})})
    if partitions > 1:
        try:
            with translate_errors(io_manager.iceberg.catalog_name, table=write.table):
                _report_partitions(io_manager, context, write, result)
        except FloeStorageError as error:
            # The rows are committed; a run must not fail because they cannot be counted.
            context.log.warning("The rows of each partition of '%s' could not be counted: %s", write.table, error)
    if context.has_asset_key:
        version = str(result.snapshot.snapshot_id)
        if write.environment is not None:
            # A preview must not look like what production has materialized.
            version = f"{version}@{write.environment}"
        run_identity.set_data_version(context, context.asset_key, version)


def _describe_write(written: Mapping[str, Any], *, deduplicated: bool) -> str:
    """One sentence about a write by the attributes of its operation, for the log."""
    partition, snapshot_id = written.get(attrs.PARTITION_KEY), written[attrs.SNAPSHOT_ID]
    where = f"{written[attrs.TABLE]} {partition}" if partition else written[attrs.TABLE]
    if deduplicated:
        return f"{where}: already written by an earlier attempt, snapshot {snapshot_id}"
    files = f"{counted(written[attrs.FILES_ADDED], 'file')} ({format_bytes(written[attrs.BYTES_ADDED])})"
    rows_removed = written[attrs.RECORDS_REMOVED]
    removed = f", {counted(rows_removed, 'row')} removed" if rows_removed else ""
    return f"{where}: {counted(written[attrs.RECORDS_ADDED], 'row')} in {files}{removed}, snapshot {snapshot_id}"


def build_table_write(
    io_manager: "IcebergIOManagerBase", context: OutputContext, read: Mapping[str, ReadChanges]
) -> TableWrite:
    """The write of an output, without its rows; `read` is what its incremental inputs have read."""
    settings = output_settings(context)
    defaults = io_manager.iceberg.table_manager.config.default_table_properties
    keys = list(context.asset_partition_keys) if context.has_asset_partitions else []
    environment = io_manager.iceberg.environment_name
    run = run_identity.load_run_identity(context, environment)
    of_run = run_identity.build_snapshot_properties(context, run, keys)
    idempotency_key = run_identity.build_idempotency_key(context, run, keys)
    asked = settings.new_format_version or io_manager.format_version or defaults.get(FORMAT_VERSION)
    declared = declared_columns({**(context.definition_metadata or {}), **(context.output_metadata or {})})
    evolution = EvolutionMode.WIDEN if io_manager.schema_evolution_enabled else EvolutionMode.NONE
    strategy = settings.commit_strategy or io_manager.commit_strategy
    table = io_manager.table_of(context, settings)
    replaces = bool(read) and replaces_everything(read)
    columns: dict[str, Any] = {
        "partition_expr": settings.partition_expr,
        "partition_column": io_manager.partition_column,
    }
    return TableWrite(
        idempotency_key=idempotency_key,
        table=table,
        mode=_write_mode(io_manager, context, settings, replaces=replaces),
        scope=RowScope(
            load_slice(context, **columns),
            rows_outside=_rows_outside(settings.rows_outside_partition or io_manager.rows_outside_partition),
            naive_timezone=settings.naive_timezone,
        ),
        layout=settings.partition_spec or (lambda: derive_layout(partitions_def_of(context), **columns)),
        merge=_merge_rules(settings, replaces=replaces),
        evolution=settings.schema_evolution or evolution,
        properties=settings.properties,
        default_properties=defaults,
        snapshot_properties={**settings.snapshot_properties, **of_run, **(cursor_properties(read) if read else {})},
        branch=settings.branch or MAIN_BRANCH if environment is None else branch_of(environment),
        environment=environment,
        merge_manifests=strategy is CommitStrategy.MERGE_COMMIT,
        sort_by=settings.sort_by,
        column_docs={column.name: column.description for column in declared if column.description},
        create=io_manager.auto_create_tables,
        # Runs of one job may write at the same time; each reads the snapshot that it wrote.
        last_write_wins=not context.has_asset_key,
        precondition=position_check(table, idempotency_key, read),
        **({} if asked is None else _format_version(asked)),
    )


def _format_version(asked: int | str) -> dict[str, Any]:
    """The format version of a new table that is set."""
    if str(asked) not in map(str, FORMAT_VERSIONS):
        raise ValidationError(f"format_version is {asked}. Use {', '.join(map(str, FORMAT_VERSIONS))}.")
    return {"format_version": int(asked), "is_format_version_set": True}


def _report_partitions(
    io_manager: "IcebergIOManagerBase", context: OutputContext, write: TableWrite, result: TableWriteResult
) -> None:
    """Give the event of each partition of a range its own rows and files."""
    settings, definition = output_settings(context), partitions_def_of(context)
    columns: dict[str, Any] = {
        "partition_expr": settings.partition_expr,
        "partition_column": io_manager.partition_column,
    }
    slices = {key: build_slice(definition, [key], **columns) for key in context.asset_partition_keys}
    files, rows = _files_by_partition(write, result, slices), dict[str, int]()
    if files is not None:
        rows = {key: sum(each.record_count for each in own) for key, own in files.items()}
    elif result.snapshot.added_records * len(slices) <= _MOST_COMPARISONS:
        rows = _count_by_partition(io_manager, write, result, slices)
    for key in slices:
        shown: dict[str, Any] = {}
        if files is not None:
            size = sum(each.file_size_in_bytes for each in files[key])
            shown = {"iceberg/added_files": len(files[key]), "iceberg/added_bytes": size}
            shown |= {"iceberg/added_size": format_bytes(size), "iceberg/rows_added": rows[key]}
        if rows and write.mode is WriteMode.OVERWRITE:
            shown["dagster/partition_row_count"] = rows[key]
        run_identity.add_asset_metadata(context, context.asset_key, shown, partition_key=key)


def _files_by_partition(
    write: TableWrite, result: TableWriteResult, slices: Mapping[str, PartitionSlice]
) -> dict[str, list[DataFile]] | None:
    """The added files of each partition; None if one may hold rows of several, or if it takes long to find out."""

    def matcher(rows: PartitionSlice) -> FileMatcher:
        where = to_expression(rows, result.table.schema(), naive_timezone=write.scope.naive_timezone)
        return FileMatcher(result.table.metadata, where)

    matchers, candidates, written = {key: matcher(rows) for key, rows in slices.items()}, deque(slices), None
    files: dict[str, list[DataFile]] = {key: [] for key in slices}
    found = added_files(result.table, result.snapshot.snapshot_id)
    tries = _MOST_TRIES_PER_FILE * (len(found) + len(slices))
    # In the order of the partitions, so that the partition of the next file is found at once.
    for file in sorted(found, key=_partition_order):
        for _ in range(len(candidates)):
            tries -= 1
            if tries < 0:
                return None
            if matchers[candidates[0]].all_rows(file):
                files[candidates[0]].append(file)
                break
            candidates.rotate(-1)
        else:
            written = written or matcher(write.scope.rows)
            # Otherwise these are rows beside the partitions, of a file that had to be rewritten.
            if not written.no_row(file):
                return None
    return files


def _partition_order(file: DataFile) -> list[tuple[bool, Any]]:
    values = (file.partition[number] for number in range(len(file.partition)))
    return [(value is not None, value) for value in values]


def _count_by_partition(
    io_manager: "IcebergIOManagerBase",
    write: TableWrite,
    result: TableWriteResult,
    slices: Mapping[str, PartitionSlice],
) -> dict[str, int]:
    """Rows of each partition, from the partition columns of the added files."""
    schema, counts = result.table.schema(), dict.fromkeys(slices, 0)
    batches = io_manager.iceberg.table_manager.scan_batches(
        result.table,
        columns=write.scope.rows.columns,
        row_filter=CheckedFilter(write.scope.expression(schema)),
        snapshot_id=result.snapshot.snapshot_id,
        only_added=True,
    )
    for batch in batches:
        for key, rows in slices.items():
            found = match_rows(rows, batch, schema, naive_timezone=write.scope.naive_timezone)
            counts[key] += batch.num_rows - found.rows_outside
    return counts


def _report_rows_before(context: OutputContext, write: TableWrite, result: TableWriteResult) -> dict[str, Any]:
    """Say that an asset appends to the rows of earlier runs, unless that was set."""
    rows_before = result.snapshot.total_records - result.snapshot.added_records
    is_asked = "iceberg/write_mode" in {**(context.definition_metadata or {}), **(context.output_metadata or {})}
    if is_asked or rows_before <= 0 or not context.has_asset_key:
        return {}
    context.log.info(
        "'%s' had %s before this run, which appended %s. To replace them instead, set "
        'metadata {"iceberg/write_mode": "overwrite"} on the asset, or write_mode="overwrite" for all assets in '
        'create_iceberg_resources() or on the IO manager; "append" turns this message off.',
        write.table,
        counted(rows_before, "row"),
        result.snapshot.added_records,
    )
    return {
        "iceberg/rows_before": rows_before,
        "iceberg/hint": MetadataValue.text(
            'Set "iceberg/write_mode" to "overwrite" to replace the rows of earlier runs.'
        ),
    }


def _warn_of_format_version(context: OutputContext, write: TableWrite, has: int) -> None:
    remedy = (
        "upgrade_format_version() of the table manager upgrades it, for good"
        if has < write.format_version
        else "a table cannot be downgraded"
    )
    context.log.warning(
        "Table '%s' has format version %s, and the setting is %s. An existing table keeps its own: %s.",
        write.table,
        has,
        write.format_version,
        remedy,
    )


def engine_for(io_manager: "IcebergIOManagerBase", data: Any, context: OutputContext) -> Engine:
    """The engine that writes the value of an output.

    Raises:
        ValidationError: None of the IO manager's engines does.
    """
    engines = io_manager.engines()
    for engine in engines:
        if engine.accepts(data):
            return engine
    accepted = ", ".join(engine.accepted_types for engine in engines)
    raise ValidationError(
        f"The value of {owner_of(context)} is of type {name_of(type(data))}, which {type(io_manager).__name__} cannot "
        f"write to '{io_manager.table_of(context)}'. Return one of: {accepted}."
    )


def _write_mode(
    io_manager: "IcebergIOManagerBase", context: OutputContext, settings: AssetSettings, *, replaces: bool
) -> WriteMode:
    if replaces and settings.merge_rules.only_upserts:
        return WriteMode.OVERWRITE
    # An op passes its output on to the next one: it is the value of one run, and does not accumulate.
    default = io_manager.write_mode if context.has_asset_key else WriteMode.OVERWRITE
    mode = settings.resolve_write_mode(partitioned=context.has_asset_partitions, default=default)
    if mode is WriteMode.UPSERT and not settings.upsert_keys:
        raise ValidationError(
            f"The IO manager upserts, but {owner_of(context)} names no columns that identify a row. "
            'Set metadata {"iceberg/upsert_keys": ["<column>"]} on it, or another "iceberg/write_mode".'
        )
    return mode


def _merge_rules(settings: AssetSettings, *, replaces: bool) -> MergeRules:
    """What an upsert does; if the rows replace everything, rows of the table that are not among them go."""
    rules = settings.merge_rules
    return dataclasses.replace(rules, on_match="update", update_columns=(), on_missing="delete") if replaces else rules


def _rows_outside(value: str) -> RowsOutside:
    match value:
        case "error" | "drop" | "allow":
            return value
        case _:
            raise ValidationError(f"rows_outside_partition is '{value}'. Use error, drop or allow.")

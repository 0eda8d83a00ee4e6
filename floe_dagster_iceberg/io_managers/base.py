"""What all IO managers do: from a Dagster context to a deposit or a withdrawal, and back to metadata."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from dagster import ConfigurableIOManager, InputContext, OutputContext
from pydantic import Field
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg.asset_metadata import build_output_metadata
from floe_dagster_iceberg.asset_settings import AssetSettings, RowsOutsidePartition, table_identifier
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.failures import dagster_failures
from floe_dagster_iceberg.io_managers.contexts import (
    declared_schema,
    input_settings,
    output_settings,
    owner_of,
    table_path,
    upstream_settings,
    wanted_type,
)
from floe_dagster_iceberg.io_managers.engine import Engine, Withdrawal
from floe_dagster_iceberg.models import CommitStrategy, TableIdentifier, WriteMode
from floe_dagster_iceberg.partitions import derive_layout, load_slice, partitions_def_of
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.run_identity import (
    build_idempotency_key,
    build_snapshot_properties,
    keys_produced_by,
    load_run_identity,
    set_data_version,
)
from floe_dagster_iceberg.table.deposit import Deposit, Deposited
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.reconcile import EvolutionMode
from floe_dagster_iceberg.table.scope import SliceScope


class IcebergIOManagerBase(ConfigurableIOManager):
    """Stores outputs in Iceberg tables and loads inputs from them.

    One materialization is one commit. Running it again replaces what it wrote, and a retry of
    work that was committed already writes nothing.
    """

    iceberg: IcebergResource = Field(description="Catalog and storage of the tables.")
    write_mode: WriteMode = Field(
        default=WriteMode.APPEND, description="Write mode of assets without partitions that name none."
    )
    schema_evolution_enabled: bool = Field(
        default=True, description="Whether writes may add columns, widen types and make columns optional."
    )
    auto_create_tables: bool = Field(default=True, description="Whether the first write creates a missing table.")
    partition_column: str | None = Field(
        default=None, description="Column that Dagster partitions select, unless the asset names one."
    )
    default_namespace: str | None = Field(
        default=None, description="Namespace of assets whose key has one part; the resource's if not given."
    )
    table_name_pattern: str = Field(
        default="{asset_key}", description="Table name; '{asset_key}' stands for the key after its namespace part."
    )
    commit_strategy: CommitStrategy = Field(
        default=CommitStrategy.FAST_APPEND, description="How writes treat manifests."
    )
    rows_outside_partition: str = Field(
        default="error", description="Rows that do not belong to the partition: error, drop or allow."
    )
    column_projection_enabled: bool = Field(
        default=True, description="Whether inputs that name columns read only those."
    )

    @property
    def table_manager(self) -> IcebergTableManager:
        """The manager of the tables that outputs go to."""
        return self.iceberg.table_manager

    @abstractmethod
    def engines(self) -> Sequence[Engine]:
        """The engines that this IO manager moves rows with; the first that fits is used."""

    def get_table_identifier(self, context: OutputContext | InputContext) -> str:
        """The table of an output or input.

        `["customers"]` is `<default_namespace>.customers`, `["bronze", "raw"]` is `bronze.raw`,
        `["gold", "metrics", "daily"]` is `gold.metrics_daily`; metadata `schema` and `table` win.
        """
        return str(self._table_of(context))

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        """Write an output into its table; None is no output and writes nothing."""
        if obj is None:
            return
        with dagster_failures(context):
            started = time.perf_counter()
            engine = self._engine_for(obj, context)
            deposit = self._build_deposit(context)
            deposited = engine.deposit(obj, deposit)
            self._report(context, deposit, deposited, time.perf_counter() - started)

    def load_input(self, context: InputContext) -> Any:
        """Load the rows of the upstream partitions as what the input's annotation names."""
        with dagster_failures(context):
            annotation = wanted_type(context)
            engine = next((engine for engine in self.engines() if engine.loads(annotation)), None)
            if engine is None:
                raise ValidationError(
                    f"The annotation {annotation!r} of {owner_of(context)} cannot be loaded from Iceberg. "
                    f"Annotate it as one of: {self._loadable_types()}."
                )
            return engine.withdraw(self._build_withdrawal(context), annotation)

    def _engine_for(self, data: Any, context: OutputContext) -> Engine:
        for engine in self.engines():
            if engine.accepts(data):
                return engine
        kind = f"{type(data).__module__}.{type(data).__qualname__}"
        accepted = ", ".join(engine.accepted_types for engine in self.engines())
        raise ValidationError(
            f"The value of {owner_of(context)} is a {kind}, which {type(self).__name__} cannot write to "
            f"'{self._table_of(context)}'. Return one of: {accepted}."
        )

    def _loadable_types(self) -> str:
        return ", ".join(engine.loadable_types for engine in self.engines())

    def _build_deposit(self, context: OutputContext) -> Deposit:
        settings = output_settings(context)
        keys = list(context.asset_partition_keys) if context.has_asset_partitions else []
        run = load_run_identity(context)
        evolution = EvolutionMode.WIDEN if self.schema_evolution_enabled else EvolutionMode.NONE
        strategy = settings.commit_strategy or self.commit_strategy
        return Deposit(
            table=self._table_of(context),
            idempotency_key=build_idempotency_key(context, run, keys),
            mode=self._write_mode(context, settings),
            scope=SliceScope(
                load_slice(context, partition_expr=settings.partition_expr, partition_column=self.partition_column),
                rows_outside=_rows_outside(settings.rows_outside_partition or self.rows_outside_partition),
                naive_timezone=settings.naive_timezone,
            ),
            layout=settings.partition_spec
            or derive_layout(
                partitions_def_of(context),
                partition_expr=settings.partition_expr,
                partition_column=self.partition_column,
            ),
            keys=settings.upsert_keys,
            evolution=settings.schema_evolution or evolution,
            properties=settings.properties,
            default_properties=self.table_manager.config.default_table_properties,
            snapshot_properties={**settings.snapshot_properties, **build_snapshot_properties(context, run, keys)},
            branch=settings.branch or MAIN_BRANCH,
            merge_manifests=strategy is CommitStrategy.MERGE_COMMIT,
            sort_by=settings.sort_by,
            create=self.auto_create_tables,
        )

    def _write_mode(self, context: OutputContext, settings: AssetSettings) -> WriteMode:
        mode = settings.resolve_write_mode(partitioned=context.has_asset_partitions, default=self.write_mode)
        if mode is WriteMode.UPSERT and not settings.upsert_keys:
            raise ValidationError(
                f"The IO manager upserts, but {owner_of(context)} names no columns that identify a row. "
                'Set metadata {"iceberg/upsert_keys": ["<column>"]} on it, or another "iceberg/write_mode".'
            )
        return mode

    def _build_withdrawal(self, context: InputContext) -> Withdrawal:
        settings, upstream = input_settings(context), upstream_settings(context)
        if not self.column_projection_enabled:
            settings = settings.model_copy(update={"columns": ()})
        reads_itself = context.has_asset_key and context.asset_key in keys_produced_by(context)
        return Withdrawal(
            table=self._table_of(context),
            rows=load_slice(
                context,
                partition_expr=settings.partition_expr or upstream.partition_expr,
                partition_column=self.partition_column,
            ),
            settings=settings,
            naive_timezone=upstream.naive_timezone,
            empty_schema=declared_schema(context) if reads_itself else None,
        )

    def _report(self, context: OutputContext, deposit: Deposit, deposited: Deposited, seconds: float) -> None:
        snapshot_id = str(deposited.written.snapshot.snapshot_id)
        context.add_output_metadata(
            build_output_metadata(
                deposited,
                deposit.table,
                mode=deposit.mode,
                partitions=len(context.asset_partition_keys) if context.has_asset_partitions else 0,
                seconds=seconds,
            )
        )
        if context.has_asset_key:
            set_data_version(context, context.asset_key, snapshot_id)

    def _table_of(self, context: OutputContext | InputContext) -> TableIdentifier:
        settings = output_settings(context) if isinstance(context, OutputContext) else upstream_settings(context)
        return table_identifier(
            table_path(context),
            settings,
            default_namespace=self.default_namespace or self.iceberg.default_namespace,
            table_name_pattern=self.table_name_pattern,
        )


def _rows_outside(value: str) -> RowsOutsidePartition:
    match value:
        case "error" | "drop" | "allow":
            return value
        case _:
            raise ValidationError(f"rows_outside_partition is '{value}'. Use error, drop or allow.")

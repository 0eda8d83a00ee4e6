"""The IO managers' settings, and the two doors that Dagster knows.

Their work is in `storing.py` and `loading.py`, loaded when it is done: PyIceberg and Arrow take more than
a second, which a code location must not pay.
"""
# ruff: noqa: PLC0415 - see above

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableIOManager, InputContext, OutputContext
from pydantic import Field

from floe_dagster_iceberg.asset_settings import AssetSettings, table_identifier
from floe_dagster_iceberg.failures import dagster_failures
from floe_dagster_iceberg.io_managers.contexts import output_settings, table_path, upstream_settings
from floe_dagster_iceberg.models import CommitStrategy, TableIdentifier, WriteMode
from floe_dagster_iceberg.resources import IcebergResource

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engine import Engine
    from floe_dagster_iceberg.table.manager import IcebergTableManager


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
    def table_manager(self) -> "IcebergTableManager":
        """The manager of the tables that outputs go to."""
        return self.iceberg.table_manager

    @abstractmethod
    def engines(self) -> Sequence["Engine"]:
        """The engines that this IO manager moves rows with; the first that fits is used."""

    def get_table_identifier(self, context: OutputContext | InputContext) -> str:
        """The table of an output or input.

        `["customers"]` is `<default_namespace>.customers`, `["bronze", "raw"]` is `bronze.raw`,
        `["gold", "metrics", "daily"]` is `gold.metrics_daily`; metadata `schema` and `table` win.
        """
        return str(self.table_of(context))

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        """Write an output into its table; None is no output and writes nothing."""
        from floe_dagster_iceberg.io_managers.storing import store_output

        if obj is None:
            # An asset that means it says so by its annotation, and Dagster does not ask then.
            context.log.warning("The value is None: nothing was written to '%s'.", self.get_table_identifier(context))
            return
        with dagster_failures(context):
            store_output(self, context, obj)

    def load_input(self, context: InputContext) -> Any:
        """Load the rows of the upstream partitions as what the input's annotation names."""
        from floe_dagster_iceberg.io_managers.loading import read_input

        with dagster_failures(context):
            return read_input(self, context)

    def table_of(self, context: OutputContext | InputContext, settings: AssetSettings | None = None) -> TableIdentifier:
        """The table of an output or input, as a name in parts.

        Args:
            context: The output or input.
            settings: Those of the asset that is stored or loaded, if they are read already.
        """
        if settings is None:
            settings = output_settings(context) if isinstance(context, OutputContext) else upstream_settings(context)
        return table_identifier(
            table_path(context),
            settings,
            default_namespace=self.default_namespace or self.iceberg.default_namespace,
            table_name_pattern=self.table_name_pattern,
        )

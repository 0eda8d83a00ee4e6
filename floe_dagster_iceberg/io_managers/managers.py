"""The IO managers: for Arrow, pandas and polars, for Spark, and for both; and what they read from a Dagster context."""
# ruff: noqa: PLC0415 - loading a code location must not load PyIceberg and Arrow

from abc import abstractmethod
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin

from dagster import ConfigurableIOManager, DagsterInvariantViolationError, InputContext, OutputContext
from pydantic import Field

from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings, table_identifier
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.failures import dagster_failures
from floe_dagster_iceberg.models import CommitStrategy, TableIdentifier, WriteMode
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource, StrictFields

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engines import Engine
    from floe_dagster_iceberg.table.manager import IcebergTableManager


def owner_of(context: OutputContext | InputContext) -> str:
    """The name of a context in messages: its asset, else the output or input."""
    if isinstance(context, InputContext):
        return f"input '{context.name}'" if context.has_input_name else "the input"
    return f"asset '{context.asset_key.to_user_string()}'" if context.has_asset_key else f"output '{context.name}'"


def name_of(kind: Any) -> str:
    """The name of a type or annotation in messages.

    >>> name_of(list), name_of(Sequence)
    ('list', 'collections.abc.Sequence')
    """
    if not isinstance(kind, type):
        return str(kind)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def output_settings(context: OutputContext) -> AssetSettings:
    """Settings of an output: its own metadata overrides that of its definition."""
    return AssetSettings.from_metadata(context.definition_metadata, context.output_metadata, owner=owner_of(context))


def input_settings(context: InputContext) -> InputSettings:
    """Settings of an input."""
    return InputSettings.from_metadata(context.definition_metadata, owner=owner_of(context))


def upstream_settings(context: InputContext) -> AssetSettings:
    """Settings in the definition of the asset or output that an input loads."""
    output = context.upstream_output
    return AssetSettings() if output is None else AssetSettings.from_metadata(output.definition_metadata)


def table_path(context: OutputContext | InputContext) -> Sequence[str]:
    """The parts of the table name: the asset key, else step and output, with a table per mapped step or output."""
    if context.has_asset_key:
        return context.asset_key.path
    output = context if isinstance(context, OutputContext) else context.upstream_output
    if output is None:
        raise ValidationError(f"{owner_of(context)} has neither an asset nor an upstream output. Give it an asset key.")
    step = output.step_key.replace(".", "_").replace("[", "_").replace("]", "")
    words = [step, *([] if output.name == "result" else [output.name]), *filter(None, [output.mapping_key])]
    return ["_".join(words)]


def wanted_type(context: InputContext) -> Any:
    """The annotated type of an input, without `Optional` and `list` around it; None if there is none."""
    try:
        annotation = context.dagster_type.typing_type
    except DagsterInvariantViolationError:
        return None
    if get_origin(annotation) is list:
        # Collected outputs are loaded one by one; Dagster builds the list.
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in {Union, UnionType}:
        wanted = [kind for kind in get_args(annotation) if kind is not NoneType]
        annotation = wanted[0] if len(wanted) == 1 else annotation
    return None if annotation is Any else annotation


class IcebergIOManagerBase(StrictFields, ConfigurableIOManager):
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
    format_version: int | None = Field(
        default=None,
        description="Format version of new tables: 1, 2 or 3, which needs Spark; 2 if not given. Existing tables keep "
        "theirs.",
    )

    @property
    def table_manager(self) -> "IcebergTableManager":
        """The manager of the tables."""
        return self.iceberg.table_manager

    @property
    def environment_name(self) -> str | None:
        """The environment that assets are stored in; None in production."""
        return self.iceberg.environment_name

    @abstractmethod
    def engines(self) -> Sequence["Engine"]:
        """The engines of this IO manager; the first that supports a type is used."""

    def get_table_identifier(self, context: OutputContext | InputContext) -> str:
        """The table of an output or input.

        `["customers"]` is `<default_namespace>.customers`, `["bronze", "raw"]` is `bronze.raw`,
        `["gold", "metrics", "daily"]` is `gold.metrics_daily`; metadata `schema` and `table` win.
        """
        return str(self.table_of(context))

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        """Write an output into its table; None is no output and writes nothing."""
        from floe_dagster_iceberg.io_managers.output import store_output

        if obj is None:
            # Dagster does not call this for an asset that is annotated with None.
            context.log.warning("The value is None: nothing was written to '%s'.", self.get_table_identifier(context))
            return
        with dagster_failures(context):
            store_output(self, context, obj)

    def load_input(self, context: InputContext) -> Any:
        """Load the rows of the upstream partitions as the annotated type."""
        from floe_dagster_iceberg.io_managers.input import read_input

        with dagster_failures(context):
            return read_input(self, context)

    def table_of(self, context: OutputContext | InputContext, settings: AssetSettings | None = None) -> TableIdentifier:
        """The table of an output or input; settings of its asset are read unless they are passed."""
        if settings is None:
            settings = output_settings(context) if isinstance(context, OutputContext) else upstream_settings(context)
        return self.table_of_asset(table_path(context), settings)

    def table_of_asset(self, path: Sequence[str], settings: AssetSettings) -> TableIdentifier:
        """The table of an asset with this key and these settings."""
        return table_identifier(
            path,
            settings,
            default_namespace=self.default_namespace or self.iceberg.default_namespace,
            table_name_pattern=self.table_name_pattern,
        )


class ArrowIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyarrow.Table`, `pyarrow.RecordBatchReader`, pandas and polars DataFrames in Iceberg tables.

    Inputs are loaded as their annotated type: one of those, or `pyiceberg.table.Table`.
    """

    def engines(self) -> Sequence["Engine"]:
        from floe_dagster_iceberg.io_managers.engines import ArrowEngine

        return [ArrowEngine(self.table_manager)]


class SparkIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyspark.sql.DataFrame`, of a classic session or of Spark Connect, in Iceberg tables.

    Inputs are loaded as their annotated type; without one as DataFrames, which are read when they are computed.
    """

    pyspark: IcebergSparkResource = Field(description="The Spark session that tables are read with.")

    def engines(self) -> Sequence["Engine"]:
        from floe_dagster_iceberg.io_managers.engines import SparkOnlyEngine

        return [SparkOnlyEngine(cast("IcebergResource", self.iceberg), self.pyspark)]


class IcebergIOManager(IcebergIOManagerBase):
    """Stores any DataFrame in an Iceberg table, with the engine for its type.

    Arrow, pandas and polars use PyIceberg, Spark's DataFrames use Spark; each engine reads what the other wrote.
    What PyIceberg cannot do is handed to Spark, such as writes to tables of format version 3. Spark is started when it
    is first used.
    """

    pyspark: IcebergSparkResource | None = Field(
        default=None, description="The Spark session; without it only Arrow, pandas and polars are supported."
    )

    def engines(self) -> Sequence["Engine"]:
        from floe_dagster_iceberg.io_managers.engines import ArrowEngine, SparkEngine

        iceberg = cast("IcebergResource", self.iceberg)
        manager = iceberg.table_manager
        if self.pyspark is None:
            return [ArrowEngine(manager)]
        spark = SparkEngine(iceberg, self.pyspark)
        return [ArrowEngine(manager, spark.handover), spark]

"""Dagster resources: one configuration of catalog and storage, for PyIceberg and Spark.

Building a resource, also as part of `Definitions`, connects to nothing and writes nothing. The first
use connects, and resources of one process with the same configuration share the connection.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self, Unpack

from dagster import (
    AssetExecutionContext,
    AssetKey,
    Config,
    ConfigurableResource,
    DataVersion,
    EnvVar,
    InitResourceContext,
    MetadataValue,
)
from dagster_shared.libraries import DagsterLibraryRegistry
from pydantic import Field, PrivateAttr

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.asset_metadata import build_observation_metadata
from floe_dagster_iceberg.asset_settings import ChangesArguments, InputSettings, iceberg_settings
from floe_dagster_iceberg.connections import Connection, ConnectionSettings, open_connection
from floe_dagster_iceberg.environments import AUTO, branch_of, detect_environment, environment_name
from floe_dagster_iceberg.errors import SecretNotFoundError, ValidationError
from floe_dagster_iceberg.models import (
    ChangesMode,
    CommitStrategy,
    IcebergTableManagerConfig,
    StaleTableRecoveryMode,
    TableHealth,
    TableIdentifier,
)
from floe_dagster_iceberg.models.base import nearest
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin, HealthStatus, StoragePlugin
from floe_dagster_iceberg.secrets import is_reference, secret_as_text
from floe_dagster_iceberg.spark.session_users import SESSION_USERS
from floe_dagster_iceberg.telemetry.setup import flush

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from floe_dagster_iceberg.spark.conf import SessionSettings
    from floe_dagster_iceberg.table.manager import IcebergTableManager
    from floe_dagster_iceberg.table.manager.changes import TableChanges
    from floe_dagster_iceberg.table.write.handover import Handover

# The UI and deployments show the libraries of a code location. Their versions need not be those of Dagster.
DagsterLibraryRegistry.register("floe-dagster-iceberg", version("floe-dagster-iceberg"), is_dagster_package=False)

_MASK = "********"
# The resource's own fields by the names that catalog plugins use.
_FIELDS_OF_CATALOG = {
    "catalog_name": "catalog_name",
    "uri": "catalog_uri",
    "warehouse": "warehouse",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "token": "token",
    "scope": "scope",
}


def _secret_field(description: str, default: Callable[[], Any] = lambda: None) -> Any:
    # Dagster's launchpad shows every default, and asterisks for the defaults of secrets, None included. It leaves out
    # defaults that come from a factory, so that the configuration it shows can be launched unchanged.
    secret: dict[str, Any] = {"dagster__is_secret": True}
    return Field(default_factory=default, repr=False, json_schema_extra=secret, description=description)


class StrictFields:
    """Refuses unknown fields, which Dagster's configuration classes ignore when they are built in Python."""

    def __init__(self, **fields: Any) -> None:
        known: list[str] = list(getattr(type(self), "model_fields", ()))
        for name in sorted(fields.keys() - set(known)):
            guess = nearest(name, known)
            hint = f"Did you mean '{guess}'?" if guess else f"It has: {', '.join(known)}."
            raise ValidationError(f"{type(self).__name__} has no field '{name}'. {hint}")
        super().__init__(**fields)


class TableManagerSettings(StrictFields, Config):
    """The settings of `IcebergTableManagerConfig`, as Dagster configuration."""

    max_commit_retries: int = Field(default=3, description="Retries of a commit that lost against another writer.")
    retry_base_delay_seconds: float = Field(default=1.0, description="Seconds before the first retry; they double.")
    default_retention_days: int = Field(default=7, description="Age in days at which snapshots expire.")
    min_snapshots_to_keep: int = Field(default=10, description="Number of newest snapshots that never expire.")
    default_commit_strategy: CommitStrategy = Field(
        default=CommitStrategy.FAST_APPEND, description="Default commit strategy of writes."
    )
    stale_table_recovery_mode: StaleTableRecoveryMode = Field(
        default=StaleTableRecoveryMode.STRICT,
        description="With 'repair', a write to a table whose metadata file is missing or truncated goes on from the "
        "newest version that is left; with 'strict', it fails.",
    )
    default_table_properties: dict[str, str] | None = Field(
        default=None, description="Properties of new tables; the default is suited for production."
    )

    def to_config(self) -> IcebergTableManagerConfig:
        """Return the validated settings."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return IcebergTableManagerConfig(**{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class TableDescription:
    """What Dagster shows of a table.

    Attributes:
        metadata: Table name, columns, row count, snapshot, writer, sizes, as of an observation.
        data_version: The last snapshot that changed rows.
        health: Files, snapshots and manifests.
    """

    metadata: Mapping[str, MetadataValue]
    data_version: DataVersion
    health: TableHealth


class IcebergResource(StrictFields, ConfigurableResource[Any]):
    """Iceberg tables of one catalog, for assets, IO managers and Spark.

    The default is a SQLite catalog and a warehouse below `$FLOE_HOME`, else below `.floe` in the
    working directory. Strings may be an `EnvVar` or any reference of `floe_dagster_iceberg.secrets`;
    they are resolved when the catalog is first used.

    Examples:
        >>> iceberg = IcebergResource(
        ...     catalog_type="polaris",
        ...     catalog_uri="http://polaris:8181/api/catalog",
        ...     warehouse="analytics",
        ...     client_id=EnvVar("POLARIS_CLIENT_ID"),
        ...     client_secret=EnvVar("POLARIS_CLIENT_SECRET"),
        ... )
    """

    catalog_type: str = Field(
        default="sql", description="Catalog plugin: sql, rest, polaris, glue, hive, or installed."
    )
    catalog_name: str = Field(default="floe", description="Name of the catalog, in both engines.")
    catalog_uri: str | None = _secret_field("Address of the catalog; an SQLAlchemy URL for 'sql'.")
    warehouse: str | None = Field(default=None, description="Location of the warehouse, or its name in the catalog.")
    client_id: str | None = Field(default=None, description="OAuth2 client id.")
    client_secret: str | None = _secret_field("OAuth2 client secret.")
    token: str | None = _secret_field("Bearer token, instead of client id and secret.")
    scope: str | None = Field(default=None, description="OAuth2 scope.")
    catalog_properties: dict[str, str] = _secret_field(
        "Further settings of the catalog plugin, and Iceberg properties.", default=dict
    )
    storage_type: str = Field(default="local", description="Storage plugin: local, s3, gcs, azure, or installed.")
    storage_properties: dict[str, str] = _secret_field(
        "Settings of the storage plugin, and Iceberg properties.", default=dict
    )
    default_namespace: str = Field(default="public", description="Namespace of assets whose key has one part.")
    qualified_table_names: bool = Field(
        default=False,
        description="Whether metadata 'dagster/table_name' begins with the catalog's name, as SQL engines write it.",
    )
    environment: str | None = Field(
        default=None,
        description="Environment of a preview: outputs go to branch 'env-<environment>' of their tables, and inputs "
        "read that branch where the table has one. 'auto' takes it from a Dagster+ branch deployment. None for "
        "production.",
    )
    manager: TableManagerSettings = Field(
        default_factory=TableManagerSettings, description="Retry budget, retention, default table properties."
    )
    check_storage_at_start: bool = Field(
        default=False,
        description="Whether each process writes a small object below the warehouse and deletes it, before any work.",
    )
    _opened: tuple[int, Connection] | None = PrivateAttr(default=None)

    @classmethod
    def from_artifacts(cls, artifacts: CompiledArtifacts, **settings: Any) -> Self:
        """Configure from compiled artifacts; nothing is resolved or connected.

        Args:
            artifacts: The artifacts.
            **settings: Further fields of the resource.

        Raises:
            ValidationError: The artifacts name no catalog.
        """
        if artifacts.catalog is None:
            raise ValidationError("The compiled artifacts name no catalog. Add 'plugins.catalog' to the manifest.")
        config = {key: _as_text(value) for key, value in artifacts.catalog.config.items()}
        given: dict[str, Any] = {name: config.pop(key) for key, name in _FIELDS_OF_CATALOG.items() if key in config}
        if artifacts.storage is not None:
            given["storage_type"] = artifacts.storage.type
            given["storage_properties"] = {key: _as_text(value) for key, value in artifacts.storage.config.items()}
        given["catalog_properties"] = config
        mode = artifacts.governance.stale_table_recovery_mode
        if mode is not StaleTableRecoveryMode.STRICT:
            given["manager"] = TableManagerSettings(stale_table_recovery_mode=mode)
        given = {name: value for name, value in given.items() if value != {}}
        return cls(
            catalog_type=artifacts.catalog.type, default_namespace=artifacts.default_namespace, **given, **settings
        )

    @property
    def table_manager(self) -> "IcebergTableManager":
        """The table manager; resources of one process with the same configuration share it."""
        return self._connection.manager

    @property
    def catalog(self) -> "Catalog":
        """The PyIceberg catalog; the first use connects."""
        return self.table_manager.catalog

    @property
    def catalog_plugin(self) -> CatalogPlugin:
        """The catalog plugin in use."""
        return self._connection.catalog_plugin

    @property
    def storage_plugin(self) -> StoragePlugin | None:
        """The storage plugin in use; None if only the catalog knows the storage."""
        return self._connection.storage_plugin

    @property
    def catalog_of_table_names(self) -> str | None:
        """The catalog's name, if it is part of the tables' names in metadata."""
        return self.catalog_name if self.qualified_table_names else None

    @property
    def environment_name(self) -> str | None:
        """The name of the environment, as branches and commands have it; None in production.

        Raises:
            ValidationError: The setting names no environment.
            SecretNotFoundError: It is an environment variable that is not set.
        """
        setting = self.environment
        if isinstance(setting, EnvVar):
            # Dagster resolves it only in resources that it starts itself.
            setting = _value_of(setting)
        if setting is None:
            return None
        return detect_environment(os.environ) if setting == AUTO else environment_name(setting)

    @property
    def environment_branch(self) -> str | None:
        """The branch of the environment; None in production."""
        name = self.environment_name
        return None if name is None else branch_of(name)

    def describe(self, table: "str | TableIdentifier") -> "TableDescription":
        """Describe a table whose rows another tool has written, as the IO managers describe those of their own.

        For assets of dbt, dlt, Sling or SQL on the same catalog:

            description = iceberg.describe("shop.orders")
            return MaterializeResult(metadata=description.metadata, data_version=description.data_version)

        Raises:
            NoSuchTableError: There is no such table.
        """
        from floe_dagster_iceberg.table.maintenance.health import measure_health  # noqa: PLC0415 - it loads PyIceberg

        loaded = self.table_manager.load_table(table)
        found = self.table_manager.observe(loaded)
        metadata = build_observation_metadata(found, catalog=self.catalog_name, qualified=self.qualified_table_names)
        version = DataVersion(found.observation.data_version)
        return TableDescription(metadata, version, measure_health(loaded))

    def read_changes(
        self,
        context: AssetExecutionContext,
        key: "AssetKey | str | Sequence[str]",
        *,
        changes: "ChangesMode | str",
        target: "str | TableIdentifier | None" = None,
        **settings: "Unpack[ChangesArguments]",
    ) -> "TableChanges":
        """Read what changed in the table of an upstream asset since the running asset last read it.

        For assets without an IO manager for this input: `key` is one of their `deps`. What an input with metadata
        `iceberg/changes` does holds here, too: a retry reads the same snapshots, the run tag `iceberg/full_refresh`
        reads everything.

        The position is part of the asset's own commit if an IO manager of this package stores the asset. For an asset
        that writes a table itself, name it as `target`, and pass `snapshot_properties` of the result to the write:
        rows and position are then one commit, and the first run is to replace what is there. Otherwise, the position
        is in the metadata of the materialization, and changes are read at least once.

            changes = iceberg.read_changes(context, "orders", changes="appends", target="shop.copy")
            properties = changes.snapshot_properties
            iceberg.table_manager.append("shop.copy", changes.to_arrow(), snapshot_properties=properties)

        Args:
            context: The context of the running asset.
            key: The upstream asset.
            changes: `appends`, `changelog` or `partitions`.
            target: The table that the asset writes itself.
            **settings: Further settings of an incremental input, as in `iceberg_settings`.

        Raises:
            NoSuchTableError: The upstream table does not exist.
            ValidationError: A setting is not valid, the asset does not depend on `key`, or changes cannot be read so.
            ScanError: Snapshots that were not read yet have expired, or the upstream table was created again.
        """
        from floe_dagster_iceberg.incremental import read_changes  # noqa: PLC0415 - it loads PyIceberg

        given = InputSettings.from_metadata(iceberg_settings(changes=changes, **settings))
        return read_changes(
            self.table_manager,
            context,
            AssetKey.from_coercible(key),
            given,
            self.default_namespace,
            target=target,
            environment=self.environment_name,
        )

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Resolve the settings; nothing is written unless `check_storage_at_start` is set.

        Raises:
            WriteError: The storage is checked, and the warehouse is not writable.
        """
        del context
        self._opened = None
        if self.check_storage_at_start:
            self.check_storage()
        self._opened = (os.getpid(), self._connection)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Send pending telemetry: the process of a run or a step may end right after."""
        del context
        self._opened = None
        flush()

    def check_storage(self) -> None:
        """Write a small object below the warehouse and delete it; once per process.

        Needs credentials that may write at the root of the warehouse, which reading, and writing to single namespaces,
        do not.

        Raises:
            WriteError: The location is missing, or the credentials do not allow writing there.
            CatalogConnectionError: The storage does not respond.
        """
        self._connection.check_storage()

    def health_check(self, *, writes: bool = False) -> HealthStatus:
        """List the catalog's namespaces, for at most 5 seconds.

        Args:
            writes: Whether to also write a small object below the warehouse and delete it.
        """
        return self._connection.health_check(writes=writes)

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark conf of the same tables. It holds resolved secrets, which Spark redacts."""
        return self._connection.spark_conf()

    def spark_packages(self) -> list[str]:
        """Return the jars besides the Iceberg runtime: Maven coordinates, or names of Iceberg's bundles."""
        return self._connection.spark_packages()

    def __reduce__(self) -> tuple[Any, ...]:
        # Dagster's own state cannot be pickled; another process only needs the configuration.
        return _rebuild, (type(self), {name: getattr(self, name) for name in type(self).model_fields})

    @property
    def _connection(self) -> Connection:
        # A run resolves its settings once; a forked process opens a connection of its own.
        if self._opened is not None and self._opened[0] == os.getpid():
            return self._opened[1]
        own = {key: getattr(self, name) for key, name in _FIELDS_OF_CATALOG.items()}
        own = {key: value for key, value in own.items() if value is not None}
        return open_connection(
            ConnectionSettings(
                catalog_type=self.catalog_type,
                catalog_config=_resolve_variables({**self.catalog_properties, **own}),
                storage_type=self.storage_type,
                storage_config=_resolve_variables(self.storage_properties),
                manager=self.manager.to_config(),
            )
        )


def _resolve_variables(settings: Mapping[str, str]) -> dict[str, str]:
    for key, value in settings.items():
        if value == _MASK:
            raise ValidationError(
                f"The setting '{key}' is '{_MASK}': Dagster's launchpad shows that in place of a secret. "
                "Remove 'resources' from the run's configuration to use the values of the code location."
            )
    # Dagster resolves an EnvVar only in resources that it starts itself, not in scripts and notebooks.
    return {key: _value_of(value) if isinstance(value, EnvVar) else value for key, value in settings.items()}


def _value_of(variable: EnvVar) -> str:
    if (value := variable.get_value()) is None:
        name = variable.env_var_name
        raise SecretNotFoundError(name, looked_in=[f"environment variable {name}"])
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and is_reference(value):
        return secret_as_text(value)
    return json.dumps(value)


def _rebuild(resource: type[IcebergResource], settings: dict[str, Any]) -> IcebergResource:
    return resource(**settings)


class IcebergSparkResource(StrictFields, ConfigurableResource[Any]):
    """A Spark session with the Iceberg catalog. Spark starts when the session is first used.

    Assets and IO managers of one process share it, and a run that started Spark stops it at its end.
    `master` or `remote` decide where Spark runs; pipelines do not change.
    """

    iceberg: IcebergResource = Field(description="Catalog and storage of the tables.")
    master: str = Field(
        default="local[*]", description="Where Spark runs: local[*], spark://host:7077, k8s://https://host, yarn."
    )
    remote: str | None = _secret_field(
        "Address of a Spark Connect server, such as sc://host:15002, instead of a master."
    )
    spark_config: dict[str, str] = _secret_field(
        "Spark conf; it takes precedence over what this package sets.", default=dict
    )

    @classmethod
    def from_artifacts(cls, artifacts: CompiledArtifacts, iceberg: IcebergResource) -> Self:
        """Configure from the `plugins.compute.config` of compiled artifacts; Spark is not started."""
        spark = artifacts.spark
        given: dict[str, Any] = {"master": spark.master, "remote": spark.remote, "spark_config": spark.conf}
        # Values that are not given stay unset: the launchpad shows what is set, and asterisks for secrets.
        return cls(iceberg=iceberg, **{name: value for name, value in given.items() if value})

    @property
    def spark_session(self) -> "SparkSession":
        """The session; the first use starts Spark.

        Raises:
            EngineCapabilityError: Spark cannot run here: no Java, no jars for this version, no response.
        """
        from floe_dagster_iceberg.spark.session import REGISTRY  # noqa: PLC0415 - imports PySpark

        return REGISTRY.open_session(self._settings(), _start_lazily)

    @property
    def table_manager(self) -> "IcebergTableManager":
        """The table manager of the catalog; what PyIceberg cannot do, it hands to this Spark.

        That is: changes of tables of format version 3, rows of tables with equality deletes or Avro files.
        """
        return self.iceberg.table_manager.with_handover(self._open_handover)

    def _open_handover(self) -> "Handover":
        from floe_dagster_iceberg.spark.handover import SparkHandover  # noqa: PLC0415 - imports PySpark

        return SparkHandover(lambda: self.spark_session)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Register as a user of this process's session, whether or not it is started."""
        del context
        SESSION_USERS.add()

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop Spark if this run started it and it has no other users."""
        del context
        SESSION_USERS.remove()

    def _settings(self) -> "SessionSettings":
        from floe_dagster_iceberg.spark.conf import SessionSettings  # noqa: PLC0415 - imports PySpark

        return SessionSettings(
            master=self.master,
            remote=self.remote,
            packages=tuple(self.iceberg.spark_packages()),
            conf=dict(self.spark_config),
            catalog_conf=self.iceberg.spark_conf(),
        )


def _start_lazily(conf: dict[str, str]) -> "SparkSession":
    from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415 - imports PySpark

    session: SparkSession = LazyPySparkResource(spark_config=conf).spark_session
    return session

"""The component of a catalog: resources and IO managers."""

from pathlib import Path
from typing import Annotated, Any, Final

import dagster as dg
from pydantic import Field

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.asset_metadata import DEFAULT_IO_MANAGER_KEY
from floe_dagster_iceberg.components.fields import CheckedField, StrictComponent, Text, Texts
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.factory import build_resources, prepare_telemetry
from floe_dagster_iceberg.kubernetes import build_executor
from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.models.identifiers import Namespace
from floe_dagster_iceberg.models.writing import FormatVersion
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource

_CATALOG: Final = (
    "catalog_type",
    "catalog_name",
    "catalog_uri",
    "warehouse",
    "client_id",
    "client_secret",
    "token",
    "scope",
    "catalog_properties",
    "storage_type",
    "storage_properties",
)
_RESOURCE: Final = ("default_namespace", "qualified_table_names", "environment")
_SPARK: Final = {"spark_master": "master", "spark_remote": "remote", "spark_config": "spark_config"}
_IO_MANAGERS: Final = ("write_mode", "format_version")


class IcebergLakehouseComponent(StrictComponent):
    """Resources and IO managers of one Iceberg catalog.

    It defines the resources `iceberg`, `pyspark`, `iceberg_io_manager`, `iceberg_arrow_io_manager` and
    `iceberg_spark_io_manager`. The catalog is described by fields, or by compiled artifacts of floe.
    """

    artifacts: Annotated[str | None, CheckedField(str | None)] = Field(
        default=None,
        description="Compiled artifacts that describe catalog, storage, Spark and executor, instead of the fields: a "
        "path from the folder of this file.",
    )
    catalog_type: Annotated[str, CheckedField(str)] = Field(
        default="sql", description="Catalog plugin: sql, rest, polaris, glue, hive, or installed."
    )
    catalog_name: Annotated[str, CheckedField(str)] = Field(
        default="floe", description="Name of the catalog, in PyIceberg and Spark."
    )
    catalog_uri: Text = Field(
        default=None,
        description="Address of the catalog; an SQLAlchemy URL for 'sql'. Without one, 'sql' is a SQLite file below "
        "$FLOE_HOME, else below .floe.",
    )
    warehouse: Text = Field(default=None, description="Location of the warehouse, or its name in the catalog.")
    client_id: Text = Field(default=None, description="OAuth2 client id.")
    client_secret: Text = Field(default=None, description="OAuth2 client secret.")
    token: Text = Field(default=None, description="Bearer token, instead of client id and secret.")
    scope: Text = Field(default=None, description="OAuth2 scope.")
    catalog_properties: Texts = Field(
        default_factory=dict, description="Further settings of the catalog plugin, and Iceberg properties."
    )
    storage_type: Annotated[str, CheckedField(str)] = Field(
        default="local", description="Storage plugin: local, s3, gcs, azure, or installed."
    )
    storage_properties: Texts = Field(
        default_factory=dict, description="Settings of the storage plugin, and Iceberg properties."
    )
    spark_master: Text = Field(
        default="local[*]", description="Where Spark runs: local[*], spark://host:7077, k8s://https://host, yarn."
    )
    spark_remote: Text = Field(
        default=None, description="Address of a Spark Connect server, such as sc://host:15002, instead of a master."
    )
    spark_config: Texts = Field(default_factory=dict, description="Spark configuration.")
    default_namespace: Annotated[str, CheckedField(Namespace)] = Field(
        default="public", description="Namespace of assets whose key has one part."
    )
    qualified_table_names: Annotated[bool, CheckedField(bool)] = Field(
        default=False, description="Whether metadata 'dagster/table_name' begins with the catalog's name."
    )
    environment: Text = Field(
        default=None,
        description="Environment of a preview, whose outputs go to branches of the tables. 'auto' takes it from a "
        "Dagster+ branch deployment; none for production.",
    )
    write_mode: Annotated[WriteMode, CheckedField(WriteMode)] = Field(
        default=WriteMode.APPEND, description="Write mode of assets without partitions that set none."
    )
    format_version: Annotated[int | None, CheckedField(FormatVersion | None)] = Field(
        default=None, description="Format version of new tables: 1, 2 or 3, which needs Spark; 2 if not given."
    )
    default_io_manager: Annotated[bool, CheckedField(bool)] = Field(
        default=False, description="Whether assets that name no IO manager are stored in Iceberg, too."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        artifacts = self._load_artifacts(context.path)
        iceberg = self._build_catalog(artifacts)
        resources = build_resources(iceberg, self._build_spark(artifacts, iceberg), self._given(_IO_MANAGERS))
        if self.default_io_manager:
            resources[DEFAULT_IO_MANAGER_KEY] = resources["iceberg_io_manager"]
        return dg.Definitions(resources=resources, executor=None if artifacts is None else build_executor(artifacts))

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        # Unset stays unset: the launchpad shows what is set.
        return {name: getattr(self, name) for name in names if name in self.model_fields_set}

    def _load_artifacts(self, folder: Path) -> CompiledArtifacts | None:
        if self.artifacts is None:
            return None
        if given := self._given((*_CATALOG, *_SPARK)):
            raise ValidationError(
                f"IcebergLakehouseComponent in '{folder}' has both 'artifacts' and {', '.join(map(repr, given))}. The "
                "artifacts describe the catalog: remove one of the two."
            )
        artifacts = CompiledArtifacts.from_json_file((folder if folder.is_dir() else folder.parent) / self.artifacts)
        prepare_telemetry(artifacts)
        return artifacts

    def _build_catalog(self, artifacts: CompiledArtifacts | None) -> IcebergResource:
        settings = self._given(_RESOURCE)
        if artifacts is None:
            return IcebergResource(**self._given(_CATALOG), **settings)
        namespace = settings.pop("default_namespace", None)
        if namespace is not None:
            artifacts = artifacts.model_copy(update={"namespace": namespace})
        return IcebergResource.from_artifacts(artifacts, **settings)

    def _build_spark(self, artifacts: CompiledArtifacts | None, iceberg: IcebergResource) -> IcebergSparkResource:
        if artifacts is not None:
            return IcebergSparkResource.from_artifacts(artifacts, iceberg)
        given = self._given(tuple(_SPARK))
        return IcebergSparkResource(iceberg=iceberg, **{_SPARK[name]: value for name, value in given.items()})

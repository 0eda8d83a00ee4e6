"""AWS Glue and Hive, with the clients of PyIceberg and Iceberg's Java library."""

from typing import ClassVar

from pydantic import Field

from floe_dagster_iceberg.plugins.base import BuiltInCatalog, CatalogConfig
from floe_dagster_iceberg.plugins.mapping import Setting
from floe_dagster_iceberg.secrets import SecretValue


class GlueCatalogConfig(CatalogConfig):
    """AWS Glue; without keys AWS's default credentials are used."""

    region: str | None = Field(default=None, description="Region of the Glue catalog.")
    catalog_id: str | None = Field(default=None, description="Account id of a Glue catalog in another account.")
    endpoint: str | None = Field(default=None, description="Address of the service, if it is not AWS.")
    access_key_id: SecretValue | None = Field(default=None, description="Static key id.")
    secret_access_key: SecretValue | None = Field(default=None, description="Static secret key.")
    session_token: SecretValue | None = Field(default=None, description="Session token of temporary keys.")


class GlueCatalogPlugin(BuiltInCatalog[GlueCatalogConfig]):
    """AWS Glue Data Catalog.

    Java only takes AWS's default credentials for Glue, so the three key fields apply to PyIceberg
    alone: on Spark use the environment or a role.
    """

    name: ClassVar[str] = "glue"
    description: ClassVar[str] = "AWS Glue Data Catalog."
    config_type: ClassVar[type[CatalogConfig]] = GlueCatalogConfig
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("warehouse", python="warehouse", java="warehouse"),
        Setting("region", python="glue.region", java="client.region"),
        Setting("catalog_id", python="glue.id", java="glue.id"),
        Setting("endpoint", python="glue.endpoint", java="glue.endpoint"),
        Setting("access_key_id", python="glue.access-key-id", java=None),
        Setting("secret_access_key", python="glue.secret-access-key", java=None),
        Setting("session_token", python="glue.session-token", java=None),
    )

    def spark_properties(self) -> dict[str, str]:
        return {"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog", **super().spark_properties()}

    def spark_packages(self) -> list[str]:
        return ["iceberg-aws-bundle"]


class HiveCatalogConfig(CatalogConfig):
    """A Hive metastore."""

    uri: str = Field(min_length=1, description="Address of the metastore, thrift://host:port.")


class HiveCatalogPlugin(BuiltInCatalog[HiveCatalogConfig]):
    """Hive Metastore."""

    name: ClassVar[str] = "hive"
    description: ClassVar[str] = "Hive Metastore."
    config_type: ClassVar[type[CatalogConfig]] = HiveCatalogConfig
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("uri", python="uri", java="uri"),
        Setting("warehouse", python="warehouse", java="warehouse"),
    )

    def spark_properties(self) -> dict[str, str]:
        return {"type": "hive", **super().spark_properties()}

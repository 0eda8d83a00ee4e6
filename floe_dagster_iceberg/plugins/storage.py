"""The built-in storages: the local file system, S3, Google Cloud Storage and Azure."""

import os
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import Field, SecretStr, model_validator

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.plugins.base import BuiltInPlugin, PluginConfig, check_health, required
from floe_dagster_iceberg.plugins.mapping import Setting, as_milliseconds, negated, resolved
from floe_dagster_iceberg.plugins.protocols import HealthStatus
from floe_dagster_iceberg.secrets import NamedSecret, SecretReference, SecretValue, resolve_text


class StorageConfig(PluginConfig):
    """Fields of every storage."""

    warehouse: str | None = Field(default=None, description="Location below which tables are created.")
    py_io_impl: str | None = Field(default=None, description="PyIceberg FileIO class to use instead of the default.")


StorageConfigT = TypeVar("StorageConfigT", bound=StorageConfig)


class BuiltInStorage(BuiltInPlugin[StorageConfigT]):
    """A storage plugin on PyIceberg's FileIO."""

    def warehouse_uri(self) -> str | None:
        """Location below which tables are created, or None if only the catalog has it."""
        return None if self.config.warehouse is None else resolve_text(self.config.warehouse).rstrip("/")

    def get_warehouse_uri(self, namespace: str) -> str:
        """Location of a namespace; a dotted one is nested.

        Raises:
            ValidationError: The configuration names no location.
        """
        root = self.warehouse_uri()
        if root is None:
            raise ValidationError(f"Storage '{self.name}' has no location. Set 'warehouse' or 'bucket'.")
        return "/".join([root, *namespace.split(".")]) if namespace else root

    def get_pyiceberg_fileio(self) -> Any:
        """A PyIceberg FileIO; its `properties` configure a catalog for this storage."""
        # PyIceberg's FileIO modules are slow to import, and a code location does not need them.
        from pyiceberg.io import load_file_io  # noqa: PLC0415

        return load_file_io(self.pyiceberg_properties(), self.warehouse_uri())

    def get_dbt_profile_config(self) -> dict[str, Any]:
        """Settings for a dbt profile, without secrets, which dbt reads from its environment."""
        return {"type": self.name, **self._settings_without_secrets(), "warehouse": self.warehouse_uri()}

    def get_dagster_io_manager_config(self) -> dict[str, Any]:
        """Arguments of `IcebergResource` for this storage; secrets must be given there as `EnvVar`."""
        properties = {field: str(resolved(value)) for field, value in self._settings_without_secrets().items()}
        return {"storage_type": self.name, "storage_properties": properties, "warehouse": self.warehouse_uri()}

    def get_helm_values_override(self) -> dict[str, Any]:
        """Return nothing: this package does not deploy storage."""
        return {}

    def health_check(self) -> HealthStatus:
        """Check whether the warehouse is reachable, for at most 5 seconds."""
        return check_health(self.name, self._access_warehouse)

    def _access_warehouse(self) -> None:
        self.get_pyiceberg_fileio().new_input(f"{self.get_warehouse_uri('')}/.floe-health-check").exists()

    def _settings_without_secrets(self) -> dict[str, Any]:
        secret = (SecretStr, SecretReference, NamedSecret)
        fields = {setting.field: getattr(self.config, setting.field) for setting in self.settings}
        return {field: value for field, value in fields.items() if value is not None and not isinstance(value, secret)}


class LocalStorageConfig(StorageConfig):
    """A local folder."""


class LocalStoragePlugin(BuiltInStorage[LocalStorageConfig]):
    """The local file system, for development, tests and small installations on one machine."""

    name: ClassVar[str] = "local"
    description: ClassVar[str] = "Files on this machine."
    config_type: ClassVar[type[PluginConfig]] = LocalStorageConfig
    settings: ClassVar[tuple[Setting, ...]] = (Setting("py_io_impl", python="py-io-impl", java=None),)

    def warehouse_uri(self) -> str:
        """The folder as a `file://` location; by default below `embedded_home`."""
        given = super().warehouse_uri()
        if given is None:
            return (embedded_home() / "warehouse").as_uri()
        return given if "://" in given else Path(given).absolute().as_uri()


def embedded_home() -> Path:
    """Default folder of the catalog and the files: `$FLOE_HOME`, or `.floe` in the working directory."""
    return Path(os.environ.get("FLOE_HOME") or ".floe").absolute()


# Read by AWS clients of every language. Neither Arrow nor Java's S3FileIO has such a property.
_CHECKSUM_VARIABLES: Final = ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION")


class BucketConfig(StorageConfig):
    """A location in an object store, or bucket and prefix."""

    bucket: str | None = Field(default=None, min_length=1, description="Bucket, if 'warehouse' is not given.")
    prefix: str = Field(default="", description="Path inside the bucket.")

    def location(self, scheme: str) -> str | None:
        """The warehouse as a URI, or None if neither location nor bucket is given."""
        if self.warehouse is not None:
            return resolve_text(self.warehouse).rstrip("/")
        if self.bucket is None:
            return None
        return f"{scheme}://{resolve_text(self.bucket)}/{resolve_text(self.prefix)}".rstrip("/")


class S3StorageConfig(BucketConfig):
    """S3 or an S3-compatible store; without keys AWS's default credentials are used."""

    endpoint: str | None = Field(default=None, description="Address of an S3-compatible store; not for AWS itself.")
    region: str | None = Field(default=None, description="Region; 'us-east-1' if an endpoint is given.")
    path_style_access: bool | None = Field(
        default=None,
        description="Whether the bucket is in the path, not the host name; true if an endpoint is given.",
    )
    access_key_id: SecretValue | None = Field(default=None, description="Static key id.")
    secret_access_key: SecretValue | None = Field(default=None, description="Static secret key.")
    session_token: SecretValue | None = Field(default=None, description="Session token of temporary keys.")
    role_arn: str | None = Field(default=None, description="Role to assume.")
    role_session_name: str | None = Field(default=None, description="Session name of the assumed role.")
    connect_timeout_seconds: float = Field(default=10, gt=0, description="Longest wait for a connection.")
    request_timeout_seconds: float = Field(default=60, gt=0, description="Longest wait for a response.")
    checksums: Literal["when_supported", "when_required"] | None = Field(
        default=None,
        description="'when_required' for stores that reject the checksums that AWS clients send by default; "
        "applies to all S3 clients of the process, and to the Spark that it starts.",
    )

    @model_validator(mode="after")
    def _check_key_pair(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together: give both or neither")
        return self

    @property
    def region_or_default(self) -> str | None:
        """S3 clients need a region, even if the store ignores it."""
        return self.region or ("us-east-1" if self.endpoint else None)

    @property
    def path_style(self) -> bool:
        """Stores behind an endpoint rarely have a host name per bucket."""
        return self.endpoint is not None if self.path_style_access is None else self.path_style_access


class S3StoragePlugin(BuiltInStorage[S3StorageConfig]):
    """S3 and S3-compatible stores."""

    name: ClassVar[str] = "s3"
    description: ClassVar[str] = "S3 or an S3-compatible object store."
    config_type: ClassVar[type[PluginConfig]] = S3StorageConfig
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("endpoint", python="s3.endpoint", java="s3.endpoint"),
        Setting("region_or_default", python="s3.region", java="client.region"),
        Setting("path_style", python="s3.force-virtual-addressing", java="s3.path-style-access", python_value=negated),
        Setting("access_key_id", python="s3.access-key-id", java="s3.access-key-id"),
        Setting("secret_access_key", python="s3.secret-access-key", java="s3.secret-access-key"),
        Setting("session_token", python="s3.session-token", java="s3.session-token"),
        Setting("role_arn", python="s3.role-arn", java="client.assume-role.arn"),
        Setting("role_session_name", python="s3.role-session-name", java="client.assume-role.session-name"),
        Setting(
            "connect_timeout_seconds",
            python="s3.connect-timeout",
            java="http-client.apache.connection-timeout-ms",
            java_value=as_milliseconds,
        ),
        Setting(
            "request_timeout_seconds",
            python="s3.request-timeout",
            java="http-client.apache.socket-timeout-ms",
            java_value=as_milliseconds,
        ),
        Setting("py_io_impl", python="py-io-impl", java=None),
        # No property of either engine: `startup` sets environment variables.
        Setting("checksums", python=None, java=None),
    )

    def startup(self) -> None:
        """Set the checksums for S3 clients that this process and its JVM create later."""
        if self.config.checksums is not None:
            os.environ.update(dict.fromkeys(_CHECKSUM_VARIABLES, self.config.checksums))

    def get_pyiceberg_fileio(self) -> Any:
        self.startup()
        return super().get_pyiceberg_fileio()

    def warehouse_uri(self) -> str | None:
        return self.config.location("s3")

    def spark_properties(self) -> dict[str, str]:
        properties = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **super().spark_properties()}
        if self.config.role_arn is not None:
            region = required(self.config.region_or_default, plugin=self.name, field="region")
            properties["client.factory"] = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
            properties["client.assume-role.region"] = resolve_text(region)
        return properties

    def spark_packages(self) -> list[str]:
        return ["iceberg-aws-bundle"]


class GcsStorageConfig(BucketConfig):
    """Google Cloud Storage; without a token Google's default credentials are used."""

    project_id: str | None = Field(default=None, description="Google Cloud project.")
    token: SecretValue | None = Field(default=None, description="OAuth2 access token.")
    token_expires_at_ms: int | None = Field(default=None, description="When the token expires, in epoch milliseconds.")
    endpoint: str | None = Field(default=None, description="Address of the service, if it is not Google's.")


class GcsStoragePlugin(BuiltInStorage[GcsStorageConfig]):
    """Google Cloud Storage."""

    name: ClassVar[str] = "gcs"
    description: ClassVar[str] = "Google Cloud Storage."
    config_type: ClassVar[type[PluginConfig]] = GcsStorageConfig
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("project_id", python="gcs.project-id", java="gcs.project-id"),
        Setting("token", python="gcs.oauth2.token", java="gcs.oauth2.token"),
        Setting("token_expires_at_ms", python="gcs.oauth2.token-expires-at", java="gcs.oauth2.token-expires-at"),
        Setting("endpoint", python="gcs.service.host", java="gcs.service.host"),
        Setting("py_io_impl", python="py-io-impl", java=None),
    )

    def warehouse_uri(self) -> str | None:
        return self.config.location("gs")

    def spark_properties(self) -> dict[str, str]:
        return {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO", **super().spark_properties()}

    def spark_packages(self) -> list[str]:
        return ["iceberg-gcp-bundle"]


class AzureStorageConfig(StorageConfig):
    """Azure Data Lake Storage Gen2; without a key or token Azure's default credentials are used."""

    account_name: str = Field(min_length=1, description="Storage account.")
    container: str | None = Field(default=None, min_length=1, description="Container, if 'warehouse' is not given.")
    prefix: str = Field(default="", description="Path inside the container.")
    account_key: SecretValue | None = Field(default=None, description="Shared key of the account.")
    sas_token: SecretValue | None = Field(default=None, description="Shared access signature.")
    tenant_id: str | None = Field(default=None, description="Tenant of a service principal.")
    client_id: str | None = Field(default=None, description="Client id of a service principal.")
    client_secret: SecretValue | None = Field(default=None, description="Client secret of a service principal.")


class AzureStoragePlugin(BuiltInStorage[AzureStorageConfig]):
    """Azure Data Lake Storage Gen2.

    Java only takes a service principal from the environment (`AZURE_TENANT_ID`, `AZURE_CLIENT_ID`,
    `AZURE_CLIENT_SECRET`), so those three fields apply to PyIceberg alone.
    """

    name: ClassVar[str] = "azure"
    description: ClassVar[str] = "Azure Data Lake Storage Gen2."
    config_type: ClassVar[type[PluginConfig]] = AzureStorageConfig
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("account_name", python="adls.account-name", java=None),
        Setting("account_key", python="adls.account-key", java="adls.auth.shared-key.account.key"),
        Setting("sas_token", python="adls.sas-token", java=None),
        Setting("tenant_id", python="adls.tenant-id", java=None),
        Setting("client_id", python="adls.client-id", java=None),
        Setting("client_secret", python="adls.client-secret", java=None),
        Setting("py_io_impl", python="py-io-impl", java=None),
    )

    def warehouse_uri(self) -> str | None:
        if (given := super().warehouse_uri()) is not None:
            return given
        if self.config.container is None:
            return None
        container, prefix = resolve_text(self.config.container), resolve_text(self.config.prefix)
        return f"abfss://{container}@{self._host()}/{prefix}".rstrip("/")

    def spark_properties(self) -> dict[str, str]:
        properties = {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO", **super().spark_properties()}
        # Java needs the account name with a key and only with a key, and has a property per host for tokens.
        if self.config.account_key is not None:
            properties["adls.auth.shared-key.account.name"] = resolve_text(self.config.account_name)
        if self.config.sas_token is not None:
            properties[f"adls.sas-token.{self._host()}"] = str(resolved(self.config.sas_token))
        return properties

    def spark_packages(self) -> list[str]:
        return ["iceberg-azure-bundle"]

    def _host(self) -> str:
        return f"{resolve_text(self.config.account_name)}.dfs.core.windows.net"

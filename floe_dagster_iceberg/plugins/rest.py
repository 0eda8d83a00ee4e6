"""Catalogs with Iceberg's REST protocol, and Apache Polaris, which has rules of its own."""

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from floe_dagster_iceberg.models import RetryConfig
from floe_dagster_iceberg.plugins.base import BuiltInCatalog, CatalogConfig, levels
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.plugins.mapping import Setting, as_milliseconds, resolved
from floe_dagster_iceberg.secrets import SecretValue, is_secret_key

AccessDelegation = Literal["vended-credentials", "remote-signing", "none"]

# Resources only take strings, so a nested setting may be JSON text.
_Retry = Annotated[RetryConfig, BeforeValidator(lambda value: json.loads(value) if isinstance(value, str) else value)]


class RestCatalogConfig(CatalogConfig):
    """Address and credentials of a REST catalog."""

    uri: str = Field(min_length=1, description="Address of the catalog, without '/v1'.")
    client_id: SecretValue | None = Field(default=None, description="OAuth2 client id.")
    client_secret: SecretValue | None = Field(default=None, description="OAuth2 client secret.")
    credential: SecretValue | None = Field(default=None, description="Client id and secret in one, as 'id:secret'.")
    token: SecretValue | None = Field(default=None, description="Bearer token, instead of client id and secret.")
    scope: str | None = Field(default=None, description="OAuth2 scope.")
    token_url: str | None = Field(default=None, description="Token endpoint; '<uri>/v1/oauth/tokens' if not given.")
    audience: str | None = Field(default=None, description="OAuth2 audience.")
    resource: str | None = Field(default=None, description="OAuth2 resource.")
    prefix: str | None = Field(default=None, description="Path prefix of the catalog, if the server does not send it.")
    access_delegation: AccessDelegation = Field(
        default="vended-credentials", description="How the server grants access to the files."
    )
    token_refresh_enabled: bool = Field(default=True, description="Whether Spark renews tokens before they expire.")
    connect_timeout_seconds: float = Field(default=10, gt=0, le=60, description="Longest wait for a connection.")
    read_timeout_seconds: float = Field(default=60, gt=0, le=600, description="Longest wait for the next byte.")
    total_timeout_seconds: float = Field(default=180, gt=0, le=3600, description="Longest time for all attempts.")
    retry: _Retry = Field(default_factory=RetryConfig, description="How requests are repeated.")

    @model_validator(mode="after")
    def _check_single_credential(self) -> Self:
        if (self.client_id is None) != (self.client_secret is None):
            raise ValueError("client_id and client_secret belong together: give both or neither")
        given = [name for name in ("client_id", "credential", "token") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give one of them")
        return self


class PolarisCatalogConfig(RestCatalogConfig):
    """Address and credentials of Apache Polaris."""

    warehouse: str = Field(min_length=1, description="Name of the Polaris catalog.")
    scope: str = Field(
        default="PRINCIPAL_ROLE:ALL", description="Roles to activate: PRINCIPAL_ROLE:<role>, or all of them."
    )

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        if self.client_id is None and self.credential is None and self.token is None:
            raise ValueError("Polaris needs client_id and client_secret, a credential, or a token")
        return self


class RestCatalogPlugin(BuiltInCatalog[RestCatalogConfig]):
    """Any catalog with Iceberg's REST protocol."""

    name: ClassVar[str] = "rest"
    description: ClassVar[str] = "Iceberg REST catalog."
    config_type: ClassVar[type[CatalogConfig]] = RestCatalogConfig
    is_polaris: ClassVar[bool] = False
    # Client id, secret and scope reach PyIceberg through our own authentication, not as properties.
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("uri", python="uri", java="uri"),
        Setting("warehouse", python="warehouse", java="warehouse"),
        Setting("prefix", python="prefix", java="prefix"),
        Setting("token", python="token", java="token"),
        Setting("scope", python=None, java="scope"),
        Setting("audience", python=None, java="audience"),
        Setting("resource", python=None, java="resource"),
        Setting("token_refresh_enabled", python=None, java="token-refresh-enabled"),
        Setting(
            "connect_timeout_seconds",
            python=None,
            java="rest.client.connection-timeout-ms",
            java_value=as_milliseconds,
        ),
        Setting("read_timeout_seconds", python=None, java="rest.client.socket-timeout-ms", java_value=as_milliseconds),
    )

    @property
    def token_url(self) -> str:
        """Where tokens are issued."""
        given = self.config.token_url
        return str(resolved(given)) if given else f"{str(resolved(self.config.uri)).rstrip('/')}/v1/oauth/tokens"

    def pyiceberg_properties(self) -> dict[str, str]:
        return {**super().pyiceberg_properties(), **self._delegation_header()}

    def spark_properties(self) -> dict[str, str]:
        # Java does not allow zero.
        properties = {"type": "rest", "rest.client.max-retries": str(max(self.config.retry.max_attempts - 1, 1))}
        if (credential := self._credential()) is not None:
            properties |= {"credential": credential, "oauth2-server-uri": self.token_url}
            # Every token endpoint issues a new token for the credential; few exchange an old one.
            properties["token-exchange-enabled"] = "false"
        if credential is not None or self.config.token is not None:
            properties["rest.auth.type"] = "oauth2"
        if self.config.access_delegation == "vended-credentials":
            # Spark would cache an unchanged table for minutes, and with it credentials that may have expired.
            properties["rest-table-cache.max-entries"] = "0"
        return {**properties, **super().spark_properties(), **self._delegation_header()}

    def open_catalog(self, properties: dict[str, str]) -> Any:
        # requests and PyIceberg's REST client are slow to import, and a code location needs neither.
        from floe_dagster_iceberg._pyiceberg import rest_catalog  # noqa: PLC0415

        name, auth = self.config.catalog_name, None
        policy = rest_catalog.HttpPolicy(
            connect_timeout_seconds=self.config.connect_timeout_seconds,
            read_timeout_seconds=self.config.read_timeout_seconds,
            total_timeout_seconds=self.config.total_timeout_seconds,
            retry=self.config.retry,
        )
        if form := self._token_form():
            system = "polaris" if self.is_polaris else "iceberg"
            auth = rest_catalog.ClientCredentials(
                name, token_url=self.token_url, form=form, policy=policy, system=system
            )
        catalog_type = rest_catalog.PolarisCatalog if self.is_polaris else rest_catalog.FloeRestCatalog
        delegate_access = self.config.access_delegation != "none"
        return catalog_type(name, policy=policy, auth=auth, delegate_access=delegate_access, properties=properties)

    def vend_credentials(self, table_path: str, operations: list[str]) -> dict[str, Any]:
        """Get short-lived storage credentials for a table.

        Raises:
            EngineCapabilityError: The server vends none.
        """
        with translate_errors(self.config.catalog_name, table=table_path):
            io = self.catalog.load_table(levels(table_path)).io
        own = self.catalog.properties
        vended = {key: value for key, value in io.properties.items() if is_secret_key(key) and own.get(key) != value}
        return vended or super().vend_credentials(table_path, operations)

    def _delegation_header(self) -> dict[str, str]:
        if self.config.access_delegation == "none":
            return {}
        return {"header.X-Iceberg-Access-Delegation": self.config.access_delegation}

    def _credential(self) -> str | None:
        if self.config.credential is not None:
            return str(resolved(self.config.credential))
        if self.config.client_id is None:
            return None
        return f"{resolved(self.config.client_id)}:{resolved(self.config.client_secret)}"

    def _token_form(self) -> dict[str, str]:
        credential = self._credential()
        if credential is None:
            return {}
        client_id, colon, secret = credential.partition(":")
        form = {"client_id": client_id, "client_secret": secret} if colon else {"client_secret": credential}
        for field in ("scope", "audience", "resource"):
            if (value := getattr(self.config, field)) is not None:
                form[field] = str(resolved(value))
        form.setdefault("scope", "catalog")
        return form


class PolarisCatalogPlugin(RestCatalogPlugin):
    """Apache Polaris."""

    name: ClassVar[str] = "polaris"
    description: ClassVar[str] = "Apache Polaris catalog."
    config_type: ClassVar[type[CatalogConfig]] = PolarisCatalogConfig
    is_polaris: ClassVar[bool] = True

"""`observability.telemetry` of the artifacts as telemetry settings."""

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from floe_dagster_iceberg.artifacts.shapes import CompiledModel
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.secrets import SecretValue, secret_as_text
from floe_dagster_iceberg.telemetry import SCOPE
from floe_dagster_iceberg.telemetry.setup import SecretHeader, TelemetrySettings, set_log_format

PATH: Final = "observability.telemetry"
# The compiler's names of attributes, and those of OpenTelemetry and of floe's other parts.
_RESOURCE_ATTRIBUTES: Final = {
    "service_name": ("service.name",),
    "service_version": ("service.version",),
    # Renamed by OpenTelemetry; floe's other parts send the old name.
    "deployment_environment": ("deployment.environment.name", "deployment.environment"),
    "floe_namespace": ("floe.namespace",),
    "floe_product_name": ("floe.product.name",),
    "floe_product_version": ("floe.product.version",),
    "floe_mode": ("floe.mode",),
}
_MASK: Final = "**********"


class Authentication(CompiledModel):
    """Credentials for the collector, as compiled."""

    auth_type: Literal["api_key", "bearer"] = Field(description="Kind of the secret.")
    api_key: SecretValue | None = Field(default=None, description="The key, with 'api_key'.")
    bearer_token: SecretValue | None = Field(default=None, description="The token, with 'bearer'.")
    header_name: str = Field(default="Authorization", description="Header that carries the secret.")

    def header(self) -> SecretHeader:
        """Return the header with the secret, which is not resolved yet."""
        is_key = self.auth_type == "api_key"
        given = self.api_key if is_key else self.bearer_token
        text = "" if given is None else secret_as_text(given)
        if text in ("", _MASK):
            name = "api_key" if is_key else "bearer_token"
            raise ValidationError(
                f"{PATH}.authentication.{name} holds no secret. Write a reference to it, such as '${{OTLP_TOKEN}}'."
            )
        return SecretHeader(self.header_name, text, scheme="" if is_key else "Bearer")


class LoggingSettings(CompiledModel):
    """Level and format of log events."""

    log_level: str | None = Field(default=None, description="Level of the logger 'floe_dagster_iceberg'.")
    json_output: bool | None = Field(default=None, description="Whether log events are JSON lines.")

    def apply(self) -> None:
        """Set the format and the level of this package's logger, if given."""
        if self.json_output is not None:
            set_log_format("json" if self.json_output else "console")
        if (level := logging.getLevelNamesMapping().get((self.log_level or "").upper())) is not None:
            logging.getLogger(SCOPE).setLevel(level)


class TelemetrySection(CompiledModel):
    """Telemetry settings as compiled."""

    enabled: bool = Field(default=True, description="Whether telemetry is sent.")
    otlp_endpoint: str | None = Field(default=None, description="The collector; without it nothing is sent.")
    otlp_protocol: Literal["grpc", "http"] = Field(default="grpc", description="Protocol; 'http' is refused.")
    sampling: dict[str, float] = Field(
        default_factory=dict, description="Share of traces to send, by 'deployment_environment'; all by default."
    )
    resource_attributes: dict[str, Any] = Field(
        default_factory=dict, description="Attributes of the OpenTelemetry resource."
    )
    authentication: Authentication | None = Field(default=None, description="Credentials for the collector.")
    logging: LoggingSettings = Field(default_factory=LoggingSettings, description="Log events.")

    def settings(self, resource: Mapping[str, str]) -> TelemetrySettings | None:
        """Return the collector and the resource attributes; None without a collector, or if telemetry is disabled.

        Args:
            resource: Resource attributes from other parts of the artifacts.

        Raises:
            ValidationError: The protocol is not supported, or a secret is missing.
        """
        if not self.enabled or not self.otlp_endpoint:
            return None
        if self.otlp_protocol != "grpc":
            raise ValidationError(
                f"{PATH}.otlp_protocol '{self.otlp_protocol}' is not supported. "
                "Use 'grpc' and the collector's port for it, which is 4317 by default."
            )
        environment = str(self.resource_attributes.get("deployment_environment", ""))
        return TelemetrySettings(
            endpoint=self.otlp_endpoint,
            resource={**resource, **_renamed(self.resource_attributes)},
            headers=() if self.authentication is None else (self.authentication.header(),),
            sampling_ratio=min(max(self.sampling.get(environment, 1.0), 0.0), 1.0),
        )


def _renamed(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value)
        for key, value in attributes.items()
        if value not in (None, "")
        for name in _RESOURCE_ATTRIBUTES.get(key, (key,))
    }

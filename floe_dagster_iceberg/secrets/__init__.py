"""Secrets: written in one of five forms, resolved at run time only, and never shown.

    plain text                      "s3cr3t"
    an environment variable         "${POLARIS_SECRET}"
    dbt's spelling of the same      "{{ env_var('POLARIS_SECRET') }}"
    a reference with a source       {"source": "kubernetes", "name": "polaris", "key": "client-secret"}
    a bare reference                {"secret_ref": "polaris-client-secret"}

The last two also work as JSON text, for string fields. They are looked up in the environment, then in
the folder where secrets are mounted (`$FLOE_SECRETS_DIR`, else `/var/run/secrets`). `redact` masks every
value that was resolved here.
"""

from floe_dagster_iceberg.secrets.redaction import (
    LEFT_OUT,
    REDACTION_REGEX,
    describe_failure,
    is_secret_key,
    message_of,
    quotes_data,
    redact,
    redact_attributes,
    redact_properties,
    remember_secret,
    scrub_exception,
    scrub_text,
)
from floe_dagster_iceberg.secrets.references import (
    NamedSecret,
    SecretReference,
    SecretValue,
    is_reference,
    resolve_properties,
    resolve_secret,
    resolve_text,
    secret_as_text,
)

__all__ = [
    "LEFT_OUT",
    "REDACTION_REGEX",
    "NamedSecret",
    "SecretReference",
    "SecretValue",
    "describe_failure",
    "is_reference",
    "is_secret_key",
    "message_of",
    "quotes_data",
    "redact",
    "redact_attributes",
    "redact_properties",
    "remember_secret",
    "resolve_properties",
    "resolve_secret",
    "resolve_text",
    "scrub_exception",
    "scrub_text",
    "secret_as_text",
]

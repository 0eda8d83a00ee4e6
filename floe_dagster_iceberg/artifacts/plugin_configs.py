"""Catalog and storage settings as the producers write them -> as our plugins take them."""

from collections.abc import Mapping
from typing import Any

from floe_dagster_iceberg.errors import ValidationError

_STORAGE_TYPES = {"minio": "s3", "adls": "azure", "abfs": "azure", "gs": "gcs", "file": "local"}
_STORAGE_KEYS = {
    "endpoint_url": "endpoint",
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "path": "warehouse",
    "root": "warehouse",
}
# Settings of the producer's own client that have no meaning here.
_NOT_OURS = frozenset({"refresh_margin_seconds", "mode"})


def catalog_config(given: Mapping[str, Any], *, path: str) -> tuple[dict[str, Any], str | None]:
    """Flatten a catalog's settings.

    Returns:
        The settings, and the default namespace when they name one.
    """
    config = _flattened(given, nested=("oauth2", "credentials", "properties"), path=path)
    namespace = config.pop("default_namespace", None) or config.pop("namespace", None)
    config.pop("namespace", None)
    if (name := config.pop("credential_secret_ref", None)) is not None:
        config["credential"] = {"secret_ref": name}
    if (name := config.pop("secret_ref", None)) is not None:
        config.setdefault("credential", {"secret_ref": name})
    if config.pop("credential_vending_enabled", None) is False:
        config["access_delegation"] = "none"
    if (retries := config.pop("max_retries", None)) is not None:
        # The producer counts repetitions, we count attempts and allow ten.
        config.setdefault("retry", {"max_attempts": min(int(retries) + 1, 10)})
    config.pop("role_arn", None)
    return config, namespace


def storage_config(given: Mapping[str, Any], *, path: str) -> dict[str, Any]:
    """Flatten a storage's settings."""
    config = _flattened(given, nested=("credentials", "properties"), path=path)
    if (name := config.pop("secret_ref", None)) is not None:
        config.setdefault("access_key_id", {"source": "kubernetes", "name": name, "key": "access-key-id"})
        config.setdefault("secret_access_key", {"source": "kubernetes", "name": name, "key": "secret-access-key"})
    return {_STORAGE_KEYS.get(key, key): value for key, value in config.items()}


def storage_type(name: str) -> str:
    """Our name of a storage that the producer names after a product."""
    return _STORAGE_TYPES.get(name, name)


def _flattened(given: Mapping[str, Any], *, nested: tuple[str, ...], path: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in given.items():
        if key not in nested:
            flat[key] = value
        elif isinstance(value, Mapping):
            flat.update(value)
        elif value is not None:
            raise ValidationError(f"{path}.{key} must be a mapping, not {type(value).__name__}.")
    # Compilers write every field they know; what is empty is as good as absent.
    return {key: value for key, value in flat.items() if value not in (None, "") and key not in _NOT_OURS}

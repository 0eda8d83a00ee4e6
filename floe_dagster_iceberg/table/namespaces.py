"""Namespaces that have to be there before something can be put into them."""

from collections.abc import Mapping

from pyiceberg.catalog import Catalog

Levels = tuple[str, ...]


def ensure_namespace(catalog: Catalog, levels: Levels, properties: Mapping[str, str] | None = None) -> None:
    """Create a namespace and those above it, as far as they are missing.

    It looks before it creates: who may use a namespace need not be allowed to create one. And it looks after a
    creation that failed: the answer may be what was lost, and some servers answer a race for it with an error of
    their own.
    """
    if catalog.namespace_exists(levels):
        return
    ensure_parent(catalog, levels)
    try:
        catalog.create_namespace_if_not_exists(levels, dict(properties or {}))
    except Exception:
        if not _is_seen(catalog, levels):
            raise


def ensure_parent(catalog: Catalog, levels: Levels) -> None:
    """Create what is missing above a namespace; Polaris, for one, creates nothing below a gap."""
    if parent := levels[:-1]:
        ensure_namespace(catalog, parent)


def _is_seen(catalog: Catalog, levels: Levels) -> bool:
    """Whether a namespace is known to exist; what prevents a look is not what went wrong first."""
    try:
        return bool(catalog.namespace_exists(levels))
    except Exception:  # noqa: BLE001 - whatever it is
        return False

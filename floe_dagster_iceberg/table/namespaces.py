"""Namespaces that have to be there before something can be put into them."""

from collections.abc import Mapping

from pyiceberg.catalog import Catalog

Levels = tuple[str, ...]


def ensure_namespace(catalog: Catalog, levels: Levels, properties: Mapping[str, str] | None = None) -> None:
    """Create a namespace and those above it, as far as they are missing.

    It looks before it creates: who may use a namespace need not be allowed to create one.
    """
    if not catalog.namespace_exists(levels):
        ensure_parent(catalog, levels)
        catalog.create_namespace_if_not_exists(levels, dict(properties or {}))


def ensure_parent(catalog: Catalog, levels: Levels) -> None:
    """Create what is missing above a namespace; Polaris, for one, creates nothing below a gap."""
    if parent := levels[:-1]:
        ensure_namespace(catalog, parent)

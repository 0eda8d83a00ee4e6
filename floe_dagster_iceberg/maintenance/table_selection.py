"""Globs over a catalog -> tables."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from floe_dagster_iceberg.errors import ScanError
from floe_dagster_iceberg.models import TableIdentifier

if TYPE_CHECKING:
    # It brings PyIceberg and Arrow along, seconds that loading must not cost.
    from floe_dagster_iceberg.table.manager import IcebergTableManager

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SelectedTables:
    """What globs stand for at this moment.

    Attributes:
        found: Tables of the catalog, in order of their names.
        missing: Names without a wildcard that the catalog does not have.
    """

    found: Sequence[TableIdentifier]
    missing: Sequence[str]


def select_tables(manager: "IcebergTableManager", globs: Sequence[str]) -> SelectedTables:
    """Find the tables that match any of the globs; `*` also stands for the dots of nested namespaces.

    Only namespaces that can hold a match are listed, and a table named in full is not searched for.
    """
    names = {glob for glob in globs if _WILDCARD.search(glob) is None}
    patterns = [glob for glob in globs if glob not in names]
    missing = {name for name in names if not _exists(manager, name)}
    listed = set() if not patterns else set(_tables(manager, patterns))
    found = listed | {TableIdentifier.from_string(name) for name in names - missing}
    return SelectedTables(sorted(found, key=str), sorted(missing))


def _exists(manager: "IcebergTableManager", name: str) -> bool:
    if "." not in name:
        return False
    try:
        return manager.table_exists(name)
    except ScanError:
        # The catalog has it; what is wrong with it is told when its turn comes, and keeps no other from its own.
        return True


def _tables(manager: "IcebergTableManager", patterns: Sequence[str], parent: str = "") -> Iterator[TableIdentifier]:
    for namespace in manager.list_namespaces(parent) if parent else manager.list_namespaces():
        if not any(_may_hold(namespace, pattern) for pattern in patterns):
            continue
        for name in manager.list_tables(namespace):
            if any(fnmatchcase(f"{namespace}.{name}", pattern) for pattern in patterns):
                # A name that another tool chose may break our rules; the catalog knows it all the same.
                yield TableIdentifier.model_construct(namespace=namespace, name=name)
        yield from _tables(manager, patterns, namespace)


def _may_hold(namespace: str, pattern: str) -> bool:
    fixed = _WILDCARD.split(pattern, maxsplit=1)[0]
    inside = f"{namespace}."
    return inside.startswith(fixed) or fixed.startswith(inside)

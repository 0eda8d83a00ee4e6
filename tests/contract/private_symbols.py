"""Where the package uses private symbols of PyIceberg, found in its source."""

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyiceberg

import floe_dagster_iceberg

PACKAGE = Path(inspect.getfile(floe_dagster_iceberg)).parent


def used_symbols() -> dict[str, set[str]]:
    """Files by the private symbol of PyIceberg that they use: 'module._name' or 'Class._name'.

    - Names that are imported from PyIceberg.
    - Attributes of `self`, and methods, that a subclass of ours has from a class of PyIceberg.
    - Attributes of anything else that some class of PyIceberg has, as '?._name': only types know which.
    """
    found = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for symbol in {*_imported(path), *_inherited(path), *_of_others(path)}:
            found[symbol].add(str(path.relative_to(PACKAGE)))
    return dict(found)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pyiceberg":
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_private(alias.name))


def _inherited(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ClassDef) and (bases := _pyiceberg_bases(path, node)):
            for name in {*_methods(node), *_own_attributes(node)}:
                owners = [base for base in bases if name in private_names(base)]
                yield from (f"{owner.__name__}.{name}" for owner in owners[-1:])


def _pyiceberg_bases(path: Path, node: ast.ClassDef) -> list[type]:
    if not any(isinstance(base, ast.Name | ast.Attribute | ast.Subscript) for base in node.bases):
        return []
    module = importlib.import_module(".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)))
    kind = getattr(module, node.name, None)
    return [] if kind is None else [base for base in kind.__mro__ if base.__module__.startswith("pyiceberg.")]


def _of_others(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not _is_own(node.value):
            yield from [f"?.{node.attr}"] * (node.attr in all_private_names())


def _methods(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and is_private(each.name):
            yield each.name


def _own_attributes(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and is_private(each.attr) and _is_own(each.value):
            yield each.attr


def _is_own(value: ast.expr) -> bool:
    is_super = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
    return is_super or (isinstance(value, ast.Name) and value.id in {"self", "cls"})


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def private_names(kind: type) -> set[str]:
    """What a class itself defines, annotates or assigns to `self`."""
    (node,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(node, ast.ClassDef)
    return _names_in(node)


def _names_in(node: ast.ClassDef) -> set[str]:
    targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    annotated = {target.id for target in targets if isinstance(target, ast.Name) and is_private(target.id)}
    return annotated.union(_methods(node), _own_attributes(node))


@cache
def all_private_names() -> set[str]:
    """Of all classes of PyIceberg."""
    found: set[str] = set()
    for path in Path(inspect.getfile(pyiceberg)).parent.rglob("*.py"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ClassDef):
                found |= _names_in(node)
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())

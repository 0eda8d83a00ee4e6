"""List which requirements have a test that names them.

A test names requirements with `@pytest.mark.requirement("S2-FR-016")`. `requirement_ids.txt` has
all ids, `unproven_requirements.txt` those that no test names yet. The second list may only shrink:
`--prune` removes ids that a test now names, and nothing adds one. Ids "X…" resolve contradictions
between other requirements; tests may name them, but need not.
"""

import argparse
import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
IDS = TESTS / "contract" / "requirement_ids.txt"
UNPROVEN = TESTS / "contract" / "unproven_requirements.txt"
# The requirements are next to the checkout, if present.
SOURCE = ROOT.parent / "shared" / "requirements.md"

# The first word of a table's first column.
ROW = re.compile(r"^\| (?P<id>(?:S\d-|D\d|X\d)\S*) ", re.MULTILINE)


def ids_in(requirements: str) -> list[str]:
    """Ids in the requirements file, in its order."""
    return [row["id"] for row in ROW.finditer(requirements)]


def read_ids(path: Path) -> list[str]:
    """Ids in one of our lists: one per line, `#` starts a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def promises(ids: list[str]) -> list[str]:
    """The requirements that need a test."""
    return [row for row in ids if not row.startswith("X")]


@dataclass(frozen=True)
class Naming:
    """One place where a test names a requirement."""

    row: str
    place: str


def namings(tests: Path = TESTS) -> Iterator[Naming]:
    """Every requirement named by a `requirement` marker under `tests`, however it is attached."""
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                place = f"{path.relative_to(tests.parent)}:{node.lineno}"
                yield from (Naming(_literal(argument, place), place) for argument in node.args)


def _literal(argument: ast.expr, place: str) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    raise SystemExit(f"{place} names a requirement by '{ast.unparse(argument)}'. Write the id as a plain string.")


def unknown_rows(named: list[Naming], ids: list[str]) -> list[str]:
    """A message for each unknown requirement that a test names."""
    return [
        f"{naming.place} names '{naming.row}', which is not a requirement. "
        f"Similar ids: {', '.join(difflib.get_close_matches(naming.row, ids)) or 'nothing'}."
        for naming in named
        if naming.row not in ids
    ]


def prune() -> None:
    """Remove from the open list the ids that a test now names; comments are kept."""
    named = {naming.row for naming in namings()}
    lines = UNPROVEN.read_text().splitlines(keepends=True)
    UNPROVEN.write_text("".join(line for line in lines if line.partition("#")[0].strip() not in named))


def report() -> str:
    """The open requirements, in the order of the file."""
    rows = promises(read_ids(IDS))
    named = {naming.row for naming in namings()}
    open_rows = [row for row in rows if row not in named]
    proven = len(rows) - len(open_rows)
    return f"{proven} of {len(rows)} requirements have a test.\nWithout a test: {' '.join(open_rows) or 'none'}"


def main() -> None:
    """Print the report; with `--prune`, update the open list first."""
    parser = argparse.ArgumentParser(description="List which requirements have a test that names them.")
    parser.add_argument("--prune", action="store_true", help="remove proven requirements from the open list")
    if parser.parse_args().prune:
        prune()
    print(report())


if __name__ == "__main__":
    main()

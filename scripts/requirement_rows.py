"""Which rows of the requirements have a test that names them.

A test names rows with `@pytest.mark.requirement("S2-FR-016")`. `requirement_ids.txt` holds every
row's id, `unproven_requirements.txt` those that no test names yet. That second list may only
shrink: `--prune` drops the rows that a test names now, and nothing adds one. Rows "X…" settle
contradictions between the others; a test may name them, none has to.
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
# The requirements themselves live beside the checkout, where they are there at all.
SOURCE = ROOT.parent / "shared" / "requirements.md"

# The first word of a table's first column.
ROW = re.compile(r"^\| (?P<id>(?:S\d-|D\d|X\d)\S*) ", re.MULTILINE)


def ids_in(requirements: str) -> list[str]:
    """Ids of the rows of the requirements file, in its order."""
    return [row["id"] for row in ROW.finditer(requirements)]


def read_ids(path: Path) -> list[str]:
    """Ids in one of our lists: one a line, `#` starts a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def promises(ids: list[str]) -> list[str]:
    """The rows that need a test."""
    return [row for row in ids if not row.startswith("X")]


@dataclass(frozen=True)
class Naming:
    """One place where a test names a row."""

    row: str
    place: str


def namings(tests: Path = TESTS) -> Iterator[Naming]:
    """Every row named by a `requirement` mark under `tests`, however the mark is attached."""
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                place = f"{path.relative_to(tests.parent)}:{node.lineno}"
                yield from (Naming(_literal(argument, place), place) for argument in node.args)


def _literal(argument: ast.expr, place: str) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    raise SystemExit(f"{place} names a row by '{ast.unparse(argument)}'. Write the id as a plain string.")


def unknown_rows(named: list[Naming], ids: list[str]) -> list[str]:
    """A sentence for each mark whose row does not exist."""
    return [
        f"{naming.place} names '{naming.row}', which is no row. "
        f"Close to it: {', '.join(difflib.get_close_matches(naming.row, ids)) or 'nothing'}."
        for naming in named
        if naming.row not in ids
    ]


def prune() -> None:
    """Drop from the open list the rows that a test names by now; comments stay."""
    named = {naming.row for naming in namings()}
    lines = UNPROVEN.read_text().splitlines(keepends=True)
    UNPROVEN.write_text("".join(line for line in lines if line.partition("#")[0].strip() not in named))


def report() -> str:
    """The open rows, in the order of the requirements."""
    rows = promises(read_ids(IDS))
    named = {naming.row for naming in namings()}
    open_rows = [row for row in rows if row not in named]
    proven = len(rows) - len(open_rows)
    return f"{proven} of {len(rows)} rows have a test.\nNo test names: {' '.join(open_rows) or 'none'}"


def main() -> None:
    """Print the report, after pruning the open list if asked to."""
    parser = argparse.ArgumentParser(description="Which requirement rows have a test that names them.")
    parser.add_argument("--prune", action="store_true", help="drop the proven rows from the open list")
    if parser.parse_args().prune:
        prune()
    print(report())


if __name__ == "__main__":
    main()

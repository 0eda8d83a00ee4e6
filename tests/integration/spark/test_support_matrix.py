"""Every cell of the tables in docs/engines.md: what each engine does to tables that other tools made."""

import pytest
from support.support_matrix import CASES, COLUMNS, ENGINES, Case, Engine, MatrixLake, documented, outcome

# One of each kind; the others take minutes.
QUICK = {
    ("position deletes", 2, "Arrow"),
    ("nanosecond timestamps", 3, "Spark"),
    ("view", 0, "Arrow"),
}


ROWS = [
    pytest.param(
        case,
        engine,
        id=f"{engine}, {case}",
        marks=() if (case.feature, case.version, engine) in QUICK else pytest.mark.slow,
    )
    for case in CASES
    for engine in ENGINES
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> MatrixLake:
    return MatrixLake(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_of_table_and_every_operation_is_documented(engine: Engine) -> None:
    cells = documented(engine)

    assert list(cells) == CASES
    assert {tuple(row) for row in cells.values()} == {COLUMNS}


@pytest.mark.parametrize(("case", "engine"), ROWS)
def test_an_engine_does_what_the_documentation_says(matrix: MatrixLake, case: Case, engine: Engine) -> None:
    matrix.make(case)

    assert {column: outcome(matrix, case, engine, column) for column in COLUMNS} == documented(engine)[case]

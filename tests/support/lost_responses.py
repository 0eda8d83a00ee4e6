"""Every way in which the response to a commit gets lost, tried often; what became of it is counted in the table."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.table import Table
from support.servers.faults import HANG, LATE, RESET, TRUNCATED, Fault
from support.servers.gateway import COMMIT, Gateway
from support.table_facts import live_files

from floe_dagster_iceberg.errors import FloeStorageError

_BOTH_WAYS = {
    "reset": RESET,
    "hang": HANG,
    "truncated body": TRUNCATED,
    "409": Fault(409),
    "429": Fault(429, headers={"Retry-After": "0"}),
    "500": Fault(500),
    "502": Fault(502, body="<html>bad gateway</html>"),
    "503": Fault(503),
    "504": Fault(504, body="<html>gateway timeout</html>"),
}
FORMS: dict[str, Fault] = {
    **{f"{name} before": fault for name, fault in _BOTH_WAYS.items()},
    **{f"{name} after": fault.after() for name, fault in _BOTH_WAYS.items()},
    "reset, lands late": LATE,
}
"""Before or after the commit reached the server."""
FORMS_OF_PYICEBERG = {**FORMS, "400 after": Fault(400).after()}
"""Something on the way sends a request again, which is invalid the second time. Spark takes that for a refusal."""

Write = Callable[[int], object]


@dataclass
class Figures:
    """What came of the trials of one form.

    Attributes:
        at_once: Writes that reported success at the first go.
        run_again: Writes that ended with an error that says it may be tried again, and then were.
    """

    form: str
    at_once: int = 0
    run_again: Counter[str] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    snapshots: int = 0

    @property
    def trials(self) -> int:
        return self.at_once + self.run_again.total()

    @property
    def losses(self) -> int:
        return len([number for number in range(self.trials) if not self.rows[number]])

    @property
    def doubles(self) -> int:
        return len([number for number, times in self.rows.items() if times > 1])

    def __str__(self) -> str:
        again = ", ".join(f"{times} {name}" for name, times in self.run_again.items()) or "none"
        return (
            f"{self.form:<22} {self.trials:>4} trials, {self.at_once:>4} at once, run again: {again}; "
            f"{self.losses} losses, {self.doubles} doubles, {self.snapshots} snapshots"
        )


def try_often(gateway: Gateway, form: str, trials: int, write: Write) -> Figures:
    """Write number after number; the response to the first commit of each is lost in that form.

    A write that fails with an error that may be retried is run again, as a scheduler would.
    """
    figures = Figures(form)
    for number in range(trials):
        gateway.fail("POST", COMMIT, FORMS_OF_PYICEBERG[form])
        try:
            write(number)
            figures.at_once += 1
        except FloeStorageError as error:
            if not error.retryable:
                raise
            figures.run_again[type(error).__name__] += 1
            write(number)
        gateway.recover()
    return figures


def count(figures: Figures, table: Table) -> Figures:
    """Fill in what the table holds; reads every data file and manifest."""
    figures.rows = Counter(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())
    figures.snapshots = len(table.metadata.snapshots)
    assert sum(file.record_count for file in live_files(table).values()) == figures.rows.total()
    return figures

"""What Spark tells of its jobs, in its UI, its event log and its history: for whom they are done.

A description for people, and tags for programs. Sessions of Spark Connect have tags alone.
"""

from dataclasses import dataclass

from floe_dagster_iceberg.telemetry import TRACE_ID_PROPERTY, Operation, attributes as names, running_operation

_RUN_ID_TAG = "dagster.run-id"


@dataclass(frozen=True)
class JobMarks:
    """Marks for the jobs of one action.

    Attributes:
        tags: Tags; programs find and cancel jobs by them.
        description: One line; None when nothing is known.
    """

    tags: tuple[str, ...] = ()
    description: str | None = None

    @classmethod
    def of_running_operation(cls) -> "JobMarks":
        """Marks that lead to the trace and the Dagster run of what is going on."""
        operation = running_operation()
        if operation is None:
            return cls()
        known = {TRACE_ID_PROPERTY: operation.trace_id, _RUN_ID_TAG: operation.told.get(names.RUN_ID)}
        tags = tuple(f"{name}={value}" for name, value in known.items() if value is not None)
        return cls(tags, _describe(operation))


def _describe(operation: Operation) -> str:
    words = [operation.name, operation.told.get(names.TABLE)]
    if (run_id := operation.told.get(names.RUN_ID)) is not None:
        words.append(f"for Dagster run {run_id}")
    return " ".join(str(word) for word in words if word)

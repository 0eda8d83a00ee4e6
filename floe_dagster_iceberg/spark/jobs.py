"""What Spark tells of its jobs, in its UI, its event log and its history: for whom they are done.

A description for people, and tags for programs. Sessions of Spark Connect have tags alone.
"""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from floe_dagster_iceberg.models import snapshot_properties
from floe_dagster_iceberg.telemetry import Operation, attributes as attrs, running_operation


@dataclass(frozen=True)
class JobTags:
    """Marks for the jobs of one action.

    Attributes:
        tags: Tags; programs find and cancel jobs by them.
        description: One line; None when nothing is known.
    """

    tags: tuple[str, ...] = ()
    description: str | None = None

    @classmethod
    def of_running_operation(cls) -> "JobTags":
        """Marks that lead to the trace and the Dagster run of what is going on."""
        operation = running_operation()
        if operation is None:
            return cls()
        known = {
            snapshot_properties.TRACE_ID: operation.trace_id,
            snapshot_properties.RUN_ID: operation.attributes.get(attrs.RUN_ID),
        }
        tags = tuple(f"{name}={value}" for name, value in known.items() if value is not None)
        return cls(tags, _describe(operation))


def _describe(operation: Operation) -> str:
    words = [operation.name, operation.attributes.get(attrs.TABLE)]
    if (run_id := operation.attributes.get(attrs.RUN_ID)) is not None:
        words.append(f"for Dagster run {run_id}")
    return " ".join(str(word) for word in words if word)


Answer = TypeVar("Answer")
_PAUSE_SECONDS: Final = 0.5
_DESCRIPTION: Final = "spark.job.description"


def run_action(session: SparkSession, action: Callable[[], Answer]) -> Answer:
    """Run an action to its end, or to its cancellation if this thread is interrupted meanwhile.

    An action that had begun its commit when the interruption came may still have finished it.
    """
    thread = _ActionThread(session, action)
    try:
        thread.start()
        # Not by joining the thread: Python 3.11 takes a thread for stopped once a wait for it was interrupted.
        return cast("Answer", thread.outcome.result())
    except BaseException:
        thread.interrupt()
        raise


class _ActionThread(InheritableThread):
    """One action, with the job group, tags and properties of the thread that wants it."""

    def __init__(self, session: SparkSession, action: Callable[[], Any]) -> None:
        self.outcome: Future[Any] = Future()
        self._spark, self._action, self._tag = session, action, f"floe-{uuid.uuid4().hex}"
        # Asked here, because the operation is that of the thread that wants the action.
        self._marks = JobTags.of_running_operation()
        self._begun, self._interrupted = threading.Event(), threading.Event()
        super().__init__(target=self._act, name=self._tag, daemon=True, session=session)

    def run(self) -> None:
        self._begun.set()
        if self._interrupted.is_set():
            self.outcome.cancel()
            return
        try:
            super().run()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.outcome.set_exception(error)

    def interrupt(self) -> None:
        """Cancel what has begun, and wait for its end; what has not, does not begin."""
        self._interrupted.set()
        # More than once: jobs follow each other, and the first may not have come.
        while self._begun.is_set() and not self.outcome.done():
            _cancel(self._spark, self._tag)
            wait([self.outcome], timeout=_PAUSE_SECONDS)

    def _act(self) -> None:
        self._mark_jobs()
        self.outcome.set_result(self._action())

    def _mark_jobs(self) -> None:
        tags = (self._tag, *self._marks.tags)
        if is_connect(self._spark):
            for tag in tags:
                self._spark.addTag(tag)
            return
        context = self._spark.sparkContext
        for tag in tags:
            context.addJobTag(tag)
        # A description that the user gave says more to the user than ours.
        if self._marks.description is not None and not context.getLocalProperty(_DESCRIPTION):
            context.setJobDescription(self._marks.description)


def is_connect(session: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _cancel(session: SparkSession, tag: str) -> None:
    # A Spark that does not answer any more has nothing left to cancel, and the thread ends by itself.
    with suppress(PySparkException, Py4JError, OSError):
        if is_connect(session):
            session.interruptTag(tag)
        else:
            session.sparkContext.cancelJobsWithTag(tag)

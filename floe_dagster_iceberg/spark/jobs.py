"""Spark actions as jobs that can be cancelled, and that name their Dagster run and trace.

Spark's UI, event log and history server show a description and tags. Spark Connect has only tags.
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
    """Tags and description of the jobs of one action."""

    tags: tuple[str, ...] = ()
    description: str | None = None

    @classmethod
    def of_running_operation(cls) -> "JobTags":
        """The trace and the Dagster run of the running operation."""
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


T = TypeVar("T")
_PAUSE_SECONDS: Final = 0.5
_DESCRIPTION: Final = "spark.job.description"


def run_action(session: SparkSession, action: Callable[[], T]) -> T:
    """Run an action, and cancel it if this thread is interrupted meanwhile.

    An action that was committing when it was interrupted may still have finished.
    """
    thread = _ActionThread(session, action)
    try:
        thread.start()
        # Not by joining the thread: Python 3.11 takes a thread for stopped once a wait for it was interrupted.
        return cast("T", thread.outcome.result())
    except BaseException:
        thread.interrupt()
        raise


class _ActionThread(InheritableThread):
    """One action, with the job group, tags and properties of the calling thread."""

    def __init__(self, session: SparkSession, action: Callable[[], Any]) -> None:
        self.outcome: Future[Any] = Future()
        self._spark, self._action, self._tag = session, action, f"floe-{uuid.uuid4().hex}"
        # Here, because the running operation is that of the calling thread.
        self._job_tags = JobTags.of_running_operation()
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
        """Cancel the action and wait for its end; one that has not begun does not begin."""
        self._interrupted.set()
        # More than once: an action has several jobs, and the first may not have started.
        while self._begun.is_set() and not self.outcome.done():
            _cancel(self._spark, self._tag)
            wait([self.outcome], timeout=_PAUSE_SECONDS)

    def _act(self) -> None:
        self._tag_jobs()
        self.outcome.set_result(self._action())

    def _tag_jobs(self) -> None:
        connect, description = is_connect(self._spark), self._job_tags.description
        for tag in (self._tag, *self._job_tags.tags):
            (self._spark.addTag if connect else self._spark.sparkContext.addJobTag)(tag)
        # The user's own description wins.
        if description and not connect and not self._spark.sparkContext.getLocalProperty(_DESCRIPTION):
            self._spark.sparkContext.setJobDescription(description)


def is_connect(session: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _cancel(session: SparkSession, tag: str) -> None:
    # A Spark that is gone has nothing left to cancel, and the thread ends by itself.
    with suppress(PySparkException, Py4JError, OSError):
        if is_connect(session):
            session.interruptTag(tag)
        else:
            session.sparkContext.cancelJobsWithTag(tag)

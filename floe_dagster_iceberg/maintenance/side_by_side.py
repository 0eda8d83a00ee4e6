"""Several tables at a time, in threads of their own.

What one thread should use, Dagster's log and Spark, stays with the caller's: the threads of the tables hand over calls.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_PAUSE_SECONDS = 0.05


class _StoppedError(BaseException):
    """The run was interrupted; raised in the thread of a table when it reports progress."""


@dataclass(frozen=True)
class _Call:
    """A call for the caller's thread; without a `reply` nobody waits for it, and its errors are the caller's."""

    work: Callable[[], Any]
    reply: Future[Any] | None = None

    def run(self) -> None:
        if self.reply is None:
            self.work()
            return
        try:
            self.reply.set_result(self.work())
        # It is raised where the reply is waited for.
        except Exception as error:  # noqa: BLE001
            self.reply.set_exception(error)
        except BaseException:
            self.reply.cancel()
            raise


class _Caller:
    """The thread that waits for the tables, and what they have handed over to it."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        self._stopped = threading.Event()

    def hand_over(self, call: _Call) -> None:
        if self._stopped.is_set():
            raise _StoppedError
        self.calls.put(call)

    def stop(self, tables: Sequence[Future[Any]]) -> None:
        """Start no further table, and wait for the running ones; what they hand over is not done."""
        self._stopped.set()
        for table in tables:
            table.cancel()
        while not all(table.done() for table in tables):
            try:
                call = self.calls.get(timeout=_PAUSE_SECONDS)
            except Empty:
                continue
            if call.reply is not None:
                call.reply.cancel()


_caller: ContextVar[_Caller | None] = ContextVar("floe_maintenance_caller", default=None)


def side_by_side(
    work: Callable[[T], R], items: Sequence[T], *, at_once: int, on_result: Callable[[R], None] = lambda _: None
) -> list[R]:
    """The results of a function for each item, in the order of the items; spans belong to the caller's operation.

    Args:
        work: Called in other threads, several at a time; an error ends everything.
        items: The items.
        at_once: How many at a time; one at a time is done in the caller's thread.
        on_result: Called in the caller's thread with each result, in the order in which they come.
    """
    results: dict[int, R] = {}

    def finish(number: int, done: Future[R]) -> None:
        results[number] = done.result()
        on_result(results[number])

    if min(at_once, len(items)) < 2:  # noqa: PLR2004 - one at a time
        for number, item in enumerate(items):
            results[number] = work(item)
            on_result(results[number])
        return list(results.values())
    caller, tables = _Caller(), list[Future[R]]()

    def hand_in(number: int, done: Future[R]) -> None:
        caller.calls.put(_Call(partial(finish, number, done)))

    with ThreadPoolExecutor(at_once, thread_name_prefix="floe-table") as threads:
        try:
            for number, item in enumerate(items):
                context = copy_context()
                context.run(_caller.set, caller)
                tables.append(threads.submit(context.run, work, item))
                tables[-1].add_done_callback(partial(hand_in, number))
            while len(results) < len(items):
                caller.calls.get().run()
        except BaseException:
            caller.stop(tables)
            raise
    return [results[number] for number in range(len(items))]


def in_callers_thread(work: Callable[[], R]) -> R:
    """Do something in the thread that waits for the tables, one call after the other; here, if there is none."""
    if (caller := _caller.get()) is None:
        return work()
    context, reply = copy_context(), Future[R]()
    # What it calls is in that thread already.
    context.run(_caller.set, None)
    caller.hand_over(_Call(partial(context.run, work), reply))
    return reply.result()


def progress_in_callers_thread(progress: Callable[[str], None]) -> Callable[[str], None]:
    """A function for lines of progress, which are reported by the thread that waits for the tables."""

    def report(line: str) -> None:
        if (caller := _caller.get()) is None:
            progress(line)
        else:
            caller.hand_over(_Call(partial(progress, line)))

    return report

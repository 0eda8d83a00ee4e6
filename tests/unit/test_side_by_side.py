"""Tables side by side: results in order, one thread for the log and for Spark, and interrupts that end the run."""

import threading
from contextvars import ContextVar

import pytest

from floe_dagster_iceberg.maintenance.side_by_side import in_callers_thread, progress_in_callers_thread, side_by_side

_seen: ContextVar[str] = ContextVar("seen", default="nothing")


def test_results_have_the_order_of_the_items_whichever_comes_first() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 1:
            assert second_is_done.wait(10)
        return item * 10

    def on_result(result: int) -> None:
        came.append(result)
        if result == 20:
            second_is_done.set()

    came: list[int] = []
    assert side_by_side(work, [1, 2, 3], at_once=2, on_result=on_result) == [10, 20, 30]
    assert sorted(came) == [10, 20, 30]
    assert came.index(20) < came.index(10)


def test_progress_spark_and_results_are_for_the_callers_thread_alone() -> None:
    threads: set[int] = set()
    note = progress_in_callers_thread(lambda _: threads.add(threading.get_ident()))

    def work(item: int) -> int:
        note("begun")
        return in_callers_thread(lambda: threads.add(threading.get_ident()) or item)

    assert side_by_side(work, range(20), at_once=4, on_result=lambda _: threads.add(threading.get_ident())) == list(
        range(20)
    )
    assert threads == {threading.get_ident()}


def test_threads_have_the_context_of_the_caller() -> None:
    token = _seen.set("the operation around")
    try:
        seen = side_by_side(lambda _: (_seen.get(), in_callers_thread(_seen.get)), [1, 2], at_once=2)
    finally:
        _seen.reset(token)
    assert seen == [("the operation around", "the operation around")] * 2


def test_an_error_of_a_handed_over_call_is_raised_where_it_was_handed_over() -> None:
    def fail() -> int:
        raise ValueError("of Spark")

    def work(_: int) -> str:
        with pytest.raises(ValueError, match="of Spark"):
            in_callers_thread(fail)
        return "noticed"

    assert side_by_side(work, [1, 2], at_once=2) == ["noticed", "noticed"]


def test_no_more_than_the_given_number_work_at_once() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def work(_: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1

    side_by_side(work, range(12), at_once=3)
    assert 1 <= most[0] <= 3


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_the_caller_starts_no_further_table(interrupt: type[BaseException]) -> None:
    started: list[int] = []
    note = progress_in_callers_thread(lambda _: None)
    interrupted = threading.Event()

    def work(item: int) -> int:
        started.append(item)
        if item:
            assert interrupted.wait(10)
            # It ends here, or when it hands over a call.
            note("still at work")
            in_callers_thread(lambda: None)
        return item

    def on_result(_: int) -> None:
        interrupted.set()
        raise interrupt

    with pytest.raises(interrupt):
        side_by_side(work, range(50), at_once=2, on_result=on_result)
    assert len(started) < 50


def test_an_interrupt_in_a_handed_over_call_ends_the_run() -> None:
    def work(item: int) -> int:
        return in_callers_thread(_interrupt) if item == 1 else item

    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(4), at_once=2)


def _interrupt() -> int:
    raise KeyboardInterrupt

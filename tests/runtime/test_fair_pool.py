"""Reference encodings run a few at a time in a bounded queue, and cancelled ones are dropped."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import pytest

from s1_mini.exceptions import EngineNotReadyError, QueueFullError
from s1_mini.runtime.fair_pool import FairPool
from s1_mini.voices.reference import Check
from waiting import EVENTUALLY_S, wait_until


class Kept:
    """Something large that work holds on to."""


@pytest.fixture
def line() -> Iterator[FairPool]:
    recordings = FairPool(max_waiting=2, threads=1, what="recordings")
    yield recordings
    recordings.close(drains=False)


def until(event: threading.Event, result: str = "") -> Callable[[Check], str]:
    def work(check: Check) -> str:
        while not event.wait(0.01):
            check()
        return result

    return work


def test_work_is_done_in_the_order_in_which_it_came(line: FairPool) -> None:
    done: list[int] = []

    for future in [line.submit(lambda _, number=number: done.append(number)) for number in range(2)]:
        future.result(EVENTUALLY_S)

    assert done == [0, 1]


def test_an_error_of_the_work_is_raised_to_the_waiting_caller(line: FairPool) -> None:
    def fail(check: Check) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        line.submit(fail).result(EVENTUALLY_S)


def test_work_over_the_queue_limit_is_refused_with_a_retry_time(line: FairPool) -> None:
    never = threading.Event()
    line.submit(until(never))
    wait_until(lambda: line.health()["running"] == 1)
    for _ in range(2):
        line.submit(until(never))

    with pytest.raises(QueueFullError, match=r"2 recordings are already waiting \(limit 2\)") as refused:
        line.submit(until(never))

    assert refused.value.retry_after_s >= 1


def test_work_of_one_subject_takes_one_place_and_runs_one_after_the_other() -> None:
    recordings, begun, go = FairPool(max_waiting=1, threads=2, what="recordings"), [0], threading.Event()

    def count(check: Check) -> int:
        begun[0] += 1
        go.wait(EVENTUALLY_S)
        return begun[0]

    try:
        futures = [recordings.submit(count, subject="a recording") for _ in range(5)]
        wait_until(lambda: recordings.health()["running"] == 1)  # and takes no place any more
        other = recordings.submit(lambda _: begun[0], subject="another recording")

        assert other.result(EVENTUALLY_S) == 1
        go.set()
        assert sorted(future.result(EVENTUALLY_S) for future in futures) == [1, 2, 3, 4, 5]
    finally:
        recordings.close(drains=False)


def test_work_cancelled_in_the_queue_releases_everything_it_holds(line: FairPool) -> None:
    never, kept = threading.Event(), Kept()
    line.submit(until(never))
    wait_until(lambda: line.health()["running"] == 1)
    future, gone = line.submit(lambda _, kept=kept: kept), weakref.ref(kept)
    del kept

    future.cancel()

    assert gone() is None
    assert line.health()["waiting"] == 0


def test_work_cancelled_in_progress_ends_and_frees_its_place(line: FairPool) -> None:
    ended = threading.Event()

    def work(check: Check) -> None:
        try:
            until(threading.Event())(check)
        except CancelledError:
            ended.set()
            raise

    future = line.submit(work)
    wait_until(lambda: line.health()["running"] == 1)
    future.cancel()

    assert ended.wait(EVENTUALLY_S)
    assert line.submit(lambda _: "next").result(EVENTUALLY_S) == "next"


@pytest.mark.parametrize("drains", [True, False])
def test_a_close_finishes_all_or_ends_all(line: FairPool, drains: bool) -> None:
    go_on = threading.Event()
    first, second = line.submit(until(go_on, "first")), line.submit(lambda _: "second")
    wait_until(lambda: line.health()["running"] == 1)
    if drains:
        threading.Timer(0.1, go_on.set).start()

    line.close(drains=drains)

    with pytest.raises(EngineNotReadyError):
        line.submit(lambda _: "late")
    if drains:
        assert (first.result(0), second.result(0)) == ("first", "second")
    else:
        for future in (first, second):
            with pytest.raises(EngineNotReadyError):
                future.result(0)


def test_clients_take_turns_and_one_client_leaves_places_to_others() -> None:
    go, done = threading.Event(), []
    recordings = FairPool(max_waiting=8, threads=1, what="recordings")
    recordings.submit(until(go), "hog")
    wait_until(lambda: recordings.health()["running"] == 1)

    def note(client: str, number: int) -> Callable[[Check], None]:
        return lambda _: done.append((client, number))

    futures = [recordings.submit(note("hog", number), "hog") for number in range(6)]
    with pytest.raises(QueueFullError):
        recordings.submit(note("hog", 6), "hog")
    futures += [recordings.submit(note("other", number), "other") for number in range(1)]
    go.set()
    for future in futures:
        future.result(EVENTUALLY_S)
    recordings.close(drains=True)

    assert done.index(("other", 0)) <= 1
    assert [number for client, number in done if client == "hog"] == list(range(6))

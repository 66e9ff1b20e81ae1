"""Tasks of a stage's thread: bounded, with a retry time that follows from their duration."""

from __future__ import annotations

import pytest

from s1_mini.exceptions import GenerationError, QueueFullError
from s1_mini.runtime.tasks import Steps, Tasks


def test_a_full_queue_refuses_with_half_of_the_time_that_its_tasks_usually_take() -> None:
    now = 0.0

    def task() -> Steps[None]:
        nonlocal now
        now += 4.0
        yield
        now += 4.0

    tasks = Tasks(6, lambda: None, clock=lambda: now)
    for _ in range(30):
        tasks.submit(task)
        tasks.step(beside_speech=False)
        tasks.step(beside_speech=False)
    for _ in range(6):
        tasks.submit(task)

    with pytest.raises(QueueFullError, match=r"6 tasks are already waiting \(limit 6\)") as refused:
        tasks.submit(task)

    assert refused.value.retry_after_s == pytest.approx(8.0 * 6 / 2, rel=0.01)


def test_tasks_that_were_cancelled_in_the_queue_do_not_shorten_the_retry_time() -> None:
    now = 0.0

    def task() -> Steps[None]:
        nonlocal now
        now += 8.0
        yield

    tasks = Tasks(6, lambda: None, clock=lambda: now)
    for cancels in [False] * 30 + [True] * 30:
        future = tasks.submit(task)
        if cancels:
            future.cancel()
        while len(tasks):
            tasks.step(beside_speech=False)
    for _ in range(6):
        tasks.submit(task)

    with pytest.raises(QueueFullError) as refused:
        tasks.submit(task)

    assert refused.value.retry_after_s == pytest.approx(8.0 * 6 / 2, rel=0.01)


def test_an_unexpected_error_of_a_task_becomes_an_error_of_the_request() -> None:
    def broken() -> Steps[int]:
        yield
        raise ValueError("shapes differ")

    tasks = Tasks(6, lambda: None, clock=lambda: 0.0)
    future = tasks.submit(broken)
    while not future.done():
        tasks.step(beside_speech=False)
    with pytest.raises(GenerationError, match="ValueError: shapes differ"):
        future.result()

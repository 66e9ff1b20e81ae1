"""Kernel and host times are attributed to the sections of a request."""

from __future__ import annotations

import time

import torch

from benchmark.sections import Clock, Section, Span, bottlenecks, covered, trace


def test_the_time_of_kernels_counts_once_and_to_the_section_that_it_lies_in() -> None:
    events = [(0, 4), (2, 6), (10, 20), (12, 13)]
    spans = [Span("a", 1, 5), Span("b", 8, 15), Span("a", 15, 30), Span("c", 7, 9)]

    found = covered(
        [(start + 10**18, stop + 10**18) for start, stop in events],
        [Span(name, start + 10**18, stop + 10**18) for name, start, stop in spans],
    )

    assert {name: round(1e9 * seconds) for name, seconds in found.items()} == {"a": 4 + 5, "b": 5, "c": 0}
    assert covered([], spans) == {}


def test_profiled_events_belong_to_the_section_that_ran_them() -> None:
    clock, x = Clock(torch.device("cpu"), ("rest", "work")), torch.randn(600, 600)

    def run() -> list[Span]:
        clock.time("rest", lambda: time.sleep(0.02))
        clock.time("work", lambda: [x @ x for _ in range(10)])
        return clock.spans

    busy = trace(run, clock.device)

    assert busy["rest"] < 0.001 < 0.2 * clock.parts["work"].seconds < busy["work"]
    assert clock.parts["rest"].use < 0.5 * clock.parts["work"].use


def test_bottlenecks_are_the_longest_three() -> None:
    sections = {name: Section(seconds) for name, seconds in (("a", 1.0), ("b", 5.0), ("c", 3.0), ("d", 1.0))}

    assert bottlenecks(sections) == [
        "b: 5 s, 50 % of a request",
        "c: 3 s, 30 % of a request",
        "a: 1 s, 10 % of a request",
    ]

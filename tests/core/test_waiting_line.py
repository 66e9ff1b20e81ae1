"""The queue is bounded and fair, groups by voice within a maximum delay, and loses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.byte_cache import ByteCache
from s1_mini.core.request import SPACING_S, Request
from s1_mini.core.scheduler import Scheduler
from s1_mini.core.stage import LONG_WAIT_S, MANY_ROWS, Spec
from s1_mini.core.turns import RECENT_S, SlotShares
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.exceptions import QueueFullError, TextIdleError
from s1_mini.types import AudioChunk, ChunkProfile
from tests.core.room import CODEC, MODEL, request, with_items


def line_of(*requests: Request, size: int = 1000, **options: Any) -> WaitingLine:
    line = WaitingLine(size, **options)
    for each in requests:
        line.submit(each)
    return line


def taken(line: WaitingLine, free: int, now: float = 100.0) -> list[Request]:
    return [utterance.request for utterance in line.take(free, now)]


def test_pieces_leave_in_the_order_in_which_they_are_due() -> None:
    late, early = request(5.0), request(1.0)

    assert taken(line_of(late, early), 2) == [early, late]


def test_a_long_text_does_not_keep_a_short_one_waiting() -> None:
    long, short = request(0.0, pieces=5), request(0.5)

    assert taken(line_of(long, short), 2) == [long, short]


def test_later_pieces_are_not_delayed_indefinitely() -> None:
    queue = line_of(request(0.0, pieces=2))
    queue.take(1, now=0.0)
    now, served = 0.0, False
    while not served and now < 10 * SPACING_S:
        now += 0.5
        queue.submit(request(now))
        queue.submit(request(now))
        served = any(utterance.index == 1 for utterance in queue.take(1, now))

    assert served


def test_a_full_queue_refuses_at_once_with_the_time_until_half_of_it_is_admitted() -> None:
    queue = line_of(*(request() for _ in range(4)), size=4)
    for batch in range(8):
        queue.take(2, now=10.0 + 3 * batch)
        queue.submit(request())
        queue.submit(request())

    with pytest.raises(QueueFullError, match=r"try again in 3\.0 s") as caught:
        queue.submit(request())

    assert caught.value.retry_after_s == 3.0  # four wait, and two are admitted every three seconds
    assert len(queue) == 4
    assert (queue.stats.accepted, queue.stats.refused) == (20, 1)


def test_the_retry_time_does_not_count_time_without_waiting_requests() -> None:
    queue = line_of(request(), size=1)
    queue.take(1, now=0.0)
    queue.submit(request())
    queue.take(1, now=1000.0)
    queue.submit(request())

    with pytest.raises(QueueFullError, match=r"try again in 1\.0 s"):
        queue.submit(request())


def test_the_retry_time_does_not_count_time_since_the_last_waiting_request_was_cancelled() -> None:
    cancelled = request(1.0)
    queue = line_of(request(), cancelled, size=2)
    queue.take(1, now=0.0)
    queue.remove(cancelled)
    for _ in range(2):
        queue.submit(request())
    queue.take(1, now=1000.0)
    queue.submit(request())

    with pytest.raises(QueueFullError, match=r"try again in 1\.0 s"):
        queue.submit(request())


def test_a_long_text_takes_one_place_in_the_queue() -> None:
    assert len(line_of(request(pieces=5), request(), size=2)) == 2


def test_pieces_that_share_a_voice_leave_together_unless_grouping_is_off() -> None:
    first, other, second = (request(number / 10, prefix_key=key) for number, key in enumerate(("anna", "ben", "anna")))
    queue = line_of(first, other, second)

    assert [taken(queue, 2) for _ in range(2)] == [[first, second], [other]]
    assert taken(line_of(first, other, second, grouping=False), 2) == [first, other]


def test_a_piece_is_held_back_for_others_for_a_limited_time() -> None:
    queue = line_of(request(0.0), batch_timeout_ms=200)

    assert queue.take(4, now=0.1) == []
    assert queue.wakes(0.1, free=4) == pytest.approx(0.1)
    assert len(queue.take(4, now=0.2)) == 1
    assert queue.wakes(0.2, free=4) is None


def test_no_piece_is_held_back_once_the_free_slots_are_in_demand() -> None:
    queue = line_of(*(request(0.0) for _ in range(3)), batch_timeout_ms=200)

    assert queue.wakes(0.0, free=4) == pytest.approx(0.2)
    assert queue.wakes(0.0, free=3) == 0.0
    assert len(queue.take(3, now=0.0)) == 3


def test_waits_and_batch_sizes_are_reported() -> None:
    queue = line_of(request(0.0), request(1.0))
    queue.take(2, now=3.0)

    stats = queue.stats
    assert (stats.mean_wait_s, stats.max_wait_s, stats.mean_batch_size) == (2.5, 3.0, 2.0)

    queue.forget()
    assert queue.stats == WaitingLine(10).stats


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["", "anna", "ben"]), st.integers(0, 5), st.booleans()),
        max_size=30,
    )
)
def test_every_accepted_piece_leaves_exactly_once(arrivals: list[tuple[int, str, int, bool]]) -> None:
    queue = WaitingLine(20)
    let_in, left, gone = [], [], set()
    for now, (pieces, key, free, leaves) in enumerate(arrivals):
        made = request(float(now), pieces=pieces, prefix_key=key)
        try:
            queue.submit(made)
            let_in += made.utterances
        except QueueFullError:
            pass
        if leaves:
            queue.remove(made)
            gone |= {id(utterance) for utterance in made.utterances}
        left += queue.take(free, float(now))
    while rest := queue.take(3, 100.0):
        left += rest

    assert len({id(utterance) for utterance in left}) == len(left)
    assert {id(utterance) for utterance in let_in} - gone == {id(utterance) for utterance in left}


def test_grouping_takes_first_pieces_and_not_one_long_text_whole() -> None:
    long = request(0.0, pieces=10, shared=20, prefix_key="anna")
    others = [request(0.1, shared=20, prefix_key=key) for key in ("anna", "ben")]

    assert taken(line_of(long, *others), 3, now=0.2) == [long, *others]


def take_one(queue: WaitingLine) -> Request:
    (utterance,) = queue.take(1, now=100.0)
    return utterance.request


def test_clients_take_turns_however_many_requests_one_of_them_has() -> None:
    many = [request(0.0, pieces=4, flow=("a", f"{number}")) for number in range(32)]
    few = [request(50.0 + number, flow=("b", f"{number}")) for number in range(3)]
    queue = line_of(*many, *few)

    order = [take_one(queue) for _ in range(6)]

    assert [each.flow[0] for each in order] == ["a", "b", "a", "b", "a", "b"]
    assert [each for each in order if each.flow[0] == "b"] == few


def test_the_groups_of_a_client_take_turns() -> None:
    batch = [request(0.0, flow=("a", "batch")) for _ in range(32)]
    single = [request(1.0, flow=("a", f"{number}")) for number in range(2)]
    queue = line_of(*batch, *single)

    assert [take_one(queue) for _ in range(5)] == [batch[0], *single, batch[1], batch[2]]


def test_utterances_of_one_group_leave_in_the_order_in_which_they_are_due() -> None:
    long, short = request(0.0, pieces=3, flow=("a", "one")), request(3.0, flow=("a", "one"))
    queue = line_of(long, short)

    assert [take_one(queue) for _ in range(4)] == [long, long, short, long]


def test_requests_that_keep_coming_do_not_starve_a_client() -> None:
    long = request(0.0, pieces=2, flow=("a", ""))
    queue = line_of(long)
    take_one(queue)
    for number in range(20):
        queue.submit(request(1.0, flow=(f"b{number}", "")))
    order = []
    for number in range(20, 50):
        queue.submit(request(1.0, flow=(f"b{number}", "")))
        order.append(take_one(queue))

    assert long in order


def test_requests_admitted_with_a_shared_voice_are_charged() -> None:
    queue = line_of(request(0.0, pieces=9, prefix_key="ben", flow=("other", "")))
    counts = {"greedy": 0, "other": 0, "plain": 0}
    for number in range(30):
        queue.submit(request(1.0, prefix_key="anna", flow=("greedy", f"{number}")))
        queue.submit(request(1.0, prefix_key="anna", flow=("plain", f"{number}")))
    for _ in range(8):
        for each in taken(queue, 3, now=2.0):
            counts[each.flow[0]] += 1

    assert max(counts.values()) - min(counts.values()) <= 2


def shared_line(slots: int, *requests: Request) -> WaitingLine:
    """A queue before a stage with this number of slots."""
    line = line_of(*requests)
    line.shares = SlotShares(slots)
    return line


def finish(line: WaitingLine, request: Request, steps: int = 0) -> None:
    """End an utterance that was taken."""
    line.charge(request, steps)
    line.end(request)


def test_a_short_text_waits_for_no_long_one_after_its_clients_first() -> None:
    batch = [request(0.0, pieces=100, flow=("a", "batch")) for _ in range(32)]
    line = shared_line(4, *batch)
    long, waits = taken(line, 4, now=0.0), []
    for now in range(8):
        short = request(now, flow=("b", f"{now}"))
        line.submit(short)
        num_ended = 0
        while short not in (begun := taken(line, 4 - len(long), now)):
            long += begun
            finish(line, long.pop(), steps=300)
            num_ended += 1
        waits.append(num_ended)
        finish(line, short, steps=20)
        long += [each for each in begun if each is not short] + taken(line, 3 - len(long), now)

    assert waits == [1, 0, 0, 0, 0, 0, 0, 0]
    assert len(long) == 3


def test_a_client_that_is_alone_takes_all_slots_even_soon_after_another_one() -> None:
    other, batch = request(0.0, flow=("b", "")), request(0.0, pieces=20, flow=("a", ""))
    line = shared_line(4, other, batch)
    taken(line, 4, now=0.0)
    finish(line, other)

    assert taken(line, 1, now=RECENT_S - 1) == []
    assert line.wakes(RECENT_S - 1, 1) is None
    assert line.wakes(RECENT_S, 1) == 0
    assert taken(line, 1, now=RECENT_S) == [batch]


@pytest.mark.parametrize(("slots", "clients"), [(1, 2), (2, 2), (4, 2), (4, 3), (3, 5)])
def test_busy_clients_leave_no_slot_free(slots: int, clients: int) -> None:
    line = shared_line(slots, *(request(0.0, pieces=50, flow=(f"{number}", "")) for number in range(clients)))
    held = taken(line, slots, now=0.0)
    for turn in range(20):
        finish(line, held.pop(turn % slots), steps=30 * turn)
        held += taken(line, 1, now=float(turn))

        assert len(held) == slots


def test_a_client_without_utterances_does_not_wait_for_the_audio_of_others() -> None:
    long, short = request(0.0, pieces=5, flow=("a", "")), request(0.0, pieces=2, flow=("b", ""))
    line = shared_line(4, long)
    taken(line, 2, now=0.0)
    line.submit(short)

    assert line.wakes(1.0, 2, is_behind=True) == 0
    assert [each.request for each in line.take(2, 1.0, is_behind=True)] == [short]
    assert line.wakes(1.0, 1, is_behind=True) is None


def queue_request(scheduler: Scheduler, made: Request) -> None:
    scheduler.submit(made)
    scheduler.open(made, made.utterances)


@pytest.mark.parametrize(
    ("adapts", "loaded", "running", "waited_s", "profile"),
    [
        (True, "balanced", MANY_ROWS, 0.0, "ttfa"),
        (True, "balanced", MANY_ROWS + 1, 0.0, "balanced"),
        (True, "balanced", 0, LONG_WAIT_S + 0.1, "balanced"),
        (True, None, MANY_ROWS + 1, 9.0, "ttfa"),  # on a CPU, or batch-invariant
        (False, "balanced", MANY_ROWS + 1, 9.0, "ttfa"),  # the client named the profile
    ],
)
def test_under_load_a_stream_whose_client_named_no_profile_begins_with_longer_chunks(
    adapts: bool, loaded: ChunkProfile | None, running: int, waited_s: float, profile: str
) -> None:
    now = 0.0
    policies = [replace(MODEL, slots=2 * MANY_ROWS), replace(CODEC, loaded_profile=loaded)]
    scheduler = Scheduler(policies, WaitingLine(2 * MANY_ROWS), ByteCache(0), clock=lambda: now)
    for _ in range(running):
        queue_request(scheduler, request())
    scheduler.plan(0)
    late = request(profile="ttfa", adapts=adapts, streams=True)
    queue_request(scheduler, late)
    now = waited_s
    scheduler.plan(0)

    assert late.profile == profile
    assert late.utterances[0].sequences


@pytest.mark.parametrize(("waiting", "begun"), [(0, 8), (4, 8), (5, 7), (11, 1), (12, 0)])
def test_the_more_waits_for_the_next_stage_the_fewer_slots_are_taken(waiting: int, begun: int) -> None:
    scheduler = Scheduler([MODEL, CODEC], WaitingLine(20), ByteCache(0), clock=lambda: 0.0)
    scheduler.stages[1].ready += [with_items(request(), 4, ended=True) for _ in range(waiting)]
    for _ in range(20):
        queue_request(scheduler, request())

    plans = [scheduler.plan(0) for _ in range(3)]

    assert sum(len(plan.begins) for plan in plans if plan is not None) == begun


def test_a_text_that_waits_for_words_loses_its_slot_to_those_who_wait() -> None:
    now = 0.0
    one_slot = replace(MODEL, slots=1, output=Spec("int64", (2,), rate=10.0))
    line = WaitingLine(10)
    scheduler = Scheduler([one_slot, CODEC], line, ByteCache(0), clock=lambda: now)
    slow, other = request(0.0), request(0.0)
    (utterance,), slow.utterances = slow.utterances, []
    utterance.is_open = True
    scheduler.submit(slow)
    scheduler.open_stream(utterance, utterance.prompt, 100)
    assert scheduler.plan(0) is not None

    def wait(seconds: int) -> None:
        nonlocal now
        for _ in range(10 * seconds):
            now += 0.1
            scheduler.plan(0)

    wait(60)
    is_kept_alone = not slow.has_ended
    queue_request(scheduler, other)
    wait(4)
    is_kept_at_first = not slow.has_ended
    wait(2)

    assert (is_kept_alone, is_kept_at_first, slow.has_ended, other.has_ended) == (True, True, True, False)
    with pytest.raises(TextIdleError, match="no text arrived for 5 s while other requests waited"):
        slow.speech.queue.wait()
    assert other.utterances[0].sequences[0].slot == 0


def test_a_paused_stream_is_neither_taken_nor_counted() -> None:
    paused, other = request(0.0, pieces=4, streams=True), request(1.0, pieces=4)
    queue = line_of(paused, size=1)
    paused.speech.queue.put(AudioChunk(np.zeros(31 * 16_000, np.float32), 16_000, 1))

    queue.submit(other)

    assert len(queue) == 1
    assert set(taken(queue, 8, now=9.0)) == {other}
    assert queue.wakes(9.0, free=8) is None
    paused.speech.queue.wait()
    assert len(queue.take(8, now=9.0)) == 4


def test_a_full_batch_is_begun_without_waiting_for_the_clock() -> None:
    line, looks = WaitingLine(10, batch_timeout_ms=200), list[int]()
    scheduler = Scheduler([MODEL, CODEC], line, ByteCache(0), clock=lambda: 0.0)
    for _ in range(MODEL.slots):
        queue_request(scheduler, request(0.0))

    def has_waited() -> bool:
        looks.append(1)
        return len(looks) > 1

    assert scheduler.wait([0], has_waited)
    assert len(looks) == 1

"""Plans of a stage: bounded prefill, urgent streams first, no starvation, no lost slots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.byte_cache import ByteCache
from s1_mini.core.messages import Plan, Saved
from s1_mini.core.request import Request, StageSequence
from s1_mini.core.stage_queue import MAX_PASSED_OVER, Slots, StageQueue
from tests.core.room import CODEC, MODEL, SIZES, request, sequence, with_items

READER = replace(MODEL, prefill_positions=8)


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s1_mini.core.stage_queue.MIN_SHARED", 4)


def model_of(*requests: Request) -> StageQueue:
    queue = StageQueue(0, READER, ByteCache(10**6), is_last=False)
    for each in requests:
        for index, utterance in enumerate(each.utterances):
            first = sequence(each, 0, index)
            first.available, first.is_final = len(utterance.prompt.items), True
            first.next_unit = MODEL.next_unit(first.progress)
            queue.ready.append(first)
    return queue


def codec_of(*sequences: StageSequence) -> StageQueue:
    queue = StageQueue(1, CODEC, ByteCache(0), is_last=True)
    queue.ready = [each for each in sequences if each.next_unit is not None]
    return queue


def reads(queue: StageQueue) -> list[int]:
    """Prefill lengths of the next plan; prefixes that it saves are available afterwards."""
    plan = queue.plan(0.0)
    for part in plan.prefills:
        if part.key:
            queue.keep(part.key, Saved(None, part.stop, 1))
    return [part.stop - part.start for part in plan.prefills]


def chosen(queue: StageQueue, now: float, **options: bool) -> list[StageSequence]:
    """The sequences whose chunk the next plan decodes; each is ready for another at once."""
    plan = queue.plan(now, **options)
    sequences = [queue.in_flight[plan.number].owners[slot][0] for slot in plan.steps]
    for each in sequences:
        queue.running.remove(each)
        each.next_unit, each.unit = each.unit, None
        queue.ready.append(each)
    return sequences


def test_a_prompt_is_prefilled_in_bounded_parts_except_for_its_last_position() -> None:
    queue = model_of(request(positions=20))

    assert [reads(queue) for _ in range(4)] == [[8], [8], [3], []]
    assert len(queue.running) == 1


def test_no_part_crosses_the_end_of_the_shared_prefix() -> None:
    queue = model_of(request(positions=20, shared=10, prefix_key="anna"))

    assert [reads(queue) for _ in range(3)] == [[8], [2, 6], [3]]


def test_short_prompts_are_prefilled_together_within_the_bound() -> None:
    queue = model_of(*(request(positions=4) for _ in range(4)))

    assert [reads(queue) for _ in range(2)] == [[3, 3, 2], [1, 3]]


def test_no_plan_prefills_more_than_a_few_prompts() -> None:
    queue = model_of(*(request(positions=2) for _ in range(READER.max_prefills + 1)))

    assert [len(reads(queue)) for _ in range(2)] == [READER.max_prefills, 1]


def test_a_shared_prefix_is_prefilled_once_and_the_others_wait_for_it() -> None:
    queue = model_of(*(request(positions=20, shared=10, prefix_key="anna") for _ in range(2)))

    assert [reads(queue) for _ in range(2)] == [[8], [2, 6]]
    assert reads(queue) == [3, 5]  # the second begins after the first one's remainder


def test_a_prefix_without_cache_memory_is_prefilled_for_each() -> None:
    queue = model_of(*(request(positions=20, shared=10, prefix_key="anna") for _ in range(2)))
    plans = [queue.plan(0.0) for _ in range(2)]
    queue.keep(plans[1].prefills[0].key, None)

    assert [part.start for part in queue.plan(0.0).prefills] == [16, 0]


def test_running_sequences_continue_during_prefill() -> None:
    queue = model_of(request(positions=4), request(positions=100))
    reads(queue)

    plans = [queue.plan(0.0) for _ in range(3)]

    assert all(plan.prefills and len(plan.steps) == 1 for plan in plans)


def test_no_step_is_launched_beyond_the_last() -> None:
    made = request(positions=1)
    made.utterances[0].max_steps = 3
    queue = model_of(made)

    plans: list[Plan] = [queue.plan(0.0) for _ in range(5)]

    assert [len(plan.steps) for plan in plans] == [1, 1, 1, 0, 0]


def test_a_chunk_is_decoded_when_it_is_full_or_the_utterance_has_ended() -> None:
    full, short, ended = with_items(request(), 4), with_items(request(), 3), with_items(request(), 3, ended=True)
    queue = codec_of(full, short, ended)

    assert set(chosen(queue, 0.0)) == {full, ended}
    assert [each.next_unit and each.next_unit.consumes for each in (full, short, ended)] == [4, None, 3]


@pytest.mark.parametrize("profile", SIZES)
def test_chunks_grow_as_the_profile_says(profile: str) -> None:
    made = with_items(request(profile=profile), 1000)
    sizes = []
    for _ in range(8):
        unit = CODEC.next_unit(made.progress)
        sizes.append(unit.consumes)
        made.consumed, made.units = made.consumed + unit.consumes, made.units + 1

    assert sizes == [*SIZES[profile], *[SIZES[profile][-1]] * 8][:8]


def test_streams_near_an_underrun_go_first_then_first_audio_then_the_rest() -> None:
    rich = with_items(request(streams=True, first_sent=0.0, runs_dry=9.0), 4)
    new = with_items(request(streams=True), 4)
    urgent = with_items(request(streams=True, first_sent=0.0, runs_dry=1.05), 4)
    whole = with_items(request(), 4)

    assert chosen(codec_of(rich, new, urgent, whole), 1.0)[:2] == [urgent, new]


def alone(queue: StageQueue) -> StageQueue:
    """The same where one call takes one chunk."""
    object.__setattr__(queue, "policy", type(CODEC)(**{**vars(CODEC), "rows": (1,)}))
    return queue


def test_the_rest_progress_in_turns_however_many_are_urgent() -> None:
    urgent = [with_items(request(streams=True, first_sent=0.0, runs_dry=1.05), 1000) for _ in range(5)]
    rest = [with_items(request(), 1000) for _ in range(3)]
    queue = alone(codec_of(*urgent, *rest))

    served = []
    for _ in range(6 * (MAX_PASSED_OVER[-1] + 1)):
        served += [each for each in chosen(queue, 1.0) if each in rest]

    assert served == rest * 2


def test_first_audio_waits_for_one_urgent_stream_and_not_for_all() -> None:
    urgent = [with_items(request(streams=True, first_sent=0.0, runs_dry=1.05), 1000) for _ in range(5)]
    new = with_items(request(streams=True), 4)
    queue = alone(codec_of(*urgent, new))

    assert new not in chosen(queue, 1.0)
    assert chosen(queue, 1.0) == [new]


def test_a_stream_that_has_already_underrun_comes_after_first_audio() -> None:
    broken = with_items(request(streams=True, first_sent=0.0, runs_dry=0.5), 1000)
    new = with_items(request(streams=True), 4)
    queue = alone(codec_of(broken, new))

    assert chosen(queue, 1.0) == [new]


def test_non_streaming_requests_progress_next_to_streams_that_are_far_ahead() -> None:
    rich = [with_items(request(streams=True, first_sent=0.0, runs_dry=99.0), 1000) for _ in range(4)]
    plain = with_items(request(), 1000)
    queue = alone(codec_of(*rich, plain))

    assert plain in [chosen(queue, 1.0)[0] for _ in range(6)]


def test_without_a_free_slot_only_sequences_with_a_slot_are_chosen() -> None:
    broken, holder = (with_items(request(streams=True, first_sent=0.0, runs_dry=0.5), 1000) for _ in range(2))
    queue = codec_of(broken, holder)
    holder.slot = queue.slots.allocate()
    while queue.slots.num_free:
        queue.slots.allocate()

    assert chosen(queue, 1.0) == [holder]


def test_first_sounds_made_between_steps_are_small() -> None:
    small, large = (with_items(request(streams=True, profile=profile), 40) for profile in ("ttfa", "throughput"))

    assert chosen(codec_of(large, small), 1.0, only_first=True) == [small]


def test_one_call_takes_chunks_of_one_size_and_not_too_many_items() -> None:
    bounded = type(CODEC)(**{**vars(CODEC), "max_items": 10})
    queue = codec_of(*(with_items(request(), 4) for _ in range(5)), with_items(request(profile="throughput"), 40))
    queue.policy = bounded

    plans = [queue.plan(0.0) for _ in range(4)]

    assert sorted(len(plan.steps) for plan in plans) == [1, 1, 2, 2]
    assert sorted(plan.size for plan in plans) == [4, 4, 4, 25]


def test_chunks_that_would_make_a_call_mostly_padding_are_first_in_the_next_call() -> None:
    rest = [with_items(request(profile="throughput"), 1000) for _ in range(10)]
    queue = codec_of(*rest)

    assert chosen(queue, 1.0) == rest[:8]
    assert chosen(queue, 1.0)[:2] == rest[8:]


def test_the_most_urgent_chunks_are_not_those_left_for_the_next_call() -> None:
    plain = [with_items(request(profile="throughput"), 1000) for _ in range(9)]
    urgent = with_items(request(streams=True, first_sent=0.0, runs_dry=1.05, profile="throughput"), 1000)

    assert chosen(codec_of(*plain, urgent), 1.0) == [urgent, *plain[:7]]


def test_a_later_utterance_waits_until_its_turn_has_come() -> None:
    made = request(pieces=2)
    first, second = with_items(made, 4), sequence(made, 1, 1)
    second.available, second.next_unit = 4, first.next_unit
    queue = codec_of(first, second)

    assert chosen(queue, 0.0) == [first]
    made.front = 1
    assert chosen(queue, 0.0) == [second]


@given(st.lists(st.booleans(), max_size=60))
def test_a_slot_is_never_taken_twice_nor_lost(allocates: list[bool]) -> None:
    slots, taken = Slots(8), []
    for wants in allocates:
        if wants and slots.num_free:
            taken.append(slots.allocate())
        elif taken:
            slots.free(taken.pop(0))

        assert len(set(taken)) == len(taken)
        assert slots.num_free + len(taken) == 8

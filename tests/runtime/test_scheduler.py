"""The next turn: bounded reading, the thirsty first, nobody put off for ever, slots never lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_room import job, with_frames
from s1_mini.runtime.job import CHUNK_FRAMES, Job
from s1_mini.runtime.scheduler import MAX_PUT_OFF, Scheduler
from s1_mini.runtime.slots import Slots


def scheduler_of(*jobs: Job, max_decodes: int = 2) -> Scheduler:
    scheduler = Scheduler(max_decodes=max_decodes, prefill_columns=8)
    for each in jobs:
        for piece in each.pieces:
            scheduler.admit(piece)
    return scheduler


def read_on(scheduler: Scheduler) -> tuple[int, int] | None:
    """Do the reading of one turn; give whose it was and how much."""
    plan = scheduler.plan()
    if plan.read is None:
        return None
    plan.read.num_read += plan.columns
    if plan.read.num_read == plan.read.last_column:
        scheduler.start(plan.read)
    return plan.read.job.number, plan.columns


def test_a_prompt_is_read_in_bounded_chunks_but_for_its_last_column() -> None:
    scheduler = scheduler_of(job(columns=20))

    chunks = [read_on(scheduler) for _ in range(4)]

    assert [chunk and chunk[1] for chunk in chunks] == [8, 8, 3, None]
    assert len(scheduler.running) == 1


def test_no_chunk_reaches_over_the_end_of_what_is_shared() -> None:
    scheduler = scheduler_of(job(columns=20, shared=10))

    assert [read_on(scheduler)[1] for _ in range(4)] == [8, 2, 8, 1]


def test_what_is_shared_is_read_once_and_the_others_wait_for_it() -> None:
    first, second = (job(columns=20, shared=10, prefix_key="anna") for _ in range(2))
    other = job(columns=20, shared=10, prefix_key="ben")
    scheduler = scheduler_of(first, second, other)

    assert [read_on(scheduler)[0] for _ in range(2)] == [first.number] * 2
    second.pieces[0].num_read = 10  # as the worker does with what is cached now
    order = [read_on(scheduler)[0] for _ in range(8)]
    assert order == [first.number] * 2 + [second.number] * 2 + [other.number] * 4


def test_running_pieces_go_on_running_whoever_is_read() -> None:
    scheduler = scheduler_of(job(columns=4), job(columns=100))
    read_on(scheduler)

    plans = [scheduler.plan() for _ in range(3)]

    assert len(scheduler.running) == 1
    assert all(plan.read is not None for plan in plans)


def test_a_chunk_is_decoded_when_it_is_full_or_the_piece_has_ended() -> None:
    full, short, ended = (with_frames(job(), 4), with_frames(job(), 3), with_frames(job(), 3, ended=True))
    scheduler = scheduler_of(full, short, ended, max_decodes=8)

    assert scheduler.decodes(0.0) == [full, ended]
    assert [each.next_chunk() for each in (full, short, ended)] == [4, None, 3]


@pytest.mark.parametrize("profile", CHUNK_FRAMES)
def test_chunks_grow_as_the_profile_says(profile: str) -> None:
    made = with_frames(job(profile=profile), 1000)
    piece, sizes = made.pieces[0], []
    for _ in range(8):
        size = made.next_chunk()
        piece.num_decoded += size
        piece.num_chunks += 1
        sizes.append(size)

    told = CHUNK_FRAMES[profile]
    assert sizes == [*told, *[told[-1]] * 8][:8]


def test_who_is_about_to_run_dry_goes_first_then_first_sounds_then_the_rest() -> None:
    rich = with_frames(job(streams=True, first_sent=0.0, sent_s=9.0), 4)
    new = with_frames(job(streams=True), 4)
    thirsty = with_frames(job(streams=True, first_sent=0.0, sent_s=1.1), 4)
    whole = with_frames(job(), 4)
    scheduler = scheduler_of(rich, new, thirsty, whole, max_decodes=4)

    assert scheduler.decodes(1.0)[:2] == [thirsty, new]


def test_the_rest_get_on_by_turns_however_many_are_thirsty() -> None:
    thirsty = [with_frames(job(streams=True, first_sent=0.0, sent_s=0.1), 1000) for _ in range(5)]
    rest = [with_frames(job(), 1000) for _ in range(3)]
    scheduler = scheduler_of(*thirsty, *rest)

    served = []
    for _ in range(6):
        scheduler.plan()
        served += [each for each in scheduler.decodes(1.0) if each in rest]

    assert served == rest * 2


def test_reading_is_put_off_for_the_thirsty_but_not_for_ever() -> None:
    thirsty = with_frames(job(columns=1, streams=True, first_sent=0.0, sent_s=0.1), 1000)
    newcomer = job(columns=100)
    scheduler = scheduler_of(newcomer, thirsty)

    scheduler.decodes(1.0)

    reads = [scheduler.plan().read for _ in range(MAX_PUT_OFF + 1)]

    assert reads[:-1] == [None] * MAX_PUT_OFF
    assert reads[-1] is newcomer.pieces[0]


def test_a_job_that_is_dropped_leaves_nothing_behind() -> None:
    made = job(pieces=3)
    scheduler = scheduler_of(made)

    scheduler.drop_job(made)

    assert not scheduler.has_work


@given(st.lists(st.booleans(), max_size=60))
def test_a_slot_is_never_taken_twice_nor_lost(takes: list[bool]) -> None:
    slots, taken = Slots(8), []
    for wants in takes:
        if wants and slots.num_free:
            taken.append(slots.take())
        elif taken:
            slots.give_back(taken.pop(0))

        assert len(set(taken)) == len(taken)
        assert slots.num_free + len(taken) == 8

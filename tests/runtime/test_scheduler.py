"""The next turn: bounded reading, the thirsty first, nobody put off for ever, slots never lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_room import job, with_frames
from s1_mini.runtime.job import CHUNK_FRAMES, Job
from s1_mini.runtime.scheduler import MAX_PASSED_OVER, MAX_PUT_OFF, MAX_READS, Scheduler
from s1_mini.runtime.slots import Slots


def scheduler_of(*jobs: Job) -> Scheduler:
    scheduler = Scheduler(prefill_columns=8)
    for each in jobs:
        for piece in each.pieces:
            scheduler.admit(piece)
    return scheduler


def read_on(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Do the reading of one turn; give whose it was and how much."""
    reads = scheduler.reads()
    for read in reads:
        read.piece.num_read += read.columns
        if read.piece.num_read == read.piece.last_column:
            scheduler.start(read.piece)
    return [(read.piece.job.number, read.columns) for read in reads]


def test_a_prompt_is_read_in_bounded_chunks_but_for_its_last_column() -> None:
    made = job(columns=20)
    scheduler = scheduler_of(made)

    chunks = [read_on(scheduler) for _ in range(4)]

    assert chunks == [[(made.number, 8)], [(made.number, 8)], [(made.number, 3)], []]
    assert len(scheduler.running) == 1


def test_no_chunk_reaches_over_the_end_of_what_is_shared() -> None:
    made = job(columns=20, shared=10)
    scheduler = scheduler_of(made)

    chunks = [read_on(scheduler) for _ in range(3)]

    assert chunks == [[(made.number, 8)], [(made.number, 2), (made.number, 6)], [(made.number, 3)]]


def test_short_prompts_are_read_together_within_the_bound() -> None:
    made = [job(columns=4) for _ in range(4)]
    scheduler = scheduler_of(*made)

    chunks = [read_on(scheduler) for _ in range(2)]

    numbers = [each.number for each in made]
    assert chunks == [
        [(numbers[0], 3), (numbers[1], 3), (numbers[2], 2)],
        [(numbers[2], 1), (numbers[3], 3)],
    ]


def test_no_turn_reads_more_prompts_than_a_few() -> None:
    scheduler = scheduler_of(*(job(columns=2) for _ in range(MAX_READS + 1)))

    assert [len(read_on(scheduler)) for _ in range(2)] == [MAX_READS, 1]


def test_a_prompt_that_is_cached_whole_begins_without_being_read() -> None:
    made = job(columns=20, shared=19)
    made.pieces[0].num_read = 19
    scheduler = scheduler_of(made)

    assert read_on(scheduler) == [(made.number, 0)]
    assert scheduler.running == made.pieces


def test_what_is_shared_is_read_once_and_the_others_wait_for_it() -> None:
    first, second = (job(columns=20, shared=10, prefix_key="anna") for _ in range(2))
    scheduler = scheduler_of(first, second)

    assert read_on(scheduler) == [(first.number, 8)]
    assert read_on(scheduler) == [(first.number, 2), (first.number, 6)]
    second.pieces[0].num_read = 10  # as the worker does with what is cached now
    assert read_on(scheduler) == [(first.number, 3), (second.number, 5)]


def test_running_pieces_go_on_running_whoever_is_read() -> None:
    scheduler = scheduler_of(job(columns=4), job(columns=100))
    read_on(scheduler)

    reads = [scheduler.reads() for _ in range(3)]

    assert len(scheduler.running) == 1
    assert all(reads)


def test_a_chunk_is_decoded_when_it_is_full_or_the_piece_has_ended() -> None:
    full, short, ended = (with_frames(job(), 4), with_frames(job(), 3), with_frames(job(), 3, ended=True))
    scheduler = scheduler_of(full, short, ended)

    assert scheduler.decodes(0.0, 8) == [full, ended]
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
    rich = with_frames(job(streams=True, first_sent=0.0, runs_dry=9.0), 4)
    new = with_frames(job(streams=True), 4)
    thirsty = with_frames(job(streams=True, first_sent=0.0, runs_dry=1.05), 4)
    whole = with_frames(job(), 4)
    scheduler = scheduler_of(rich, new, thirsty, whole)

    assert scheduler.decodes(1.0, 4)[:2] == [thirsty, new]


def test_the_rest_get_on_by_turns_however_many_are_thirsty() -> None:
    thirsty = [with_frames(job(streams=True, first_sent=0.0, runs_dry=1.05), 1000) for _ in range(5)]
    rest = [with_frames(job(), 1000) for _ in range(3)]
    scheduler = scheduler_of(*thirsty, *rest)

    served = []
    for _ in range(6 * (MAX_PASSED_OVER[-1] + 1)):
        served += [each for each in scheduler.decodes(1.0, 1) if each in rest]

    assert served == rest * 2


def test_a_first_sound_waits_for_one_thirsty_listener_and_not_for_all() -> None:
    thirsty = [with_frames(job(streams=True, first_sent=0.0, runs_dry=1.05), 1000) for _ in range(5)]
    new = with_frames(job(streams=True), 4)
    scheduler = scheduler_of(*thirsty, new)

    assert new not in scheduler.decodes(1.0, 1)
    assert scheduler.decodes(1.0, 1) == [new]


def test_who_has_broken_off_already_comes_after_a_first_sound() -> None:
    broken = with_frames(job(streams=True, first_sent=0.0, runs_dry=0.5), 1000)
    new = with_frames(job(streams=True), 4)

    assert scheduler_of(broken, new).decodes(1.0, 2) == [new, broken]


def test_reading_is_put_off_for_the_thirsty_but_not_for_ever() -> None:
    thirsty = with_frames(job(columns=1, streams=True, first_sent=0.0, runs_dry=1.05), 1000)
    newcomer = job(columns=100)
    scheduler = scheduler_of(newcomer, thirsty)

    scheduler.decodes(1.0, 1)

    reads = [scheduler.reads() for _ in range(MAX_PUT_OFF + 1)]

    assert reads[:-1] == [[]] * MAX_PUT_OFF
    assert reads[-1][0].piece is newcomer.pieces[0]


def test_a_job_that_is_dropped_leaves_nothing_behind() -> None:
    made = job(pieces=3)
    scheduler = scheduler_of(made)

    scheduler.drop_job(made)

    assert not scheduler.has_work
    assert not scheduler.speaking


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


def test_who_only_collects_gets_on_beside_streams_that_are_far_ahead() -> None:
    rich = [with_frames(job(streams=True, first_sent=0.0, runs_dry=99.0), 1000) for _ in range(4)]
    plain = with_frames(job(), 1000)
    scheduler = scheduler_of(*rich, plain)

    assert plain in [scheduler.decodes(1.0, 1)[0] for _ in range(6)]


def test_without_a_row_of_the_codec_only_those_are_chosen_that_have_one() -> None:
    broken, holder = (with_frames(job(streams=True, first_sent=0.0, runs_dry=0.5), 1000) for _ in range(2))
    holder.row = 0

    assert scheduler_of(broken, holder).decodes(1.0, 1, can_begin=False) == [holder]


def test_first_sounds_made_between_steps_are_small() -> None:
    small, large = (with_frames(job(streams=True, profile=profile), 40) for profile in ("ttfa", "throughput"))

    assert scheduler_of(large, small).decodes(1.0, 2, only_new=True) == [small]

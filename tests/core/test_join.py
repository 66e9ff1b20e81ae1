"""Utterances are joined without clicks, and the output does not depend on the chunking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.speech import AudioOutput, Joiner
from s1_mini.types import Timing

FADE, PAUSE = 8, 20  # samples at this rate


def joiner():
    return Joiner(sample_rate=1000, fade_ms=FADE, pause_ms=PAUSE)


def joined(pieces):
    """Join utterances, each a list of chunks."""
    stream, out = joiner(), []
    for chunks in pieces:
        out += [stream.push(chunk) for chunk in chunks]
        out.append(stream.end_piece())
    return np.concatenate([*out, stream.finish()])


def chunks_of(piece, cuts):
    return np.split(piece, sorted(cut % (len(piece) + 1) for cut in cuts))


@given(st.lists(st.tuples(st.integers(0, 60), st.lists(st.integers(0, 60), max_size=8)), max_size=4))
def test_any_chunking_gives_exactly_the_same_samples(plan):
    rng = np.random.default_rng(0)
    pieces = [(rng.uniform(-1, 1, length).astype(np.float32), cuts) for length, cuts in plan]

    whole = joined([[piece] for piece, _ in pieces])
    chunked = joined([chunks_of(piece, cuts) for piece, cuts in pieces])

    assert np.array_equal(whole, chunked)


@given(st.lists(st.integers(0, 60), max_size=5))
def test_every_sample_is_kept_and_pauses_stand_only_between_pieces_with_sound(lengths):
    num_spoken = sum(length > 0 for length in lengths)

    wave = joined([[np.ones(length, np.float32)] for length in lengths])

    assert len(wave) == sum(lengths) + PAUSE * max(0, num_spoken - 1)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=3))
def test_every_piece_begins_and_ends_in_silence_without_a_jump(lengths):
    wave = joined([[np.ones(length, np.float32)] for length in lengths])

    assert np.abs(np.diff(wave, prepend=0.0, append=0.0)).max() <= np.pi / 2 / FADE


def test_two_pieces_are_a_pause_apart_and_untouched_between_their_fades():
    piece = np.random.default_rng(0).uniform(-1, 1, 100).astype(np.float32)

    one = joined([[piece]])

    assert np.array_equal(one[FADE:-FADE], piece[FADE:-FADE])
    assert np.array_equal(joined([[piece], [piece]]), np.concatenate([one, np.zeros(PAUSE), one]))


def test_sound_is_held_back_for_no_longer_than_a_fade():
    stream = joiner()

    assert len(stream.push(np.ones(100, np.float32))) == 100 - FADE
    assert len(stream.push(np.ones(3, np.float32))) == 3
    assert len(stream.end_piece()) == FADE


def test_no_pause_follows_the_last_piece_whether_or_not_it_was_ended():
    ended, open_ended = joiner(), joiner()
    ended.push(np.ones(50))
    open_ended.push(np.ones(50))

    assert np.array_equal(np.concatenate([ended.end_piece(), ended.finish()]), open_ended.finish())


def test_after_finish_a_new_stream_begins_without_a_pause():
    stream = joiner()
    assert len(stream.finish()) == 0

    first, second = (np.concatenate([stream.push(np.ones(50)), stream.finish()]) for _ in range(2))

    assert np.array_equal(first, second)


def test_without_fades_and_pauses_pieces_pass_unchanged():
    stream = Joiner(sample_rate=1000, fade_ms=0, pause_ms=0)
    piece = np.ones(10, np.float32)

    assert np.array_equal(stream.push(piece), piece)
    assert len(stream.finish()) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_stream_is_float32_and_the_callers_wave_is_unchanged(dtype):
    stream, piece = joiner(), np.ones(50, dtype)

    parts = [stream.push(piece), stream.push(piece[:0]), stream.end_piece(), stream.finish()]

    assert all(part.dtype == np.float32 for part in parts)
    assert piece.min() == 1


def test_the_defaults_are_5_and_120_milliseconds():
    stream = Joiner(sample_rate=44_100)

    num_held = 1000 - len(stream.push(np.ones(1000, np.float32)))
    stream.end_piece()
    num_paused = len(stream.push(np.ones(1000, np.float32))) - (1000 - num_held)

    assert (num_held, num_paused) == (220, 5292)  # 220.5 rounds to even


class Words:
    """Records what the computation of word times receives."""

    def __init__(self):
        self.received = []

    def feed(self, audio, frames, *, is_last):
        self.received.append((len(audio), frames, is_last))
        return ()


def test_scores_are_sent_with_the_place_of_their_utterance_in_the_audio():
    queue = OutputQueue(lambda: None)
    queue.words = words = Words()
    output, scores = AudioOutput(queue, sample_rate=1000, arrived=0.0), np.zeros((2, 5), np.float32)
    for is_cut in (False, True):
        output.push(np.ones(60), 2, 0.0, scores)
        output.push(np.ones(40), 2, 0.0, scores)
        if not is_cut:
            output.end_utterance(0.0)
    output.finish("length", 0.0, Timing(), was_cut=True)
    queue.end()
    list(queue)

    sent, starts, ends = 0, [], []
    for length, frames, is_last in words.received:
        starts += [(frames.utterance, frames.start)]
        ends += [(frames.was_cut, is_last)] if frames.is_last else []
        sent += length
    assert starts == [(0, 0)] * 3 + [(1, 100 + 120)] * 3  # a pause of 120 ms
    assert ends == [(False, False), (True, True)]
    assert sent == 100 + 120 + 100


def test_without_scores_no_frames_are_sent():
    queue = OutputQueue(lambda: None)
    queue.words = words = Words()
    output = AudioOutput(queue, sample_rate=1000, arrived=0.0)
    output.push(np.ones(60), 2, 0.0)
    output.finish("stop", 0.0, Timing())
    queue.end()
    list(queue)

    assert [frames for _, frames, _ in words.received] == [None, None]

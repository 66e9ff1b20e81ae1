"""Utterances are joined without clicks, and the output does not depend on the chunking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.speech import AudioOutput, Joiner
from s1_mini.runtime.finishing import Finishing, PartFinish
from s1_mini.types import Timing

FADE, JOINT = 8, 120  # samples at this rate
RATE = 1000
WINDOW = 10  # samples in which silence is measured


def joiner(pauses=()):
    return Joiner(sample_rate=RATE, fade_ms=FADE, pauses=pauses)


def joined(pieces, pauses=()):
    """Join utterances, each a list of chunks."""
    stream, out = joiner(pauses), []
    for number, chunks in enumerate(pieces, 1):
        out += [stream.push(chunk) for chunk in chunks]
        out.append(stream.end_piece() if number < len(pieces) else stream.finish())
    return np.concatenate([*out, np.zeros(0, np.float32)])


def chunks_of(piece, cuts):
    return np.split(piece, sorted(cut % (len(piece) + 1) for cut in cuts))


def sound(length, *, before=0, after=0):
    """Return a loud wave between two silences."""
    silences = (np.full(count, 1e-3, np.float32) for count in (before, after))
    return np.concatenate((next(silences), np.full(length, 0.5, np.float32), next(silences)))


def gaps(wave):
    """Return the lengths of all silences: before, between and after sounds."""
    loud = np.flatnonzero(np.abs(wave) > 0.01)
    edges = np.concatenate(([-1], loud, [len(wave)]))
    between = np.diff(edges) - 1
    return [between[0], *(each for each in between[1:-1] if each), between[-1]]


PIECES = st.lists(st.tuples(st.integers(0, 60), st.lists(st.integers(0, 60), max_size=8)), max_size=4)
PAUSES = st.lists(st.none() | st.sampled_from([0.0, 0.01, 0.05, 0.3]), max_size=5)


@given(PIECES, PAUSES)
def test_any_chunking_gives_exactly_the_same_samples(plan, pauses):
    rng = np.random.default_rng(0)
    levels = np.array([0.0, 1e-3, 0.5])
    pieces = [((rng.choice(levels, length) * rng.uniform(-1, 1, length)).astype(np.float32), c) for length, c in plan]

    whole = joined([[piece] for piece, _ in pieces], pauses)
    chunked = joined([chunks_of(piece, cuts) for piece, cuts in pieces], pauses)

    assert np.array_equal(whole, chunked)


@pytest.mark.parametrize("pause", [0, 50, 120, 600])
@pytest.mark.parametrize(("after", "before"), [(0, 0), (30, 10), (330, 50), (330, 400), (10, 200)])
def test_a_pause_is_all_silence_between_two_sounds(pause, after, before):
    pieces = [sound(100, before=50, after=after), sound(100, before=before, after=40)]

    wave = joined([np.array_split(piece, 7) for piece in pieces], [None, pause / RATE])

    first, between, last = gaps(wave) if pause else (*gaps(wave)[:1], 0, *gaps(wave)[-1:])
    assert (first, last) == pytest.approx((50, 40), abs=FADE)
    assert between == pytest.approx(pause, abs=WINDOW + FADE)


def test_silence_within_a_piece_keeps_its_length():
    piece = np.concatenate((sound(100, after=400), sound(100)))

    assert gaps(joined([np.array_split(piece, 30), [sound(50)]], [None, 0.1]))[1] == 400


def test_low_sound_at_the_beginning_of_a_piece_is_kept():
    low = np.full(80, 4e-3, np.float32)  # -42 dB

    wave = joined([[sound(100, after=330)], [np.concatenate((low, sound(100)))]], [None, 0.25])

    assert np.count_nonzero((np.abs(wave) > 3e-3) & (np.abs(wave) < 5e-3)) >= 80 - FADE


def test_silence_is_held_back_only_where_it_exceeds_the_pause():
    stream = joiner([None, 0.6])
    sent = len(stream.push(sound(100))) + len(stream.push(np.full(900, 1e-3, np.float32)))

    assert sent == 100 + 500 - FADE  # 0.1 s of the pause is left for the silence of the next piece
    assert len(stream.push(sound(100))) == 400 + 100


def test_the_silences_at_both_ends_can_be_set():
    wave = joined([[sound(100, before=50, after=330)]], [0.2, 0.05])

    assert gaps(wave) == pytest.approx([200, 50], abs=WINDOW + FADE)


@given(st.lists(st.integers(0, 60), max_size=5))
def test_without_measured_pauses_every_sample_is_kept_and_joints_stand_only_between_pieces_with_sound(lengths):
    num_spoken = sum(length > 0 for length in lengths)

    wave = joined([[np.ones(length, np.float32)] for length in lengths])

    assert len(wave) == sum(lengths) + JOINT * max(0, num_spoken - 1)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=3), PAUSES)
def test_every_piece_begins_and_ends_in_silence_without_a_jump(lengths, pauses):
    wave = joined([[np.ones(length, np.float32)] for length in lengths], pauses)

    assert np.abs(np.diff(wave, prepend=0.0, append=0.0)).max() <= np.pi / 2 / FADE


def test_two_pieces_are_untouched_between_their_fades():
    piece = np.random.default_rng(0).uniform(-1, 1, 100).astype(np.float32)

    one = joined([[piece]])

    assert np.array_equal(one[FADE:-FADE], piece[FADE:-FADE])
    assert np.array_equal(joined([[piece], [piece]]), np.concatenate([one, np.zeros(JOINT), one]))


def test_sound_is_held_back_for_no_longer_than_a_fade_and_a_window():
    stream = joiner([None, 0.25])

    assert len(stream.push(np.ones(105, np.float32))) == 100 - FADE
    assert len(stream.push(np.ones(5, np.float32))) == WINDOW
    assert len(stream.end_piece()) == FADE


def test_after_finish_a_new_stream_begins_without_a_pause():
    stream = joiner()
    assert len(stream.finish()) == 0

    first, second = (np.concatenate([stream.push(np.ones(50)), stream.finish()]) for _ in range(2))

    assert np.array_equal(first, second)


def test_without_fades_and_pauses_pieces_pass_unchanged():
    stream = Joiner(sample_rate=RATE, fade_ms=0)
    piece = np.ones(10, np.float32)

    assert np.array_equal(stream.push(piece), piece)
    assert len(stream.finish()) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_stream_is_float32_and_the_callers_wave_is_unchanged(dtype):
    stream, piece = joiner(), np.ones(50, dtype)

    parts = [stream.push(piece), stream.push(piece[:0]), stream.end_piece(), stream.finish()]

    assert all(part.dtype == np.float32 for part in parts)
    assert piece.min() == 1


class Words:
    """Records what the computation of word times receives."""

    def __init__(self):
        self.received = []

    def feed(self, frames, *, is_last):
        self.received.append((frames, is_last))
        return ()


@pytest.mark.parametrize(("pauses", "second"), [((), 100 + JOINT), ([None, 0.3], 60 + 300 - 50)])
def test_scores_are_sent_with_their_audio_and_the_place_of_their_utterance(pauses, second):
    queue = OutputQueue(lambda: None)
    words = Words()
    queue.finish = Finishing(PartFinish(words))
    output = AudioOutput(queue, sample_rate=RATE, arrived=0.0)
    output.begin([pauses])
    scores = np.zeros((2, 5), np.float32)
    for is_cut in (False, True):
        piece = sound(30, before=50 * is_cut, after=70 - 50 * is_cut)
        for wave in np.split(piece, [60]):
            output.push(wave, 2, 0.0, scores)
        if not is_cut:
            output.end_utterance(0.0)
    output.finish("length", 0.0, Timing(), was_cut=True)
    queue.end()
    num_samples = sum(len(chunk.audio) for chunk in queue)

    received = [frames for frames, _ in words.received if frames is not None]
    starts = {frames.utterance: frames.start for frames in received}
    assert starts == {0: 0, 1: pytest.approx(second - 30 * bool(pauses), abs=WINDOW)}
    assert [sum(map(len, frames.scores)) for frames in received] == [2, 2, 0, 2, 2, 0]
    assert sum(len(wave) for frames in received for wave in frames.waves) == 200
    assert [
        (frames.was_cut, is_last) for frames, is_last in words.received if frames is not None and frames.is_last
    ] == [
        (False, False),
        (True, True),
    ]
    assert starts[1] + received[-1].stop == num_samples


def test_without_scores_no_frames_are_sent():
    queue = OutputQueue(lambda: None)
    words = Words()
    queue.finish = Finishing(PartFinish(words))
    output = AudioOutput(queue, sample_rate=RATE, arrived=0.0)
    output.push(np.ones(60), 2, 0.0)
    output.finish("stop", 0.0, Timing())
    queue.end()
    list(queue)

    assert [frames for frames, _ in words.received] == [None, None]

"""Quality floor of the default voice: it is intelligible, and stops in time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.text import spoken
from s1_mini.weights.directory import DEFAULT_MODEL

if str(Path(__file__).parents[1]) not in sys.path:  # recipes/ is not installed
    sys.path.insert(0, str(Path(__file__).parents[1]))

from recipes.voice.texts import held_out_sentences
from recipes.voice.words import compare

# Sentences that are in no training text, and the average seconds of the voices for them.
SENTENCES = (
    ("The door was open when I came home.", 2.7),
    ("We had soup and bread for lunch.", 2.4),
    ("They moved here from the other side of the country.", 3.2),
    ("Her brother works in a bank in the city.", 2.8),
    ("The population is 640,000.", 3.5),
    ("Is Frank still living in New Zealand?", 2.8),
    ("Of course.", 1.3),
)
MIN_TOLD_APART = 6  # of seven; all voices with all sentences passed 89 of 90
MAX_WORD_ERROR_RATE = 0.35  # of a recogniser whose rate was 0.05 to 0.33 by voice, 0.20 in all
MAX_BYTES = 40_000_000
EAR_RATE = 16_000  # Hz


@pytest.fixture(scope="module")
def voice() -> Iterator[ProductionTTSEngine]:
    """An engine with default settings."""
    with ProductionTTSEngine(EngineConfig(device="cpu")) as engine:
        yield engine


class Ear:
    """Pocketsphinx with its general English model, or with the held-out sentences only."""

    def __init__(self) -> None:
        import pocketsphinx

        self._decoder: Any = pocketsphinx.Decoder(samprate=EAR_RATE, loglevel="FATAL")
        self._english = self._decoder.current_search()
        every = {text for room in held_out_sentences().values() for text in room} | {text for text, _ in SENTENCES}
        choice = " | ".join(" ".join(self.words(text)) for text in sorted(every))
        self._decoder.add_jsgf_string("held out", f"#JSGF V1.0;\ngrammar sentences;\npublic <one> = {choice};\n")

    @staticmethod
    def words(text: str) -> list[str]:
        return re.findall(r"[a-z']+", spoken(text).lower())

    def hears(self, wave: np.ndarray, rate: int) -> str:
        """Recognise words of any text."""
        return self._heard(self._english, wave, rate)

    def chooses(self, wave: np.ndarray, rate: int) -> list[str]:
        """Recognise the words of the most similar held-out sentence."""
        return self._heard("held out", wave, rate).split()

    def _heard(self, search: str, wave: np.ndarray, rate: int) -> str:
        silence = np.zeros(round(0.3 * EAR_RATE), np.float32)
        padded = np.concatenate((silence, soxr.resample(wave, rate, EAR_RATE), silence))
        self._decoder.activate_search(search)
        self._decoder.reinit_feat()  # forgets the audio before
        self._decoder.start_utt()
        self._decoder.process_raw((padded.clip(-1, 1) * 32767).astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        best = self._decoder.hyp()
        return re.sub(r"\(\d+\)", "", best.hypstr) if best else ""


def pitch(wave: np.ndarray, rate: int) -> float:
    """Median fundamental frequency of the loud frames, in Hz."""
    length = round(0.05 * rate)
    frames = np.lib.stride_tricks.sliding_window_view(wave, length)[:: length // 2]
    loud = frames[np.square(frames).mean(1) > 0.1 * np.square(frames).mean(1).max()]
    power = np.abs(np.fft.rfft(loud * np.hanning(length), 2 * length)) ** 2
    lags = np.fft.irfft(power)[:, rate // 400 : rate // 65]
    return float(np.median(rate / (rate // 400 + lags.argmax(1))))


def test_the_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in DEFAULT_MODEL.rglob("*") if path.is_file()) <= MAX_BYTES


def test_it_has_voices_of_its_own(voice: ProductionTTSEngine) -> None:
    assert len(voice.voice_names()) >= 8


def test_words_without_marks_keep_their_places_and_their_order_in_time(voice: ProductionTTSEngine) -> None:
    text = "they asked me twice whether I would come and although I liked it the answer was no and it still is no"

    response = voice.generate(text, word_times=True, seed=1)

    assert [word.text for word in response.words] == text.split()
    assert [text[word.start : word.stop] for word in response.words] == text.split()
    assert all(one.end_s <= other.start_s for one, other in pairwise(response.words))
    assert response.spoken_text == f"{text}."


@pytest.mark.long
@pytest.mark.skipif(find_spec("pocketsphinx") is None, reason="pocketsphinx is missing: no wheel for this machine")
def test_seven_sentences_by_as_many_voices_are_intelligible_and_stop_in_time(voice: ProductionTTSEngine) -> None:
    names = voice.voice_names()
    asked = [(text, names[at % len(names)], at) for at, (text, _) in enumerate(SENTENCES)]
    with ThreadPoolExecutor(len(asked)) as askers:  # together they take fewer steps, and sound as they do alone
        responses = list(askers.map(lambda it: voice.generate(it[0], voice=it[1], seed=it[2]), asked))
    ear = Ear()
    errors = words = right = 0
    ratios = []
    for (text, usual_s), response in zip(SENTENCES, responses, strict=True):
        assert response.finish_reason == "stop", text
        heard = compare(text, ear.hears(response.audio, response.sample_rate))
        errors, words = errors + heard.word_errors, words + heard.words
        right += ear.chooses(response.audio, response.sample_rate) == ear.words(text)
        ratios.append(response.audio_seconds / usual_s)

    assert right >= MIN_TOLD_APART
    assert errors / words <= MAX_WORD_ERROR_RATE
    assert min(ratios) > 0.67
    assert max(ratios) < 1.5


def test_the_structure_of_a_text_is_audible(voice: ProductionTTSEngine) -> None:
    text = "# The garden\n\nIt rained all night. The path was wet.\n\nNobody came.\n\n***\n\nThen the sun rose."
    settings = {"sentence": 0.4, "paragraph": 0.7}
    audio = voice.generate(text, seed=1, pauses=settings).audio

    levels = np.sqrt(np.square(audio[: len(audio) // 240 * 240].reshape(-1, 240)).mean(1))  # of 10 ms
    gaps = np.diff(np.flatnonzero(levels > levels.max() / 80)) / 100
    assert gaps[gaps > 0.3] == pytest.approx([0.8, 0.4, 0.7, 1.2], abs=0.05)


def test_each_named_voice_speaks(voice: ProductionTTSEngine) -> None:
    names = voice.voice_names()
    with ThreadPoolExecutor(len(names)) as askers:
        responses = list(askers.map(lambda name: voice.generate("Good morning.", voice=name, seed=1), names))

    assert [response.finish_reason for response in responses] == ["stop"] * len(names)
    assert all(0.4 < response.audio_seconds < 3.0 for response in responses)


def test_no_named_voice_breathes_audibly_after_its_last_word(voice: ProductionTTSEngine) -> None:
    text, names = "The road to the village was covered with snow.", voice.voice_names()
    with ThreadPoolExecutor(len(names)) as askers:
        ask = partial(voice.generate, text, seed=1, word_times=True)
        responses = list(askers.map(lambda name: ask(voice=name), names))

    assert max(response.audio_seconds - response.words[-1].end_s for response in responses) < 0.6


def test_voices_are_cloned_from_their_own_output(voice: ProductionTTSEngine) -> None:
    said = "He put the letter on the table."
    for name in voice.voice_names()[:2]:
        reference = voice.generate(said, voice=name, seed=2)
        assert np.abs(reference.audio).max() > 0.05

        clone = voice.generate(
            "We went home in the rain.", reference_audio=reference.audio, reference_text=said, seed=3
        )

        expected = pitch(reference.audio, reference.sample_rate)
        assert pitch(clone.audio, clone.sample_rate) == pytest.approx(expected, rel=0.2)

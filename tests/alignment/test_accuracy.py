"""Word times of the built-in voice against pocketsphinx's forced alignment."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.types import Word

if str(Path(__file__).parents[2]) not in sys.path:  # recipes/ is not installed
    sys.path.insert(0, str(Path(__file__).parents[2]))

from recipes.voice.texts import held_out_sentences

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("pocketsphinx") is None, reason="pocketsphinx is missing: no wheel for this machine"),
]

RATE = 16_000  # Hz
BEFORE_S, AFTER_S = 0.2, 0.3  # silence that the aligner needs
FRAME_S = 0.01  # its frames
VOICES = 3
EVERY = 8  # of the sentences, every eighth is spoken
# Median and 95th percentile of the absolute difference of starts and ends. Pocketsphinx often gives a short silence, as
# before a vowel, to the word before it; we do not.
BOUNDS_S = ((0.025, 0.08), (0.025, 0.125))


@pytest.fixture(scope="module")
def voice() -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(device="cpu")) as engine:
        yield engine


class ForcedAligner:
    """Pocketsphinx with its English model."""

    def __init__(self) -> None:
        import pocketsphinx

        self._decoder: Any = pocketsphinx.Decoder(samprate=RATE, loglevel="FATAL")

    def align(self, words: Sequence[str], wave: np.ndarray, rate: int) -> np.ndarray | None:
        """Return start and end of each word in seconds [words, 2]; None if one is not in its dictionary."""
        if any(self._decoder.lookup_word(word) is None for word in words):
            return None
        before, after = (np.zeros(round(seconds * RATE), np.float32) for seconds in (BEFORE_S, AFTER_S))
        padded = np.concatenate((before, soxr.resample(wave, rate, RATE), after))
        samples = (padded.clip(-1, 1) * 32767).astype(np.int16).tobytes()
        self._decoder.set_align_text(" ".join(words))
        self._decoder.reinit_feat()  # forgets the audio before
        self._decoder.start_utt()
        self._decoder.process_raw(samples, full_utt=True)
        self._decoder.end_utt()
        if self._decoder.hyp() is None:
            return None
        found = [(part.start_frame, part.end_frame + 1) for part in self._decoder.seg() if part.word[0] not in "<["]
        return np.array(found) * FRAME_S - BEFORE_S if len(found) == len(words) else None


def test_starts_and_ends_are_those_of_a_forced_aligner(voice: ProductionTTSEngine) -> None:
    aligner = ForcedAligner()
    differences: dict[str, list[np.ndarray]] = {"whole": [], "live": []}
    sentences = [text for group in held_out_sentences().values() for text in group][::EVERY]
    for number, text in enumerate(sentences):
        options: Any = {"voice": voice.voice_names()[number % VOICES], "seed": number, "word_times": True}
        response = voice.generate(text, **options)
        kinds: dict[str, Sequence[Word]] = {
            "whole": response.words,
            "live": [word for chunk in voice.stream(text, **options) for word in chunk.words],
        }
        assert " ".join(word.text for word in kinds["live"]) == " ".join(word.text for word in response.words)
        words = [word.text.lower() for word in response.words]
        expected = aligner.align(words, response.audio, response.sample_rate)
        if expected is not None:
            for kind, found in kinds.items():
                differences[kind].append(np.array([(word.start_s, word.end_s) for word in found]) - expected)

    for each in differences.values():
        absolute = np.abs(np.concatenate(each))
        assert len(absolute) >= 100
        assert (np.percentile(absolute, (50, 95), axis=0).T <= BOUNDS_S).all()

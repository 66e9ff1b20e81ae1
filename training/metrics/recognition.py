"""Is it intelligible: what pocketsphinx hears, and how far that is from the text.

The acoustic model, language model and dictionary (en-US) lie inside pocketsphinx's wheel: no network.
Waves are mono, int16 or float in [-1, 1], at 16 kHz. `evaluate.py` calls it, in worker processes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.metrics.words import compare

RATE_HZ = 16_000
SILENCE_PEAK = 33  # of int16: -60 dBFS
SILENCE_S = 0.3  # before and after: the recogniser expects a pause at both ends


def recognise(wave_16k: NDArray[np.generic]) -> str:
    """Give the words that pocketsphinx hears, as it writes them; the same whatever it heard before."""
    wave = as_int16(wave_16k)
    if not len(wave) or np.abs(wave.astype(np.int32)).max() < SILENCE_PEAK:
        return ""  # pocketsphinx hears "dog" in digital silence
    decoder = _decoder()
    decoder.reinit_feat()  # forgets the channel: with it, results equal those of a new decoder (24 of 24 utterances)
    silence = np.zeros(int(SILENCE_S * RATE_HZ), np.int16)
    decoder.start_utt()
    decoder.process_raw(np.concatenate((silence, wave, silence)).tobytes(), full_utt=True)
    decoder.end_utt()
    best = decoder.hyp()
    return str(best.hypstr) if best else ""


def word_errors(reference_text: str, wave_16k: NDArray[np.generic]) -> tuple[int, int, str]:
    """Count word errors and words of one recording; the third is what was heard.

    Numbers, times, money and initials may be read in any accepted way (`words.places`).
    """
    hypothesis = recognise(wave_16k)
    comparison = compare(reference_text, hypothesis)
    return comparison.word_errors, comparison.words, hypothesis


def as_int16(wave: NDArray[np.generic]) -> NDArray[np.int16]:
    """Bring float samples in [-1, 1] to int16, clipping what lies beyond; leave int16 ones."""
    if wave.dtype == np.int16:
        return wave.astype(np.int16, copy=False)
    return np.round(np.clip(wave.astype(np.float64), -1, 1) * 32767).astype(np.int16)


@cache
def _decoder() -> Any:
    from pocketsphinx import Decoder  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return Decoder(samprate=RATE_HZ, loglevel="FATAL")

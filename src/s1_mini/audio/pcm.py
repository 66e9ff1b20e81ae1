"""Float waves as 16-bit samples. Knows neither files nor sample rates; `container` and streamed answers call it."""

from __future__ import annotations

import numpy as np

from s1_mini.exceptions import GenerationError

FULL_SCALE = 2**15 - 1  # symmetric: 1.0 is 32767 and -1.0 is -32767, so that silence stays in the middle


def to_int16(wave: np.ndarray) -> np.ndarray:
    """Round a float wave in [-1, 1] to little-endian int16 of the same shape; what lies beyond is clipped.

    Raises `GenerationError` if a sample is NaN or infinite: a model that says so has failed.
    """
    if wave.size == 0:
        return np.zeros(wave.shape, "<i2")
    least, most = wave.min(), wave.max()  # a NaN is both
    if not (np.isfinite(least) and np.isfinite(most)):
        raise GenerationError(_what_is_broken(wave))
    within = wave if least >= -1.0 and most <= 1.0 else np.clip(wave, -1.0, 1.0)
    scaled: np.ndarray = within * np.float32(FULL_SCALE)
    return np.rint(scaled, out=scaled).astype("<i2")


def _what_is_broken(wave: np.ndarray) -> str:
    is_broken = ~np.isfinite(wave)
    first = int(np.argmax(is_broken))
    return f"{is_broken.sum()} of {wave.size} samples are NaN or infinite, the first at {first}"

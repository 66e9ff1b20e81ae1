"""Promises of audio/pcm: float waves become 16-bit samples without wrapping round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from s1_mini.audio.container import to_int16
from s1_mini.exceptions import GenerationError


def test_full_scale_is_symmetric():
    assert to_int16(np.array([1.0, 0.0, -1.0], np.float32)).tolist() == [32767, 0, -32767]


def test_what_is_too_loud_is_clipped_and_does_not_wrap_round():
    assert to_int16(np.array([1.5, 1e30, -1.00001, -1e30], np.float32)).tolist() == [32767, 32767, -32767, -32767]


def test_samples_are_rounded_to_the_nearest():
    assert to_int16(np.array([0.6, 0.4, -0.6]) / 32767).tolist() == [1, 0, -1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_gives_little_endian_samples_of_the_same_shape(dtype):
    samples = to_int16(np.full((3, 2), 0.5, dtype))

    assert samples.dtype == np.dtype("<i2")
    assert samples.tobytes() == b"\x00\x40" * 6


@given(hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(-1, 1, width=32)))
def test_no_sample_moves_by_more_than_half_a_step(wave):
    assert np.all(np.abs(to_int16(wave) / 32767 - wave) <= 0.501 / 32767)


def test_the_wave_itself_is_left_alone():
    wave = np.array([2.0, -2.0], np.float32)

    to_int16(wave)

    assert wave.tolist() == [2.0, -2.0]


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_no_number_is_refused_by_place(broken):
    with pytest.raises(GenerationError, match="1 of 4 samples are NaN or infinite, the first at 2"):
        to_int16(np.array([0, 0, broken, 0], np.float32))

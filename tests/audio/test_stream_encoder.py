"""Sound into bytes while it is made: the same samples as the whole, nothing changed after it was sent."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from s1_mini.audio.container import FORMATS, StreamEncoder, encode
from s1_mini.exceptions import GenerationError


def decoded(content: bytes, form: str) -> np.ndarray:
    return np.frombuffer(content, "<i2") if form == "pcm" else soundfile.read(io.BytesIO(content), dtype="int16")[0]


@pytest.mark.parametrize("size", [100, 8192, 44_100])
@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("form", FORMATS)
def test_pieces_decode_to_the_samples_of_the_whole(tone: np.ndarray, form: str, rate: int, size: int) -> None:
    encoder = StreamEncoder(form, rate)

    content = b"".join(encoder.feed(tone[start : start + size]) for start in range(0, len(tone), size))
    content += encoder.finish()

    got, wanted = decoded(content, form), decoded(encode(tone, rate, form), form)
    if form == "mp3":  # of another bit rate, and with the silence that an encoder puts around it
        assert 0 <= len(got) - len(wanted) < 4000
    else:
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("form", ["pcm", "wav", "mp3", "ogg"])
def test_sound_leaves_before_the_end(tone: np.ndarray, form: str) -> None:
    encoder = StreamEncoder(form, 44_100)

    sent = sum(len(encoder.feed(tone)) for _ in range(5))

    assert sent > 3 * len(encoder.finish())


def test_nothing_that_is_not_a_number_is_encoded(tone: np.ndarray) -> None:
    with pytest.raises(GenerationError, match="NaN"):
        StreamEncoder("wav", 44_100).feed(np.full(10, np.nan, np.float32))


@pytest.mark.parametrize("form", FORMATS)
def test_no_sound_at_all_is_a_file_all_the_same(form: str) -> None:
    assert isinstance(StreamEncoder(form, 44_100).finish(), bytes)

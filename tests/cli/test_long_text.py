"""`s1-mini say --input`: texts of any length, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from s1_mini.audio.container import FORMATS, encode, writing
from s1_mini.cli.long_text import Block, Reading, cut_blocks, with_voices
from s1_mini.exceptions import GenerationError, ParameterError
from s1_mini.types import AudioChunk, Joined, Pauses, TTSRequest, Word
from tests.cli.conftest import Call

RATE = 1000
SENTENCES = "One two three. Four five six. Seven eight nine. "


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("One.\n\nTwo.", ["One.\n\nTwo."]),
        (f"{SENTENCES}\n\n{SENTENCES}", [f"{SENTENCES}\n\n", SENTENCES]),
        (SENTENCES + SENTENCES, ["One two three. Four five six. Seven eight nine.", f" {SENTENCES}"]),
        ("word " * 14, ["word " * 12, "word " * 2]),
        ("a" * 70, ["a" * 60, "a" * 10]),
        (f"{SENTENCES}\n\n…\n\n{'!' * 60}Two.", [f"{SENTENCES}\n\n…\n\n", "Two."]),
    ],
)
def test_a_text_is_cut_between_paragraphs_or_sentences(text: str, texts: list[str]) -> None:
    blocks = cut_blocks(text, 60)

    assert [block.text.strip() for block in blocks] == [each.strip() for each in texts]
    assert all(text.startswith(block.text, block.start) for block in blocks)
    assert all(len(block.text) <= 60 for block in blocks)
    is_torn = "." not in text
    assert [block.continues for block in blocks] == [is_torn and block != blocks[-1] for block in blocks]


def test_a_block_of_marked_text_begins_with_the_voice_that_spoke_last() -> None:
    blocks = [
        Block("One. [Clara] Two.", 0),
        Block("Three.", 20),
        Block("[x] Four. [paul] Five.", 30),
        Block("Six.", 60),
    ]

    begun = with_voices(blocks, {"clara", "paul"})

    assert [block.text for block in begun[1:]] == ["[clara] Three.", "[clara] [x] Four. [paul] Five.", "[paul] Six."]
    assert [
        block.start + block.text.index(word) for block, word in zip(begun[1:], ("Three", "[x]", "Six"), strict=True)
    ] == [
        20,
        30,
        60,
    ]


class Engine:
    """Speaks a second of audio for each request, in two chunks, and notes which requests are open."""

    def __init__(self) -> None:
        self.requests: list[TTSRequest] = []
        self.num_open = self.most_open = 0

    def speak(self, request: TTSRequest, *, streams: bool) -> Any:
        assert streams
        self.requests.append(request)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        output = self._chunks(request)
        next(output)
        return output

    def _chunks(self, request: TTSRequest) -> Iterator[AudioChunk]:
        try:
            yield AudioChunk(np.zeros(0, np.float32), RATE, 0)  # taken by `speak`, so that closing has an effect
            words = (Word(request.text[:3], 0, 3, 0.25, 0.5),)
            yield AudioChunk(np.full(RATE // 2, 0.5, np.float32), RATE, 1, words=words)
            yield AudioChunk(np.full(RATE // 2, 0.5, np.float32), RATE, 1, "stop")
        finally:
            self.num_open -= 1


def test_blocks_are_joined_with_the_places_of_their_words_and_two_requests_at_once() -> None:
    text = "One.\n\nTwo. Six."
    blocks = [Block("One.\n\n", 0), Block("Two. ", 6), Block("Six.", 11)]
    engine: Any = Engine()
    reading = Reading(engine, TTSRequest.of("", seed=5), blocks)

    positions, chunks = [], []
    for chunk in reading.chunks(streams=True):
        chunks.append(chunk)
        positions.append(reading.position)

    times = [word.start_s for chunk in chunks for word in chunk.words]
    assert [text[word.start : word.stop] for chunk in chunks for word in chunk.words] == ["One", "Two", "Six"]
    assert np.allclose(times, [0.25, 1.25, 2.25])
    assert sum(len(chunk.audio) for chunk in chunks) == 3 * RATE
    assert [request.joined for request in engine.requests] == [
        Joined(),
        Joined("paragraph"),
        Joined("sentence", is_last=True),
    ]
    assert [chunk.finish_reason for chunk in chunks] == [None] * 5 + ["stop"]
    assert [request.sampling["seed"] for request in engine.requests] == [5, 6, 7]
    assert (engine.most_open, engine.num_open) == (2, 0)
    assert positions == sorted(positions)
    assert reading.position == len(text)


def test_an_abandoned_text_closes_its_requests() -> None:
    engine: Any = Engine()
    chunks = Reading(engine, TTSRequest.of(""), [Block("One.", 0), Block("Two.", 4)]).chunks(streams=True)
    next(chunks)
    next(chunks)
    assert engine.num_open == 2

    chunks.close()  # type: ignore[attr-defined]

    assert engine.num_open == 0


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_written_in_pieces_is_the_one_that_is_written_whole(tmp_path: Path, form: Any) -> None:
    wave = (0.5 * np.sin(np.arange(44_100) / 20)).astype(np.float32)

    with writing(tmp_path / "a", 44_100, form) as add:
        for piece in np.array_split(wave, 7):
            add(piece)

    content, whole = (tmp_path / "a").read_bytes(), encode(wave, 44_100, form)
    if form in {"wav", "pcm"}:
        assert content == whole
    else:
        assert abs(len(content) - len(whole)) < 500
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_is_kept_unless_the_new_one_is_complete(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"earlier audio")

    def write(path: Path, value: float) -> None:
        with writing(path, RATE, "wav") as add:
            add(np.zeros(RATE, np.float32))
            add(np.full(RATE, value, np.float32))

    with pytest.raises(GenerationError):
        write(tmp_path / "a.wav", np.nan)
    with pytest.raises(ParameterError, match="cannot write"):
        write(tmp_path / "no" / "a.wav", 0.5)

    with pytest.raises(OSError, match="no loudspeaker"), writing(tmp_path / "a.wav", RATE, "wav"):
        raise OSError("no loudspeaker")

    assert (tmp_path / "a.wav").read_bytes() == b"earlier audio"
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def longest_silence_s(wave: np.ndarray, rate: int) -> float:
    sounds = np.flatnonzero(np.r_[1.0, wave, 1.0])
    return (float(np.diff(sounds).max()) - 1) / rate


def test_a_file_over_the_limit_of_a_request_is_spoken_with_its_lexicon(
    call: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S1_MINI_MAX_TEXT_LENGTH", "30")
    (tmp_path / "book.txt").write_bytes("\ufeffIt was nginx.\r\n\r\nThen it rained all day.".encode())
    (tmp_path / "words.txt").write_text("nginx = engine x\n", encoding="utf-8")
    options = ("--checkpoint", tiny, "--seed", "1", "--max-new-tokens", "4")

    said = call(
        "say",
        "--input",
        tmp_path / "book.txt",
        "--lexicon",
        tmp_path / "words.txt",
        "-v",
        "-o",
        tmp_path / "a.wav",
        *options,
    )
    first = call("say", "It was nginx.", "--lexicon", tmp_path / "words.txt", "-o", tmp_path / "b.wav", *options)

    assert (said.code, first.code) == (0, 0), said.err
    assert [line for line in said.err.splitlines() if line.startswith("spoken: ")] == [
        "spoken: It was engine x.",
        "spoken: Then it rained all day.",
    ]
    wave, part = (soundfile.read(tmp_path / name)[0] for name in ("a.wav", "b.wav"))
    assert np.allclose(wave[: len(part)], part, atol=1e-3)
    assert longest_silence_s(wave, 44_100) == pytest.approx(Pauses().paragraph, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "TEXT: give a text in quotes, or a file with --input, and not both"),
        (["Hi.", "--input", "{tmp}/a.txt"], "TEXT: give a text in quotes, or a file with --input, and not both"),
        (["--input", "{tmp}/none.txt"], "--input: cannot read"),
        (["--input", "{tmp}"], "--input: cannot read"),
        (["--input", "{tmp}/16.txt"], "is UTF-16; save it as UTF-8"),
        (["--input", "{tmp}/latin.txt"], "is not UTF-8 text"),
        (["--input", "{tmp}/blank.txt"], "contains nothing to speak"),
        (["--input", "{tmp}/a.txt", "--lexicon", "{tmp}/none"], "cannot be read"),
    ],
)
def test_a_wrong_input_is_named(call: Call, tiny: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    for name, content in {"a": b"Hi.", "16": "Hi.".encode("utf-16"), "latin": b"Gr\xfc\xdfe", "blank": b" \n"}.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    given = [each.replace("{tmp}", str(tmp_path)) for each in arguments]

    said = call("say", *given, "--checkpoint", tiny, "-o", tmp_path / "a.wav")

    assert said.code == 1
    assert sentence in said.err
    assert not (tmp_path / "a.wav").exists()

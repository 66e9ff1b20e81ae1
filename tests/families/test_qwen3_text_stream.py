"""A text that is still being written is one utterance of Qwen3-TTS, whose frames wait for their text."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s1_mini import ProductionTTSEngine, TextStream
from s1_mini.exceptions import ParameterError, QueueFullError, RequestTimeoutError, TextError
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.qwen3.loaded import LoadedQwen3
from s1_mini.families.qwen3.tokenizer import Qwen2Tokenizer
from s1_mini.text.arriving import ArrivingText
from s1_mini.voices.library import write_voice
from tests.families.qwen3_room import clone, config, opened, scheduler_of, waiting_row, written
from waiting import wait_until

TEXT = "It's 3.1 — go!  你好，世 ok"
# A stream is one utterance, as a whole text without `pauses`.
ASKED: dict[str, Any] = {"seed": 3, "max_new_tokens": 44, "normalize": "off", "pauses": "off"}
STEP = {"device": "cpu", "text_layout": "step", "chunk_length": 1000}


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("custom") / "checkpoint", "custom_voice", seed=5)


@pytest.fixture(scope="module")
def engine(custom: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(config(custom, **STEP)) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: ProductionTTSEngine) -> np.ndarray:
    """The audio of the whole text."""
    return whole(engine)


class Listener(threading.Thread):
    """Reads the audio of a stream, or its error."""

    def __init__(self, engine: ProductionTTSEngine, text: TextStream, **options: Any) -> None:
        super().__init__()
        self.chunks: list[Any] = []
        self.error: Exception | None = None
        self._iterator = engine.stream(text, **ASKED | options)
        self.start()

    def run(self) -> None:
        try:
            self.chunks.extend(self._iterator)
        except Exception as error:
            self.error = error

    def audio(self) -> np.ndarray:
        """Return all of the audio. Raises the error."""
        self.join()
        if self.error is not None:
            raise self.error
        return np.concatenate([chunk.audio for chunk in self.chunks])


def frames_of(engine: ProductionTTSEngine) -> int:
    """Return the number of frames of the only row, once it waits for text."""
    return waiting_row(engine).produced


def whole(engine: ProductionTTSEngine, text: str = TEXT, **options: Any) -> np.ndarray:
    return np.concatenate([chunk.audio for chunk in engine.stream(text, **ASKED | options)])


@pytest.mark.parametrize("size", [1, 7])
def test_pieces_sound_as_the_whole_text(engine: ProductionTTSEngine, expected: np.ndarray, size: int) -> None:
    text = TextStream()
    listener = Listener(engine, text)
    for start in range(0, len(TEXT), size):
        text.write(TEXT[start : start + size])
    text.close()

    assert np.array_equal(listener.audio(), expected)


def test_a_text_sounds_the_same_if_the_model_waits_for_each_piece(
    engine: ProductionTTSEngine, expected: np.ndarray
) -> None:
    text = TextStream()
    listener, counts = Listener(engine, text), []
    for piece in ("It's 3", ".1 — ", "go!  你好，", "世 ok"):
        text.write(piece)
        counts.append(frames_of(engine))
    text.close()

    assert np.array_equal(listener.audio(), expected)
    assert counts == sorted(set(counts))  # some frames for each piece
    assert counts[-1] < 44


@pytest.mark.parametrize("language", [None])
def test_numbers_are_read_as_in_the_whole_text(engine: ProductionTTSEngine, language: str | None) -> None:
    said, text = "We saw 3 of them. And the rest?", TextStream()
    options: dict[str, Any] = {"normalize": "auto", "language": language}
    listener = Listener(engine, text, **options)
    for character in said:
        text.write(character)
    text.close()
    audio = listener.audio()

    assert np.array_equal(audio, whole(engine, said, **options))
    assert np.array_equal(audio, whole(engine, said.replace("3", "three"), language=language))


def test_steps_that_are_launched_ahead_wait_for_their_text_too(custom: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(stage: LanguageModel) -> None:
        stage.make_graphs()  # run eagerly on a CPU
        stage.is_overlapped = True

    monkeypatch.setattr(LanguageModel, "capture", torch.inference_mode()(capture))
    with ProductionTTSEngine(config(custom, **STEP)) as engine:
        expected, text = whole(engine), TextStream()
        listener = Listener(engine, text)
        for piece in (TEXT[:4], TEXT[4:9], TEXT[9:]):
            text.write(piece)
            assert frames_of(engine)
        text.close()

        assert np.array_equal(listener.audio(), expected)


def test_a_text_that_was_written_before_sounds_the_same(engine: ProductionTTSEngine, expected: np.ndarray) -> None:
    text = TextStream()
    text.write(TEXT)
    text.close()

    assert np.array_equal(Listener(engine, text).audio(), expected)


@pytest.mark.parametrize(("kind", "voices"), [("base", ("continued", "vector")), ("voice_design", (None,))])
def test_clones_and_designed_voices_read_a_stream_too(
    tmp_path: Path, kind: str, voices: tuple[str | None, ...]
) -> None:
    directory = written(tmp_path / "checkpoint", kind, seed=5)
    if kind == "base":
        (directory / "voices").mkdir()
        for name, said in (("continued", "Well, hello."), ("vector", "")):
            write_voice(directory / "voices", name, clone(opened(directory), said, frames=12))
    said = TEXT + "\n\nA new paragraph"
    with ProductionTTSEngine(config(directory, **STEP)) as engine:
        for voice in voices:
            options: dict[str, Any] = {"voice": voice} if voice else {"instructions": "An old man."}
            plain = said if voice is None else said.replace("\n\n", " ")
            expected, text = whole(engine, plain, **options), TextStream()
            listener = Listener(engine, text, **options)
            for character in said:
                text.write(character)
            text.close()

            assert np.array_equal(listener.audio(), expected)


def test_a_waiting_row_takes_no_part_in_frames_and_delays_no_other_row(
    engine: ProductionTTSEngine, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected_other, text = whole(engine, "Others speak.", seed=8), TextStream()
    listener = Listener(engine, text)
    text.write(TEXT[:5])
    frames = frames_of(engine)
    steps: list[list[int]] = []
    plain = LanguageModel.step
    monkeypatch.setattr(
        LanguageModel, "step", lambda self, slots, size: steps.append(list(slots)) or plain(self, slots, size)
    )

    other = whole(engine, "Others speak.", seed=8)  # would not end if it waited for the first row

    assert np.array_equal(other, expected_other)
    assert steps
    assert all(slots == [1] for slots in steps)
    assert frames_of(engine) == frames
    text.write(TEXT[5:])
    text.close()
    assert np.array_equal(listener.audio(), expected)


def test_no_slot_is_taken_before_the_first_words(engine: ProductionTTSEngine) -> None:
    text = TextStream()
    listener = Listener(engine, text)
    slots = scheduler_of(engine).stages[0].slots

    text.write("Well")
    wait_until(lambda: scheduler_of(engine).line.is_empty)
    assert slots.num_free == slots.count
    text.close()
    assert len(listener.audio())


def test_closing_the_audio_frees_the_slot_of_a_waiting_row(engine: ProductionTTSEngine) -> None:
    text, slots = TextStream(), scheduler_of(engine).stages[0].slots
    chunks = engine.stream(text, **ASKED)
    text.write("Well, it is")
    assert frames_of(engine)

    chunks.close()

    wait_until(lambda: slots.num_free == slots.count)
    text.write(" ignored now.")
    text.close()


def test_the_time_limit_of_a_request_counts_from_its_last_text(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, text, late_s = scheduler_of(engine), TextStream(), [0.0]
    monkeypatch.setattr(scheduler, "clock", lambda: time.monotonic() + late_s[0])
    listener = Listener(engine, text)
    for piece in ("It's ", "3 and ", "more "):
        text.write(piece)
        frames_of(engine)
        late_s[0] += 0.9 * engine.config.request_timeout_s

    frames_of(engine)
    late_s[0] += 0.2 * engine.config.request_timeout_s
    with pytest.raises(RequestTimeoutError, match="timed out after"):
        listener.audio()


def test_text_beyond_the_slot_is_refused_whole_and_in_pieces(custom: Path) -> None:
    with ProductionTTSEngine(config(custom, **STEP).model_copy(update={"max_columns": 64})) as small:
        with pytest.raises(TextError, match=r"text: does not fit in a slot: it is \d+ tokens too long"):
            small.stream("1 2 " * 40, **ASKED)
        text = TextStream()
        listener = Listener(small, text)
        for _ in range(40):
            text.write("1 2 ")
        with pytest.raises(TextError, match=r"text: does not fit in a slot: it is \d+ tokens too long"):
            listener.audio()
        assert len(whole(small, "Still here."))


def test_text_beyond_the_limit_of_characters_is_refused(engine: ProductionTTSEngine) -> None:
    text = TextStream()
    listener = Listener(engine, text)

    text.write("a" * (engine.config.max_text_length + 1))

    with pytest.raises(TextError, match="so far; the limit is 20000"):
        listener.audio()


def test_a_text_with_nothing_to_speak_is_refused(engine: ProductionTTSEngine) -> None:
    text = TextStream()
    listener = Listener(engine, text)
    text.write("...")
    text.close()

    with pytest.raises(TextError, match="nothing to speak"):
        listener.audio()


def test_a_stream_is_spoken_once_and_not_written_after_its_end(engine: ProductionTTSEngine) -> None:
    text = TextStream()
    listener = Listener(engine, text)
    text.write("Hello.")
    text.close()
    text.close()

    with pytest.raises(ParameterError, match="another request already uses"):
        engine.stream(text)
    with pytest.raises(ParameterError, match="was closed"):
        text.write("More.")
    with pytest.raises(ParameterError, match="must be a str, not bytes"):
        TextStream().write(b"x")  # type: ignore[arg-type]
    assert len(listener.audio())
    wait_until(lambda: not engine.health_check()["requests"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word_times": True}, "word_times: is not supported"),
        ({"text_type": "ssml"}, "cannot have markup or a lexicon"),
        ({"lexicon": {"a": "b"}}, "cannot have markup or a lexicon"),
    ],
)
def test_options_that_need_the_whole_text_are_refused(
    engine: ProductionTTSEngine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        engine.stream(TextStream(), **options)


def test_an_alphabet_of_the_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    directory = written(tmp_path / "checkpoint", "custom_voice")
    values = json.loads((directory / "config.json").read_text()) | {"text": {"alphabet": "abc "}}
    (directory / "config.json").write_text(json.dumps(values))
    with (
        ProductionTTSEngine(config(directory, **STEP)) as engine,
        pytest.raises(ParameterError, match="cannot be a TextStream, because config"),
    ):
        engine.stream(TextStream())


@pytest.mark.parametrize(
    "text", [TEXT, "It’s John's 'quoted' we'll—no: 50% of €3,000.00/h… (a+b)²", "完全，对。Ёлка! 한국어,"]
)
def test_tokens_of_the_parts_are_those_of_the_whole_text(text: str) -> None:
    tidy, arriving = " ".join(text.split()), ArrivingText(1000, keeps_paragraphs=False)
    spelled = tidy.encode()
    merged = {spelled[i : i + size] for size in range(2, 9) for i in range(len(spelled))}  # any cut within a word shows
    listed = [*(bytes([value]) for value in range(256)), *sorted(each for each in merged if len(each) > 1)]
    tokenizer = Qwen2Tokenizer({each: rank for rank, each in enumerate(listed)})
    parts = [arriving.add(each, is_last=False) for each in text] + [arriving.add("", is_last=True)]

    assert [token for part in parts for token in tokenizer.encode(part)] == tokenizer.encode(tidy)


def test_streams_wait_in_the_queue_and_are_refused_if_it_is_full(custom: Path) -> None:
    limits = {"max_batch_size": 1, "max_queue_size": 1}
    with ProductionTTSEngine(config(custom, **STEP).model_copy(update=limits)) as small:
        texts = [TextStream() for _ in range(3)]
        listeners = [Listener(small, text) for text in texts]
        texts[0].write("Well, it is")
        assert frames_of(small)  # it keeps the only slot
        for text in texts[1:]:
            text.write("Well, it is")
            text.close()

        with pytest.raises(QueueFullError):
            listeners[2].audio()
        texts[0].close()
        assert len(listeners[0].audio())
        assert len(listeners[1].audio())


def test_a_prompt_is_built_again_only_if_a_word_has_been_completed(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = LoadedQwen3.begin_text, []

    def counted(self: LoadedQwen3, text: str, *arguments: Any, **options: Any) -> Any:
        built.append(text)
        return build(self, text, *arguments, **options)

    monkeypatch.setattr(LoadedQwen3, "begin_text", counted)
    text = TextStream()
    listener = Listener(engine, text)
    for character in "A b":
        text.write(character)
    for _ in range(9):
        text.write("c")
    text.close()

    assert len(listener.audio())
    assert built in (["A", "A bccccccccc"], ["A bccccccccc"])  # the second if all was written before


def test_a_warning_about_the_recording_reaches_the_listener(tmp_path: Path) -> None:
    tone = 0.3 * np.sin(np.arange(24_000) / 20).astype(np.float32)
    paused = np.concatenate((tone, np.zeros(5 * 24_000, np.float32), tone))

    with ProductionTTSEngine(config(written(tmp_path / "base", "base", seed=5), **STEP)) as engine:
        text = TextStream()
        listener = Listener(engine, text, reference_audio=paused, reference_text="Hi.")
        text.write("Hi.")
        text.close()
        listener.audio()

    assert "silence" in str(listener.chunks[0].warning)

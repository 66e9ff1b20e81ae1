"""Find the attention head that follows the text: synthesize some sentences and measure how well each head follows.

`alignment/calibration.py` defines the measures. The head is found without reference times; with them, the word times
are more accurate.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s1_mini.alignment.calibration import REQUIRED, Followed, Measures, find_shifts, measure, whole_ms
from s1_mini.alignment.head import AlignedFrames, AlignmentHead
from s1_mini.alignment.times import WORD, find_spans, whole_times
from s1_mini.audio.container import encode
from s1_mini.config import EngineConfig
from s1_mini.exceptions import ParameterError, VerificationError
from s1_mini.runtime.finishing import Finishing, PartFinish
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import SamplingParams, TTSRequest, Voice, Word
from s1_mini.voices.registry import VoiceRegistry
from s1_mini.weights.write import new_directory

SENTENCES = (
    "The morning train was late, so we walked along the river and talked.",
    "Please close the window before it rains; the carpet is new.",
    "He asked three questions, wrote down the answers, and left without a word.",
    "Fresh bread, warm soup and a quiet table: what more could we want?",
    "When the music ended, the children ran outside and looked at the moon.",
    "The mountain was steep, the wind was cold, and the view was worth it.",
    "Turn left at the bridge, then follow the road until you see a red barn.",
    "It was a small mistake, yet it took the whole week to repair.",
)
MAX_LENGTH = 200  # characters of a sentence
MAX_STEPS = 600  # limit per sentence; 600 frames of S1-mini last 28 s
LEAST_SENTENCES = 2  # if no head has half of `REQUIRED.share` in any of these, the others are skipped
COLUMNS = ("sentence", "word", "start_s", "end_s")


class Candidate(NamedTuple):
    """A head and the means of its measures over all sentences."""

    layer: int
    head: int
    measures: Measures


@dataclass(frozen=True)
class TextHead:
    """A head that follows the text, and the utterances in which it was measured."""

    head: AlignmentHead
    utterances: Sequence[Followed]

    def words(self) -> list[list[Word]]:
        """Return the spoken words of each utterance with their times."""
        found = []
        for each in self.utterances:
            options = {"sample_rate": each.sample_rate, "head": self.head, "frame_s": each.frame_s}
            intervals = whole_times(each.scores, each.spans, each.audio, **options)  # type: ignore[arg-type]
            words = zip(WORD.finditer(each.text), intervals, strict=True)
            found.append(
                [Word(word.group(), *word.span(), *(round(at_s, 3) for at_s in times)) for word, times in words]
            )
        return found

    def fitted(self, expected: Sequence[np.ndarray]) -> TextHead:
        """Return a copy whose `shift_ms` is the median time from the attention to the expected start of a word.

        `expected` has the times [words, 2] of each utterance. The first word of an utterance is left out.
        """
        shifts = []
        for each, times in zip(self.utterances, expected, strict=True):
            before = each.before
            shifts.append(times[1:, 0] - [before[span.first] for span in each.spans[1:]])
        joined = np.concatenate(shifts)
        if not len(joined):
            return self
        return replace(self, head=replace(self.head, shift_ms=whole_ms(float(np.median(joined)))))

    def save(self, folder: Path) -> None:
        """Write each utterance as `NUMBER.wav`, and all word times as `words.csv` with `COLUMNS`, into a new folder.

        Raises `CheckpointFileError` if the folder exists and is not empty, or cannot be written, and `GenerationError`
        for audio that cannot be encoded.
        """
        with new_directory(folder) as target:
            for number, each in enumerate(self.utterances, 1):
                (target / f"{number}.wav").write_bytes(encode(each.audio, each.sample_rate, "wav"))
            with (target / "words.csv").open("w", encoding="utf-8", newline="") as file:
                table = csv.writer(file)
                table.writerow(COLUMNS)
                for number, words in enumerate(self.words(), 1):
                    table.writerows((number, word.text, word.start_s, word.end_s) for word in words)

    def read_words(self, path: Path) -> list[np.ndarray]:
        """Return the word times [words, 2] of each utterance from a table like that of `save`.

        Raises `ParameterError` if the table cannot be read, has other words, or has times outside the audio.
        """
        found: list[list[tuple[str, float, float]]] = [[] for _ in self.utterances]
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    sentence, word, *times = (row[column] for column in COLUMNS)
                    found[int(sentence) - 1].append((word, float(times[0]), float(times[1])))
        except (OSError, KeyError, TypeError, ValueError, IndexError, csv.Error) as error:
            allowed = f"a table with the columns {', '.join(COLUMNS)} and {len(found)} sentences"
            raise ParameterError("words", f"{path} must be {allowed}: {type(error).__name__}: {error}") from None
        for number, (each, rows) in enumerate(zip(self.utterances, found, strict=True), 1):
            seconds = len(each.audio) / each.sample_rate
            is_inside = all(0 <= start_s <= end_s <= seconds + 1 for _, start_s, end_s in rows)
            if not is_inside or [word for word, *_ in rows] != WORD.findall(each.text):
                allowed = f"the words of sentence {number} with times within its {seconds:.1f} s: {each.text}"
                raise ParameterError("words", f"{path} must have {allowed}")
        return [np.array([times for _, *times in rows]) for rows in found]


class Recorder:
    """Collects the audio and the attention scores of one utterance, in place of its aligner."""

    def __init__(self) -> None:
        self.audio: list[np.ndarray] = []
        self.frames: list[AlignedFrames] = []

    def feed(self, frames: AlignedFrames | None, *, is_last: bool) -> tuple[Word, ...]:  # noqa: ARG002
        if frames is not None:
            self.audio += frames.waves
            self.frames.append(frames)
        return ()


def compare(words: Sequence[Sequence[Word]], expected: Sequence[np.ndarray]) -> str:
    """Return a sentence on how much word times differ from the expected times [words, 2] of each utterance."""
    found = np.array([(word.start_s, word.end_s) for each in words for word in each])
    apart = 1000 * np.percentile(np.abs(found - np.concatenate(expected)), (50, 95), axis=0)
    starts, ends = ("{:.0f} ms in the median and {:.0f} ms at the 95th percentile".format(*part) for part in apart.T)
    return f"starts differ by {starts}, ends by {ends}"


def _voices(speaker: LoadedCheckpoint, config: EngineConfig, name: str | None) -> list[Voice]:
    """Return the named voice, or else the default voice; an empty list if there is none and the model needs none.

    Raises `VoiceError` for an unknown voice, or if the model needs a voice but none is named and none is the default,
    and `ConfigurationError`.
    """
    registry = VoiceRegistry.open(speaker.voices, speaker.description.voice, config.voices_path)
    if not (voices := registry.chosen(name)):
        speaker.description.check_voice(registry.names)
    return voices


def _speak(
    synthesizer: Synthesizer, text: str, voices: Sequence[Voice], sampling: SamplingParams
) -> tuple[np.ndarray, list[AlignedFrames]]:
    recorder = Recorder()
    queue = synthesizer.speak([text], voices, sampling, TTSRequest("", word_times=True), streams=False)
    queue.finish = Finishing(PartFinish(recorder))
    for _ in queue:
        pass
    return np.concatenate(recorder.audio), recorder.frames


def calibrate(
    config: EngineConfig,
    texts: Sequence[str] = SENTENCES,
    progress: Callable[[int, float], object] = lambda *_: None,
    voice: str | None = None,
) -> tuple[list[Candidate], TextHead | None]:
    """Synthesize each of the `texts` as one utterance and measure all heads that attend to the text.

    Returns all heads, sorted by their share, largest first; and the first head without faults, with its shifts, or None
    if no head follows the text. `voice` names the voice; None selects the default voice. After each sentence,
    `progress` is called with the sentence's number and the seconds of its audio.

    Raises `VerificationError` if the family has no heads that attend to the text, `CheckpointError`,
    `ConfigurationError`, `RequestError` or `EngineError`.
    """
    speaker = load(config)
    layers, width = speaker.loaded.text_heads
    heads = [AlignmentHead(layer, head, 0, 0, 0) for layer in range(layers) for head in range(width)]
    if not heads:
        raise VerificationError(f"{speaker.family} has no attention head that could follow the text")
    speaker.loaded.heads = heads
    voices = _voices(speaker, config, voice)
    measured, followed = list[np.ndarray](), dict[int, list[Followed]]()
    with ExitStack() as cleanup:
        synthesizer = Synthesizer(speaker, config)
        cleanup.callback(synthesizer.close, drains=False)
        aligner, rate = synthesizer.aligner, speaker.description.sample_rate
        assert aligner is not None
        for number, written in enumerate(texts):
            text = speaker.text.script(written, MAX_LENGTH, on_unsupported="skip").text
            sampling = replace(speaker.description.defaults, seed=number, max_new_tokens=MAX_STEPS)
            audio, frames = _speak(synthesizer, text, voices, sampling)
            progress(number + 1, len(audio) / rate)
            ends = aligner.token_ends(text)
            spans, scores = find_spans(text, ends), np.concatenate([part for each in frames for part in each.scores])
            if not spans:
                raise ParameterError("text", f"has no words: {written!r}")
            measured.append(measure(scores, spans, aligner.frame_s, was_cut=frames[-1].was_cut))
            for index in np.flatnonzero(measured[-1][:, 0] >= REQUIRED.share / 2).tolist():
                each = Followed(text, spans, ends, scores[:, index].copy(), audio, rate, aligner.frame_s)
                followed.setdefault(index, []).append(each)
            if number + 1 == LEAST_SENTENCES and not followed:
                break
    means = np.mean(measured, axis=0)
    order = np.argsort(-means[:, 0]).tolist()
    candidates = [Candidate(heads[index].layer, heads[index].head, Measures(*means[index])) for index in order]
    best = next((index for index, each in zip(order, candidates, strict=True) if not each.measures.faults), None)
    if best is None:
        return candidates, None
    return candidates, TextHead(find_shifts(heads[best].layer, heads[best].head, followed[best]), followed[best])

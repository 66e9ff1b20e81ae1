"""Several samples of each of many texts, spoken by the built-in voices and by clones, with their judgements.

Shapes: N candidates, K codebooks, F frames, T samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.voice.batch_ears import BatchEars
from recipes.voice.networks import EAR_RATE
from recipes.voice.shared import fast_device, limit_s, write_shard
from recipes.voice.speakers import speaker
from recipes.voice.speech import heard, open_studio, read_phonemes, resampled
from recipes.voice.texts import Corpora, is_held_out, utterances
from recipes.voice.texts.stream import Random, filled, one, sentence_of
from recipes.voice.words import compare, normalise
from s1_mini import EngineConfig
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.s1.loaded import LoadedS1
from s1_mini.layers.randomness import uniforms
from s1_mini.layers.staging import Writes
from s1_mini.runtime.loader import load
from s1_mini.text.form import TextForm
from s1_mini.types import Voice
from s1_mini.voices.library import read_voice, write_voice

FIRST_CLONE = 400_000_000  # first speaker; far from those of other trainings
CLONED_TEXTS, CLONED_WORDS = 2, range(7, 12)  # of the recording of a clone: number of texts, words in each
SHORT_WORDS = 3  # a text of at most this many words is very short
SHORT_SHARE = 3  # every third text is very short
# Every block of twenty texts has this many in the default voice and of clones; the others are in the other voices.
BLOCK, DEFAULTS, CLONES = 20, 4, 7
ENDS_EVERY = 16  # steps between two checks whether all utterances have ended


@dataclass(frozen=True)
class Task:
    """A text as written and as the model reads it, and the name of the voice that speaks it."""

    written: str
    read: str
    voice: str

    @property
    def is_short(self) -> bool:
        return len(self.read.split()) <= SHORT_WORDS


def write_clones(teacher: Path, phonemes: Path, checkpoint: Path, output: Path, count: int) -> None:
    """Write voice files of `count` training speakers of the teacher to `output`, with texts of `phonemes`."""
    device = fast_device()
    output.mkdir(parents=True, exist_ok=True)
    studio, names = open_studio(teacher, device, batch_s=60.0)
    words, texts = read_phonemes(phonemes)
    usable = [text for text in texts if len(words[text.number].split()) in CLONED_WORDS][: CLONED_TEXTS * count]
    items = [(text, place, speaker(FIRST_CLONE + place // CLONED_TEXTS, names)) for place, text in enumerate(usable)]
    spoken = {place: wave for _, place, wave in heard([*studio.record(items), *studio.finish()])}
    codec = open_dac(checkpoint, encodes=True, device=device)
    with torch.inference_mode():
        for number in range(count):
            places = [place for place in range(CLONED_TEXTS * number, CLONED_TEXTS * (number + 1)) if place in spoken]
            if places:
                wave = np.concatenate([spoken[place] for place in places]).astype(np.float32) / 32768
                codes = codec.encode(torch.from_numpy(wave).to(device)).cpu()
                text = " ".join(words[usable[place].number] for place in places)
                write_voice(output, f"clone{number:03d}", Voice({"codes": codes}, text))


def tasks(
    form: TextForm, voices: Sequence[str], clones: Sequence[str], corpora: Corpora | None, start: int
) -> Iterator[Task]:
    """Yield texts without end, from the `start`-th on, each with a voice; the first of `voices` is the default."""
    stream, numbers = utterances(1, corpora, start), itertools.count(start)
    usual = filter(lambda read: read[1].count(" ") >= SHORT_WORDS, ((text, form.transcript(text)) for text in stream))
    for number in numbers:
        random = Random(f"prefer/{number}")
        written, read = _short(random, form, corpora) if number % SHORT_SHARE == 0 else next(usual)
        place = random.randrange(BLOCK)
        if clones and place < CLONES:
            voice = random.choice(clones)
        elif len(voices) == 1 or place < CLONES + DEFAULTS:
            voice = voices[0]
        else:
            voice = random.choice(voices[1:])
        yield Task(written, read, voice)


def _short(random: Random, form: TextForm, corpora: Corpora | None) -> tuple[str, str]:
    """Return a very short text that is not held out: calls, names, initials, letters and numbers."""
    nothing = Corpora([], [], [one(random, "noun")])
    words = corpora or replace(nothing, common=[one(random, "verb")])
    kinds = (
        "{phrase}", "{phrase}", "{phrase}", "{word}", "{word}", "{verb}", "{noun}", "{adjective} {noun}",
        "{letters}", "{letters}", "{letter}{small}", "{acronym}", "{first}", "{place}", "{place}", "{last}",
        "{first} {last}", "{title} {last}", "yes, {first}", "no, {first}", "{first}, {verb}", "{integer}", "{clock}",
        "{money}", "{ordinal}", "{percent}", "{adverb}", "not {when}", "{phrase}, {first}", "{technical}",
    )  # fmt: skip
    while True:
        text = sentence_of(filled(random, random.choice(kinds), words))
        if text[-1] == "." and random.random() < 0.5:
            text = text[:-1] + random.choice(["!", "?", "!", ""])
        read = form.transcript(text)
        if 0 < len(read.split()) <= SHORT_WORDS and not is_held_out(text):
            return text, read


class Speakers:
    """The language model and the codec of a checkpoint, on a GPU if there is one."""

    def __init__(self, checkpoint: Path, clones: Path | None, device: torch.device) -> None:
        opened = load(EngineConfig(checkpoint_path=checkpoint, device=device.type, compile="false"))
        if not isinstance(opened.loaded, LoadedS1):
            raise SystemExit(f"{checkpoint} is not an S1 checkpoint")
        self._loaded, self.form, self._device = opened.loaded, opened.text, device
        self.sampling = opened.description.defaults
        self.sample_rate = self._loaded.codec.sample_rate
        self._frames_per_s = self.sample_rate / self._loaded.codec.samples_per_frame
        names, default = opened.voices.names, opened.voices.default_name
        self.built_in = sorted(names, key=lambda name: name != default)  # the default first
        self.voices = {name: opened.voices.describe(name).voice for name in names}
        paths = sorted(clones.glob("*.safetensors")) if clones else []
        self.clones = [path.stem for path in paths]
        self.voices |= {path.stem: read_voice(path, opened.description.voice).voice for path in paths}

    def limit(self, task: Task) -> int:
        """Return the number of frames after which a generation counts as not stopping."""
        return round(limit_s(task.written) * self._frames_per_s)

    @torch.inference_mode()
    def speak(
        self, given: Sequence[Task], numbers: Sequence[int], copies: int, seed: int
    ) -> list[tuple[NDArray[np.int16], bool]]:
        """Return `copies` samples of every task, in order: codes [K, F], and whether the generation ended.

        The random numbers of a sample depend on `seed`, on its task's number, and on its place among the copies.
        """
        model, device = self._loaded.model, self._device
        prompts = [self._prompt(task) for task in given]
        limits = [
            min(self.limit(task), model.max_positions - len(prompt))
            for task, prompt in zip(given, prompts, strict=True)
        ]
        rows, most = len(given) * copies, max(limits)
        positions = min(max(map(len, prompts)) + most, model.max_positions)
        state = replace(model.allocate(rows, positions, kept=()), common=None)
        for place, prompt in enumerate(prompts):
            first, before = place * copies, len(prompt) - 1
            model.prefill(state, first, torch.from_numpy(prompt[:-1]).T.to(device))
            for cached in (state.cache.keys, state.cache.values):
                cached[:, first + 1 : first + copies, :, :before] = cached[:, first : first + 1, :, :before]
        writes, repeated = Writes(device), [prompt for prompt in prompts for _ in range(copies)]
        last = np.stack([prompt[-1] for prompt in repeated])
        model.begin(state, range(rows), last, [len(prompt) - 1 for prompt in repeated], writes)
        writes.run()
        state.active.fill_(True)
        options = self.sampling
        alike = partial(torch.full, (rows,), device=device)
        places = [number * copies + copy for number in numbers for copy in range(copies)]
        random = torch.stack([uniforms(seed, place, most + 1, model.num_codebooks) for place in places]).to(device)
        sampling = SamplingTensors(
            alike(options.temperature), alike(options.top_p), alike(options.repetition_penalty), random
        )
        frames, ended = [], torch.zeros(rows, dtype=torch.bool, device=device)
        bound = torch.tensor(limits, device=device).repeat_interleave(copies)
        for step in range(min(most, positions - min(map(len, prompts)))):
            frames.append(model.step(state, sampling, positions))
            ended |= (frames[-1][:, -2] > 0) | (step + 1 >= bound)
            state.active.copy_(~ended)
            if step % ENDS_EVERY == ENDS_EVERY - 1 and bool(ended.all()):
                break
        made = torch.stack(frames).cpu().numpy()
        found = []
        for row, limit in enumerate(bound.tolist()):
            ends = np.flatnonzero(made[:limit, row, -2])
            length = int(ends[0]) if len(ends) else limit
            found.append((made[:length, row, 1:-2].T.astype(np.int16), bool(len(ends))))
        return found

    def _prompt(self, task: Task) -> NDArray[np.int64]:
        voice = self.voices[task.voice]
        items = self._loaded.prompt(task.read, [Voice(voice.tensors, self.form.transcript(voice.text))]).items
        return np.asarray(items, np.int64)

    @torch.inference_mode()
    def hear(self, codes: Sequence[NDArray[np.int16]], rows: int = 64) -> list[Tensor]:
        """Decode codes [K, F] to waves [T] at 16 kHz, on the device."""
        codec, waves = self._loaded.codec, {}
        order = sorted(range(len(codes)), key=lambda index: codes[index].shape[1])
        for begin in range(0, len(order), rows):
            part = order[begin : begin + rows]
            longest = codes[part[-1]].shape[1]
            filled_up = np.stack(
                [np.pad(codes[index], ((0, 0), (0, longest - codes[index].shape[1]))) for index in part]
            )
            decoded = codec.decode(torch.from_numpy(filled_up.astype(np.int64)).to(self._device)).float()
            lower = resampled(decoded, self.sample_rate / EAR_RATE)
            for index, wave in zip(part, lower, strict=True):
                waves[index] = wave[: codes[index].shape[1] * codec.samples_per_frame * EAR_RATE // self.sample_rate]
        return [waves[index] for index in range(len(codes))]


@dataclass(frozen=True)
class Judged:
    """Candidates and their judgements, an array of N of each."""

    task: NDArray[np.int32]  # index of the task
    lengths: NDArray[np.int32]  # in frames
    codes: NDArray[np.int16]  # [K, sum of the lengths]
    ended: NDArray[np.bool_]
    mos: NDArray[np.float32]  # DistillMOS
    wrong: NDArray[np.int32]  # wrong words
    words: NDArray[np.int32]
    heard: NDArray[np.float32]  # mean log-probability of Whisper's tokens
    alike: NDArray[np.float32]  # similarity to the reference
    pitch: NDArray[np.float32]  # standard deviation of the logarithm of the pitch

    def write(self, path: Path) -> None:
        write_shard(path, **self.__dict__)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Judged:
        """Read and join files; the indexes of the tasks stay as they are."""
        parts = []
        for path in paths:
            with np.load(path) as file:
                parts.append({name: file[name] for name in cls.__dataclass_fields__})
        return cls(**{name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]})

    @property
    def is_right(self) -> NDArray[np.bool_]:
        return (self.wrong == 0) & self.ended


def wrong_words(task: Task, transcript: str) -> tuple[int, int]:
    """Return the number of wrong words and of all words; spaces do not matter if nothing else is wrong."""
    by_form = [compare(text, transcript) for text in (task.read, task.written)]
    joined = "".join(normalise(transcript))
    same = any("".join(normalise(text)) == joined for text in (task.written, task.read))
    return (0 if same else min(each.word_errors for each in by_form)), by_form[0].words


def candidates(
    given: Sequence[Task], first: int, speakers: Speakers, ears: BatchEars, *, copies: int, rows: int, seed: int
) -> Judged:
    """Generate and judge `copies` samples of each task, `rows` at a time; `first` is the index of the first task."""
    order = sorted(range(len(given)), key=lambda index: len(given[index].read))
    at, codes, ended = [], [], []
    for begin in range(0, len(order), max(1, rows // copies)):
        part = order[begin : begin + max(1, rows // copies)]
        numbers = [first + index for index in part]
        for place, (frames, stopped) in enumerate(
            speakers.speak([given[index] for index in part], numbers, copies, seed)
        ):
            at.append(part[place // copies])
            codes.append(frames)
            ended.append(stopped)
    waves = speakers.hear(codes)
    transcripts = ears.words(waves)
    wrong = [wrong_words(given[index], text) for index, (text, _) in zip(at, transcripts, strict=True)]
    names = sorted({task.voice for task in given})
    references = ears.voices(speakers.hear([speakers.voices[name].tensors["codes"].numpy() for name in names]))
    place_of = {name: place for place, name in enumerate(names)}
    own = references[[place_of[given[index].voice] for index in at]]
    return Judged(
        task=np.array(at, np.int32) + first,
        lengths=np.array([frames.shape[1] for frames in codes], np.int32),
        codes=np.concatenate(codes, axis=1),
        ended=np.array(ended),
        mos=ears.naturalness(waves).numpy(),
        wrong=np.array([each for each, _ in wrong], np.int32),
        words=np.array([all_words for _, all_words in wrong], np.int32),
        heard=np.array([likely for _, likely in transcripts], np.float32),
        alike=(ears.voices(waves) * own).sum(-1).numpy(),
        pitch=ears.pitch_ranges(waves).numpy(),
    )


def judge_figures(judged: Judged, among: NDArray[np.bool_]) -> dict[str, float | None]:
    """Return figures of a part of the candidates; shares are in percent, and the pitch of unvoiced speech is None."""
    pitch = judged.pitch[among & ~np.isnan(judged.pitch)]
    return {
        "candidates": int(among.sum()),
        "distillmos": float(judged.mos[among].mean()),
        "below_4": 100 * float((judged.mos[among] < 4).mean()),
        "right": 100 * float(judged.is_right[among].mean()),
        "word_error": 100 * float(judged.wrong[among].sum() / max(1, judged.words[among].sum())),
        "similarity": float(judged.alike[among].mean()),
        "pitch": float(pitch.mean()) if len(pitch) else None,
        "frames": float(judged.lengths[among].mean()),
        "without_end": 100 * float((~judged.ended[among]).mean()),
    }


def figures_of(judged: Judged, every: Sequence[Task], speakers: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Return the figures of all candidates, by voice and by length; `speakers` are the built-in voices."""
    task = [every[index] for index in judged.task]
    groups = {
        "all": np.ones(len(task), np.bool_),
        "default": np.array([each.voice == speakers[0] and not each.is_short for each in task]),
        "voices": np.array([each.voice in speakers and not each.is_short for each in task]),
        "clones": np.array([each.voice not in speakers and not each.is_short for each in task]),
        "short": np.array([each.is_short for each in task]),
    }
    return {name: judge_figures(judged, among) for name, among in groups.items() if among.any()}

"""Where the time of an utterance goes: its sections one after the other, as the engine does them, timed from outside.

The pieces are called through the interfaces of model and codec; no code of theirs knows that it is measured. Every
frame is made three times from the same state: the slow step alone, the fast steps alone, and whole by `step`, which
alone moves on. The whole step is no section but a check: it is the other two and the bookkeeping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from s1_mini.audio.container import AudioFormat, encode
from s1_mini.bench.meter import Meter, Section, Tell
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import Prompt, SamplingTensors
from s1_mini.families.s1.costs import Costs
from s1_mini.families.s1.kernels.draw import draw, probabilities
from s1_mini.families.s1.loaded import as_s1
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.layers.randomness import uniforms
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.model_runner import SPAN, ModelRunner
from s1_mini.runtime.scheduler import PREFILL_COLUMNS
from s1_mini.text.normalize import normalize
from s1_mini.types import SamplingParams, Voice

WHOLE_STEP = "whole step"
MAX_CHARACTERS = 20_000
TONE_S = 2.0  # of the reference where the checkpoint has no voice


@contextmanager
def engine_threads(speaker: Speaker) -> Iterator[None]:
    """Compute on as many CPU threads as the engine would."""
    threads = torch.get_num_threads()
    ModelRunner(speaker, slots=1, columns=SPAN).enter_thread()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Rehearsal:
    """One text, spoken by `rows` rows side by side as often as is wanted, always the same."""

    def __init__(
        self, speaker: Speaker, text: str, *, rows: int, max_frames: int, audio_format: AudioFormat = "wav"
    ) -> None:
        loaded = as_s1(speaker.loaded)
        self.model, self.text, self.rows, self.audio_format = loaded.model, text, rows, audio_format
        self.voice, self.reference = find_reference(speaker)
        self.codec = loaded.codec if self.reference is None else loaded.encoding_codec()
        self.costs = Costs(self.model.network, self.codec, block=PREFILL_COLUMNS, kv_item=self.model.kv_dtype.itemsize)
        columns = self._prompt().columns.shape[1]
        self.num_columns = min(columns + max_frames, self.model.max_columns)
        self.max_frames = min(max_frames, self.num_columns - columns, self.codec.max_frames)
        self.frames: int | None = None  # known once it was spoken
        self._state = self.model.allocate(rows, self.num_columns)
        self._sampling = make_sampling(speaker, rows, self.max_frames)

    @torch.inference_mode()
    def speak(self, meter: Meter) -> None:
        """Speak once. The first time ends when all rows have said all; later ones make as many frames."""
        prompt = meter.measure("text to tokens", lambda: [self._prompt() for _ in range(self.rows)])[0]
        if (wave := self.reference) is not None:
            meter.measure("reference encode", lambda: self.codec.encode(wave))
        prefill_bytes = self.rows * self.costs.read(prompt.columns.shape[1] - 1).num_bytes
        meter.measure("prefill", lambda: self._prefill(prompt), prefill_bytes)
        for slot in range(self.rows):
            self.model.activate(self._state, slot, prompt)
        codes = self._make_frames(meter, prompt.columns.shape[1])
        self.frames = codes.shape[-1]
        sound = meter.measure("codec", lambda: self.codec.decode(codes), self.costs.codec_bytes(self.frames))
        waves = meter.measure("to host", lambda: sound.float().cpu().numpy())
        rate, kind = self.codec.sample_rate, self.audio_format
        meter.measure(f"encode to {kind}", lambda: [encode(wave, rate, kind) for wave in waves])

    def _prompt(self) -> Prompt:
        return self.model.prompt(normalize(self.text, MAX_CHARACTERS), [] if self.voice is None else [self.voice])

    def _prefill(self, prompt: Prompt) -> None:
        for slot in range(self.rows):
            read(self.model, self._state, slot, prompt.columns[:, :-1])

    def _make_frames(self, meter: Meter, columns: int) -> Tensor:
        """Make frames until they are as many as the first time, or all rows have stopped: codes [B, K, F]."""
        made: list[Tensor] = []
        stopped = torch.zeros(self.rows, dtype=torch.bool, device=self.model.device)
        for number in range(self.frames or self.max_frames):
            span = min(-(-(columns + number) // SPAN) * SPAN, self.num_columns)
            slow, fast = self.costs.slow_step(self.rows, span), self.costs.fast_steps(self.rows)
            hidden, token = meter.measure("slow step", partial(self._slow, span), slow.num_bytes)
            meter.measure("fast steps", partial(self._fast, hidden, token), fast.num_bytes)
            whole = partial(self.model.step, self._state, self._sampling, span)
            frame = meter.measure(WHOLE_STEP, whole, (slow + fast).num_bytes)
            made.append(frame.codes)
            stopped |= frame.stop
            if self.frames is None and bool(stopped.all()):
                break
        return torch.stack(made, dim=-1)

    def _slow(self, span: int) -> tuple[Tensor, Tensor]:
        """Run the slow transformer and draw the main token; nothing moves on."""
        hidden = self.model.hidden(self._state, span)
        return hidden, self._draw(self.model.network.main_logits(hidden), 0)

    def _fast(self, hidden: Tensor, token: Tensor) -> None:
        network = self.model.network

        def pick(codebook: int, logits: Tensor, embeddings: Tensor) -> Tensor:
            return embeddings[self._draw(logits, codebook)]

        first = network.fast_embeddings(token.clamp_max(network.config.codebook_size - 1))
        network.fast(hidden, first, self._state.fast_cache, self._state.pairs, pick)

    def _draw(self, logits: Tensor, codebook: int) -> Tensor:
        chances = probabilities(logits, self._sampling.temperature, self._sampling.top_p)
        return draw(chances, self._sampling.uniforms[:, 0, codebook])


def measure_sections(rehearsal: Rehearsal, repeats: int, tell: Tell = lambda _: None) -> list[Section]:
    """Speak `repeats` times after one time to warm up; the sections in their order, then the whole step.

    `tell` hears what comes next.
    """
    meter = Meter(rehearsal.model.device)
    tell("warm-up")
    rehearsal.speak(meter)
    meter.forget_times()
    for number in range(repeats):
        tell(f"repetition {number + 1} of {repeats}")
        rehearsal.speak(meter)
    meter.trace(lambda: rehearsal.speak(meter))
    sections = meter.sections(repeats)
    return sorted(sections, key=lambda section: section.name == WHOLE_STEP)


@torch.inference_mode()
def read(model: S1Model, state: S1State, slot: int, columns: Tensor, start: int = 0) -> None:
    """Read prompt columns [K + 1, n] into a slot in the chunks of the engine."""
    for begin in range(0, columns.shape[1], PREFILL_COLUMNS):
        model.prefill(state, slot, columns[:, begin : begin + PREFILL_COLUMNS], start + begin)


def make_sampling(speaker: Speaker, rows: int, frames: int) -> SamplingTensors:
    """Default parameters, and random numbers of its own for each row."""
    model, params = speaker.model, SamplingParams()
    tables = [uniforms(seed, 0, frames, model.num_codebooks) for seed in range(rows)]

    def every(value: float) -> Tensor:
        return torch.full((rows,), value, device=model.device)

    return SamplingTensors(
        every(params.temperature),
        every(params.top_p),
        every(params.repetition_penalty),
        torch.stack(tables).to(model.device),
    )


@torch.inference_mode()
def find_reference(speaker: Speaker) -> tuple[Voice | None, Tensor | None]:
    """Give the voice to speak in and a recording [samples] to encode; a tone where the checkpoint has no voice.

    Without a recording the checkpoint was written for decoding only.
    """
    voice = speaker.voices.default
    try:
        codec = as_s1(speaker.loaded).encoding_codec()
    except CheckpointMismatchError:
        return voice, None
    device = speaker.model.device
    if voice is not None:
        return voice, codec.decode(voice.tensors["codes"].unsqueeze(0).to(device))[0]
    time = torch.arange(round(TONE_S * codec.sample_rate), device=device) / codec.sample_rate
    wave = 0.2 * torch.sin(2 * torch.pi * 150 * time)
    return Voice({"codes": codec.encode(wave).cpu()}, "A tone."), wave


def shares(sections: Sequence[Section]) -> dict[str, float]:
    """Give each section's share of the whole, which the check is no part of."""
    whole = sum(section.total_ms for section in sections if section.name != WHOLE_STEP)
    return {section.name: section.total_ms / whole for section in sections if section.name != WHOLE_STEP}

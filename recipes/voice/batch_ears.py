"""The metrics of `ears.py` for many recordings at once, on a GPU, and the pitch range.

Whisper base runs in transformers, with the weights of the package that `packages.py` downloads and without beams or
timestamps. Its figures differ a little from those of `ears.py`, which are the ones to report.
Shapes: N recordings, B rows of a batch, T samples at 16 kHz.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recipes.voice.networks import (
    EAR_RATE,
    HOP,
    Resemblyzer,
    WhisperMel,
    open_distillmos,
    open_whisper,
    whisper_folder,
)
from s1_mini.text import spoken

MOS_SAMPLES, MOS_HOP = 122_880, 16_000  # length of DistillMOS's input, largest distance of two inputs
HEARD_S, MAX_WORD_TOKENS = 30, 120  # Whisper's input; no recording has more tokens
# Resemblyzer 0.1.4: an utterance is the mean of windows of 1.6 s, 1.3 a second, of which the last is three quarters
# full. Its removal of long silences is left out.
SPEAKER_FRAMES, SPEAKER_STEP, SPEAKER_COVERAGE = 160, 77, 0.75
PITCH_WINDOW, PITCH_HOP, PITCHES_HZ = 1024, 320, (60, 400)
VOICED = 0.6  # least autocorrelation of a voiced frame
SILENT = 1e-3  # energy, relative to the loudest frame, below which a frame is not voiced
OCTAVE = 0.9  # the shortest period with this share of the highest autocorrelation is the period


class BatchEars:
    """All metrics on one device. Recordings are lists of float32 tensors [T] on this device."""

    def __init__(self, packages: Path, device: torch.device) -> None:
        self._device, self._rows = device, 128 if device.type == "cuda" else 8
        self._whisper = Whisper(whisper_folder(packages), device)
        self._distillmos = open_distillmos(segmenting_in_forward=False).to(device)
        self._speaker = Resemblyzer.read().to(device)

    @torch.inference_mode()
    def naturalness(self, waves: Sequence[Tensor]) -> Tensor:
        """DistillMOS [N], from 1 to 5; the mean of the windows that its own code cuts."""
        crops, owners = [], []
        for index, wave in enumerate(waves):
            beyond = max(0, len(wave) - MOS_SAMPLES)
            for start in np.linspace(0, beyond, math.ceil(beyond / MOS_HOP) + 1).astype(int):
                crops.append(wave[start : start + MOS_SAMPLES])
                owners.append(index)
        scores = [
            self._distillmos(torch.stack([F.pad(crop, (0, MOS_SAMPLES - len(crop))) for crop in part])).flatten()
            for part in _parts(crops, self._rows)
        ]
        of = torch.tensor(owners, device=self._device)
        total = torch.zeros(len(waves), device=self._device).index_add(0, of, torch.cat(scores).float())
        return (total / torch.bincount(of)).cpu()

    def words(self, waves: Sequence[Tensor]) -> list[tuple[str, float]]:
        """Return the transcript of each recording, numbers in words, and the mean log-probability of its tokens."""
        order = sorted(range(len(waves)), key=lambda index: len(waves[index]))
        heard: dict[int, tuple[str, float]] = {}
        for part in _parts(order, 2 * self._rows):
            for index, each in zip(part, self._whisper([waves[index] for index in part]), strict=True):
                heard[index] = each
        return [heard[index] for index in range(len(waves))]

    @torch.inference_mode()
    def voices(self, waves: Sequence[Tensor]) -> Tensor:
        """Resemblyzer's embeddings [N, 256] of the speakers, of length 1."""
        return torch.cat([_voices(self._speaker, part) for part in _parts(waves, self._rows)]).cpu()

    @torch.inference_mode()
    def pitch_ranges(self, waves: Sequence[Tensor]) -> Tensor:
        """Standard deviations [N] of the natural logarithm of the fundamental frequency; NaN without voiced frames."""
        return torch.stack([_pitch_range(wave) for wave in waves]).cpu()


def _parts(every: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(every), size):
        yield every[begin : begin + size]


def _pitch_range(wave: Tensor) -> Tensor:
    frames = F.pad(wave, (0, PITCH_WINDOW)).unfold(0, PITCH_WINDOW, PITCH_HOP)
    frames = frames - frames.mean(-1, keepdim=True)
    energy = frames.square().sum(-1)
    power = torch.fft.rfft(frames, n=2 * PITCH_WINDOW).abs().square()
    products = torch.fft.irfft(power)[:, : EAR_RATE // PITCHES_HZ[0] + 1]
    overlap = 1 - torch.arange(products.shape[1], device=wave.device) / PITCH_WINDOW
    alike = (products / (energy.unsqueeze(1) * overlap).clamp_min(1e-9))[:, EAR_RATE // PITCHES_HZ[1] :]
    highest = alike.amax(-1)
    lag = (alike >= OCTAVE * highest.unsqueeze(1)).float().argmax(-1) + EAR_RATE // PITCHES_HZ[1]
    pitch = -torch.log(lag.float())
    pitch = torch.where((highest > VOICED) & (energy > SILENT * energy.amax()), pitch, math.nan)
    # Frames beyond half an octave from the median are mostly errors of an octave.
    pitch = torch.where((pitch - pitch.nanmedian()).abs() < 0.5 * math.log(2), pitch, math.nan)
    return (pitch - pitch.nanmean()).square().nanmean().sqrt()


def _voices(network: Resemblyzer, waves: Sequence[Tensor]) -> Tensor:
    starts = [_speaker_starts(len(wave)) for wave in waves]
    frames = max(begins[-1] for begins in starts) + SPEAKER_FRAMES
    padded = pad_sequence(list(waves), batch_first=True)
    mel = network.mel(F.pad(padded, (0, max(0, frames * HOP - padded.shape[1])))).transpose(1, 2)
    windows = [mel[row, at : at + SPEAKER_FRAMES] for row, begins in enumerate(starts) for at in begins]
    each = network(torch.stack(windows)).split([len(begins) for begins in starts])
    return F.normalize(torch.stack([part.mean(0) for part in each]), dim=-1)


def _speaker_starts(samples: int) -> list[int]:
    frames = math.ceil((samples + 1) / HOP)
    starts = list(range(0, max(1, frames - SPEAKER_FRAMES + SPEAKER_STEP + 1), SPEAKER_STEP))
    covered = (samples - starts[-1] * HOP) / (SPEAKER_FRAMES * HOP)
    return starts[:-1] if len(starts) > 1 and covered < SPEAKER_COVERAGE else starts


class Whisper:
    """Whisper base (Radford et al. 2022, arXiv 2212.04356), greedy, for English."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from tokenizers import Tokenizer

        self._device, self._dtype = device, torch.float16 if device.type == "cuda" else torch.float32
        self._model = open_whisper(folder).to(device, self._dtype)
        self._mel = WhisperMel(self._model.config.num_mel_bins).to(device)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        numbers = self._tokenizer.get_vocab()
        self._end = numbers["<|endoftext|>"]
        self._prompt = [numbers[f"<|{name}|>"] for name in ("startoftranscript", "en", "transcribe", "notimestamps")]
        rules = json.loads((folder / "config.json").read_text())
        self._never = torch.zeros(self._model.config.vocab_size, device=device)
        self._never[rules["suppress_ids"]] = -math.inf
        self._never[self._prompt[-1] :] = -math.inf  # timestamps
        self._never_first = self._never.clone()
        self._never_first[rules["suppress_ids_begin"]] = -math.inf

    @torch.inference_mode()
    def __call__(self, waves: Sequence[Tensor]) -> list[tuple[str, float]]:
        """Return transcripts and the mean log-probability of their tokens."""
        states = self._model.model.encoder(self._features(waves).to(self._dtype))
        given = torch.tensor(self._prompt, device=self._device).expand(len(waves), -1)
        cache, ended = None, torch.zeros(len(waves), dtype=torch.bool, device=self._device)
        tokens: list[Tensor] = []
        likely = torch.zeros(len(waves), device=self._device)
        count = torch.zeros(len(waves), device=self._device)
        for step in range(MAX_WORD_TOKENS):
            out = self._model(encoder_outputs=states, decoder_input_ids=given, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits = out.logits[:, -1].float() + (self._never if step else self._never_first)
            best, token = logits.log_softmax(-1).max(-1)
            likely, count = likely + best * ~ended, count + ~ended
            token = torch.where(ended, self._end, token)
            ended = ended | (token == self._end)
            tokens.append(token)
            given = token.unsqueeze(1)
            if step % 4 == 3 and bool(ended.all()):
                break
        written = torch.stack(tokens, 1).tolist()
        texts = [spoken(self._tokenizer.decode([t for t in row if t < self._end]).strip()) for row in written]
        return list(zip(texts, (likely / count).tolist(), strict=True))

    def _features(self, waves: Sequence[Tensor]) -> Tensor:
        """Return log mel spectra [B, bands, 3000] of recordings, padded to 30 s."""
        padded = torch.zeros(len(waves), HEARD_S * EAR_RATE, device=self._device)
        for row, wave in zip(padded, waves, strict=True):
            row[: len(wave)] = wave[: len(row)]
        return self._mel(padded)

"""Let the teacher speak in batches: phonemes to durations, then rows of equal length to sound at 24 kHz.

The first half takes padded batches, since masks and packed LSTMs are exact. The second takes rows of one frame count,
which need no mask; the last phoneme is lengthened to a multiple of `SHELF` frames, so that there are some 40 counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from recipes.voice.generator import Generator
from recipes.voice.weights import STYLE, load_teacher

SAMPLES_PER_FRAME = 600  # 25 ms
SHELF = 8  # frames; every new count costs a tenth of a second once
SHORT, LAST_FRAMES = 20, 8  # phonemes of a text of which the last is drawled or breathed out if it is left longer
MARKS = frozenset(' .,!?;:…—"()“”')  # what is among phonemes and has no sound of its own


class Spoken(NamedTuple):
    """A text on its way: what the second half needs."""

    features: Tensor  # [P, 640], for pitch and energy
    sounds: Tensor  # [512, P], for the decoder
    durations: Tensor  # [P] frames of each phoneme, their sum a multiple of SHELF
    style: Tensor  # [256]
    num_frames: int  # before the last phoneme was lengthened
    num_sounding: int  # of them until the last phoneme ends that is no mark


def last_sounds(is_silent: Tensor) -> Tensor:
    """Places [B, 1] of the last phoneme of each row [B, P] that is not silent."""
    return is_silent.logical_not().int().cumsum(1).argmax(1, keepdim=True)


class Teacher:
    """Kokoro's modules on one device."""

    def __init__(self, model: Path, vocabulary: Path, device: torch.device) -> None:
        modules, self._numbers = load_teacher(model, vocabulary)
        self._modules: Any = modules.to(device)
        self.device = device
        self._dtype = torch.float16 if device.type == "cuda" else torch.float32
        if device.type == "cuda":
            decoder = self._modules["decoder"]
            decoder.generator = Generator(decoder.generator, self._dtype)
        silent = [0, *(self._numbers[mark] for mark in MARKS if mark in self._numbers)]
        self._silent = torch.tensor(silent, device=device)

    def numbers(self, phonemes: str) -> list[int]:
        """Number the phonemes, a zero before and after; those it does not know are left out."""
        return [0, *(self._numbers[symbol] for symbol in phonemes if symbol in self._numbers), 0]

    @torch.inference_mode()
    def prepare(self, numbers: Sequence[Sequence[int]], styles: Tensor, speeds: Tensor) -> list[Spoken]:
        """Predict durations of texts in `styles` [B, 256] at `speeds` [B], 1 being the teacher's own."""
        modules, lengths = self._modules, torch.tensor([len(row) for row in numbers])
        table = torch.zeros(len(numbers), int(lengths.max()), dtype=torch.long)
        for row, given in zip(table, numbers, strict=True):
            row[: len(given)] = torch.tensor(given)
        table = table.to(self.device)
        absent = torch.arange(table.shape[1], device=self.device) >= lengths.to(self.device).unsqueeze(1)
        # In float32: half precision moves durations and pitch.
        context = modules["bert_encoder"](modules["bert"](table, attention_mask=(~absent).int()))
        predictor = modules["predictor"]
        features = predictor.text_encoder(context.transpose(1, 2), styles[:, STYLE:], lengths, absent)
        packed = pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
        states = pad_packed_sequence(predictor.lstm(packed)[0], batch_first=True, total_length=table.shape[1])[0]
        shares = torch.sigmoid(predictor.duration_proj(states)).sum(-1) / speeds.unsqueeze(1)
        durations = shares.round().clamp(min=1).long().masked_fill(absent, 0)
        sounds = modules["text_encoder"](table, lengths, absent)
        last = last_sounds(torch.isin(table, self._silent))
        is_short = (lengths <= SHORT + 2).to(self.device).unsqueeze(1)
        most = (LAST_FRAMES / speeds.unsqueeze(1)).round().long().where(is_short, durations.max())
        durations.scatter_(1, last, durations.gather(1, last).minimum(most))
        frames, sounding = durations.sum(1), durations.cumsum(1).gather(1, last).squeeze(1)
        rows = torch.arange(len(numbers), device=self.device)
        durations[rows, lengths.to(self.device) - 1] += -frames % SHELF
        return [
            # Copies: a view would keep the whole batch in memory while one of its texts waits.
            Spoken(
                features[i, :length].clone(), sounds[i, :, :length].clone(), durations[i, :length], styles[i], *counts
            )
            for i, (length, *counts) in enumerate(
                zip(lengths.tolist(), frames.tolist(), sounding.tolist(), strict=True)
            )
        ]

    @torch.inference_mode()
    def speak(self, texts: Sequence[Spoken], num_frames: int) -> Tensor:
        """Sound [B, 600 F] of texts whose durations each sum to `num_frames` F."""
        at = torch.stack([self._positions(text.durations, num_frames) for text in texts])
        features = torch.stack([text.features[row] for text, row in zip(texts, at, strict=True)])
        sounds = torch.stack([text.sounds[:, row] for text, row in zip(texts, at, strict=True)])
        styles = torch.stack([text.style for text in texts])
        pitch, energy = self._modules["predictor"].F0Ntrain(features.transpose(1, 2), styles[:, STYLE:])
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            wave: Tensor = self._modules["decoder"](sounds, pitch, energy, styles[:, :STYLE]).squeeze(1)
        return wave

    @staticmethod
    def _positions(durations: Tensor, num_frames: int) -> Tensor:
        index = torch.arange(len(durations), device=durations.device)
        return torch.repeat_interleave(index, durations, output_size=num_frames)

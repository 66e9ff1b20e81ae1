"""Generate speech with the teacher in batches: phonemes to durations, then rows of equal length to audio at 24 kHz.

The first half (`prepare`) uses padded batches, because its masks and packed LSTMs are exact. The second half (`speak`)
uses rows with the same number of frames, which need no mask. The end of each text is lengthened to a multiple of
`SHELF` frames in total, so that only about 40 different numbers occur.

On a GPU, the generator computes the same as the generator of the package `kokoro`, but channels last and in half
precision, with fused norms; phases and spectra are in float32. Shapes: B rows, C channels, T steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from recipes.voice.passes import norm_snake
from recipes.voice.weights import STYLE, load_teacher

RATE = 24_000
SAMPLES_PER_FRAME = 600  # 25 ms
SHELF = 8  # frames; the first use of each count costs a tenth of a second
SHORT, LAST_FRAMES = 20, 8  # in texts of up to 20 phonemes, the last has at most 8 frames, or it sounds drawn out
MARKS = frozenset(' .,!?;:…—"()“”')  # characters among phonemes without audio of their own


class Spoken(NamedTuple):
    """The input of the second half for one text."""

    features: Tensor  # [P, 640], for pitch and energy
    sounds: Tensor  # [512, P], for the decoder
    durations: Tensor  # [P] frames of each phoneme, their sum a multiple of SHELF
    style: Tensor  # [256]
    num_frames: int  # before the end was lengthened
    num_sounding: int  # number of these frames up to the end of the last phoneme that is not a mark


def last_sounds(is_silent: Tensor) -> Tensor:
    """Return the index [B, 1] of the last phoneme of each row [B, P] that is not silent."""
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
        """Return the ids of the phonemes, with a zero before and after; unknown ones are left out."""
        return [0, *(self._numbers[symbol] for symbol in phonemes if symbol in self._numbers), 0]

    @torch.inference_mode()
    def prepare(self, numbers: Sequence[Sequence[int]], styles: Tensor, speeds: Tensor) -> list[Spoken]:
        """Predict durations of texts in `styles` [B, 256] at `speeds` [B], relative to the teacher's own."""
        modules, lengths = self._modules, torch.tensor([len(row) for row in numbers])
        table = torch.zeros(len(numbers), int(lengths.max()), dtype=torch.long)
        for row, given in zip(table, numbers, strict=True):
            row[: len(given)] = torch.tensor(given)
        table = table.to(self.device)
        absent = torch.arange(table.shape[1], device=self.device) >= lengths.to(self.device).unsqueeze(1)
        # In float32, because half precision changes durations and pitch.
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
        """Audio [B, 600 F] of texts whose durations each sum to `num_frames` F."""
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


class Convolution:
    """A convolution over time as a 2-D one of height 1: only 2-D ones can be channels last. x is [B, C, 1, T]."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        self._layer = layer
        self._weight = layer.weight.unsqueeze(2).to(dtype).contiguous(memory_format=torch.channels_last)
        self._bias = None if layer.bias is None else layer.bias.to(dtype)
        self._transposes = isinstance(layer, nn.ConvTranspose1d)

    def __call__(self, x: Tensor) -> Tensor:
        stride, padding = (1, self._layer.stride[0]), (0, self._layer.padding[0])
        if self._transposes:
            return F.conv_transpose2d(x, self._weight, self._bias, stride, padding)
        return F.conv2d(x, self._weight, self._bias, stride, padding, (1, self._layer.dilation[0]))


class Block:
    """Three pairs of normed convolutions around skips, all conditioned on the style [B, S]."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        self._layers = [
            (Convolution(first, dtype), Convolution(second, dtype), before.fc, between.fc, a.flatten(), b.flatten())
            for first, second, before, between, a, b in zip(
                block.convs1, block.convs2, block.adain1, block.adain2, block.alpha1, block.alpha2, strict=True
            )
        ]

    def __call__(self, x: Tensor, style: Tensor) -> Tensor:
        residual = None  # added by the next norm, which reads x anyway
        for first, second, before, between, alpha, other_alpha in self._layers:
            y = first(norm_snake(x, before(style), alpha, residual))
            x, residual = second(norm_snake(y, between(style), other_alpha)), x
        assert residual is not None
        return x.add_(residual)


class Generator(nn.Module):
    """Replaces `decoder.generator`, with its weights."""

    def __init__(self, original: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype, self._sine, self._stft = dtype, original.m_source.l_sin_gen, original.stft
        self._merge, self._num_kernels = original.m_source.l_linear, original.num_kernels
        self._ups = [Convolution(layer, dtype) for layer in original.ups]
        self._noise_convs = [Convolution(layer, dtype) for layer in original.noise_convs]
        self._noise_blocks = [Block(block, dtype) for block in original.noise_res]
        self._blocks = [Block(block, dtype) for block in original.resblocks]
        self._last, self._bins = Convolution(original.conv_post, dtype), original.post_n_fft // 2 + 1

    def forward(self, x: Tensor, style: Tensor, f0: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return self._speak(x, style.float(), f0)

    def _speak(self, x: Tensor, style: Tensor, f0: Tensor) -> Tensor:
        source, x = self._wide(self._source(f0.float())), self._wide(x)
        for index, up in enumerate(self._ups):
            side = self._noise_blocks[index](self._noise_convs[index](source), style)
            x = up(F.leaky_relu(x, 0.1))
            if index == len(self._ups) - 1:
                x = torch.cat((x[..., 1:2], x), dim=3).contiguous(memory_format=torch.channels_last)
            x = x.add_(side)
            blocks = self._blocks[index * self._num_kernels : (index + 1) * self._num_kernels]
            total = blocks[0](x, style)
            for block in blocks[1:]:
                total.add_(block(x, style))
            x = total.div_(self._num_kernels)
        spectrum = self._last(F.leaky_relu(x)).squeeze(2).float()
        return self._stft.inverse(spectrum[:, : self._bins].exp(), spectrum[:, self._bins :].sin())

    def _wide(self, x: Tensor) -> Tensor:
        return x.to(self._dtype).unsqueeze(2).contiguous(memory_format=torch.channels_last)

    def _source(self, f0: Tensor) -> Tensor:
        """The spectrum of harmonics of F0 [B, T] plus noise: magnitudes, then angles."""
        sine = self._sine
        harmonics = torch.arange(1, sine.dim + 1, device=f0.device)
        turns = (f0.unsqueeze(1) * harmonics.view(1, -1, 1) / RATE) % 1
        phase = turns.double().cumsum(2) * (2 * torch.pi * sine.upsample_scale)
        phase = F.interpolate(phase.float(), scale_factor=float(sine.upsample_scale), mode="linear")
        voiced = (f0 > sine.voiced_threshold).float().repeat_interleave(sine.upsample_scale, dim=1).unsqueeze(1)
        noise = torch.randn_like(phase) * (voiced * sine.noise_std + (1 - voiced) * sine.sine_amp / 3)
        waves = phase.sin() * sine.sine_amp * voiced + noise
        merged = torch.einsum("bht,h->bt", waves, self._merge.weight[0].float()) + self._merge.bias.float()
        return torch.cat(self._stft.transform(merged.tanh()), dim=1)

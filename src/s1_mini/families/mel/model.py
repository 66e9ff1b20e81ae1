"""SpeechT5 for many utterances at once: a text is encoded in one pass, then each step generates a few frames.

A step reads no value on the host, so that a CUDA graph can capture the whole step. Prenet and heads are always float32,
because they are small, and because their output becomes the next input.
Shapes: B slots, S steps, T tokens, M mel bins, W width, U prenet units, R frames per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.families.mel.config import MelConfig
from s1_mini.families.mel.network import MelNetwork, Pair, Steps, position_table
from s1_mini.families.mel.settings import MelSettings
from s1_mini.kernels.decode_attention import used_positions
from s1_mini.kernels.head_scores import KeptHead
from s1_mini.kernels.weight import cast_saturating
from s1_mini.layers.kv_cache import KVCache
from s1_mini.layers.quantized import quantize_linears
from s1_mini.layers.randomness import random_bytes
from s1_mini.layers.staging import stage
from s1_mini.runtime.rows import padded_rows


@dataclass(frozen=True)
class MelState:
    """The state of B utterances. Tensors are changed in place, never replaced."""

    steps: KVCache  # keys and values of decoder steps, and one position more, to which idle rows write
    text: KVCache  # keys and values of texts, for B slots and a padding slot
    kept: Tensor | None  # bool [B, S, layers * U] dropout mask: prenet units to keep; None: no dropout
    speaker: Tensor  # [B, W] projected speaker vector, which is added to every input of the decoder
    frame: Tensor  # [B, M] last generated frame
    position: Tensor  # [B] next step
    last_token: Tensor  # [B + 1] last position of the text
    min_steps: Tensor  # [B] number of steps before the utterance may end
    active: Tensor  # [B] bool: rows that take part in a step; idle rows keep their state
    heads: Sequence[KeptHead]  # alignment heads, and their scores [B, T] at the last step

    @property
    def max_steps(self) -> int:
        return self.steps.keys.shape[3] - 1


class MelModel:
    """One loaded SpeechT5 checkpoint, without its vocoder."""

    def __init__(
        self,
        network: MelNetwork,
        config: MelConfig,
        settings: MelSettings,
        *,
        dtype: torch.dtype = torch.float32,
        weights_dtype: torch.dtype | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """Convert the layers of `network` to `dtype`, and quantize their large products if `weights_dtype` is given."""
        self.network, self.config, self.settings, self.dtype = network, config, settings, dtype
        self.kv_dtype = kv_dtype or dtype
        self.kept_heads = [head for head in (config.alignment,) if head is not None]
        encoder, decoder = network.encoder.wrapped_encoder, network.decoder.wrapped_decoder
        for part in (encoder.layers, encoder.embed_positions, decoder.layers):
            part.to(dtype)
        if weights_dtype is not None:
            for products in network.products(weights_dtype):
                quantize_linears(products, weights_dtype)
        self.device = network.speech_decoder_postnet.feat_out.weight.device
        # One extra position, because a row may run one more step before the host sees its end.
        self.positions = position_table(config.max_steps + 1, config.width).to(self.device)
        network.encoder.prepare(position_table(config.max_text, config.width).to(self.device))
        self.num_bytes = sum(each.numel() * each.element_size() for each in network.decoder.parameters())
        self.units = config.prenet_layers * config.prenet_units
        self.has_dropout = settings.prenet_dropout == "on" and config.prenet_dropout > 0
        self.token_bytes = 2 * config.decoder_layers * config.width * self.kv_dtype.itemsize
        self.step_bytes = self.token_bytes + (self.units if self.has_dropout else 0)

    def steps_for(self, num_tokens: int, ratio: float) -> int:
        """Return the number of steps for `ratio` frames per token, rounded down as in the original implementation."""
        return int(num_tokens * ratio / self.config.frames_per_step)

    def allocate(self, slots: int, steps: int, heads: Sequence[AlignmentHead] | None = None) -> MelState:
        """Allocate the state of `slots` utterances of up to `steps` steps each.

        The scores of `heads` are kept; by default, the scores of the head that config.json names.
        """
        heads = self.kept_heads if heads is None else heads
        config, steps = self.config, min(steps, self.config.max_steps)

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        def cache(rows: int, positions: int) -> KVCache:
            return KVCache.allocate(
                layers=config.decoder_layers,
                slots=rows,
                heads=config.heads,
                positions=positions,
                head_dim=config.head_size,
                dtype=self.kv_dtype,
                device=self.device,
            )

        return MelState(
            steps=cache(slots, steps + 1),
            text=cache(slots + 1, config.max_text),
            kept=zeros(slots, steps + 1, self.units, dtype=torch.bool) if self.has_dropout else None,
            speaker=zeros(slots, config.width, dtype=torch.float32),
            frame=zeros(slots, config.num_bins, dtype=torch.float32),
            position=zeros(slots),
            last_token=zeros(slots + 1),
            min_steps=zeros(slots),
            active=zeros(slots, dtype=torch.bool),
            heads=[
                KeptHead(each.layer, each.head, zeros(slots, config.max_text, dtype=torch.float32)) for each in heads
            ],
        )

    def sample_kept(self, seed: int, piece: int, block: int, steps: int) -> Tensor:
        """Return a random dropout mask, bool [S, layers * U], true to keep, for one block of an utterance's steps."""
        return random_bytes(seed, piece, block, steps, self.units) >= round(256 * self.config.prenet_dropout)

    def keep(self, state: MelState, slot: int, first: int, kept: Tensor) -> None:
        """Set the dropout mask of `slot` from step `first` on to `kept`, bool [S, layers * U]."""
        if state.kept is not None:
            state.kept[slot, first : first + len(kept)] = stage(kept, self.device)

    def begin(self, state: MelState, slot: int, speaker: Tensor, min_steps: int) -> None:
        """Prepare `slot` for its first step with the vector `speaker` [N]; the caller sets `state.active`."""
        vector = stage(speaker.float(), self.device).unsqueeze(0)
        state.speaker[slot] = self.network.decoder.prenet.speaker(vector)[0]
        state.frame[slot].zero_()
        state.position[slot].zero_()
        state.min_steps[slot].fill_(min_steps)

    def encode(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return encoded texts [B, T, W] of tokens [B, T], of which the first `lengths` [B] are valid."""
        out: Tensor = self.network.encoder(tokens, lengths)
        return out

    def cross(self, encoded: Tensor) -> list[Pair]:
        """Return keys and values of encoded texts [B, T, W] for each layer of the decoder."""
        return [layer.cross(encoded) for layer in self.network.decoder.layers]

    def read(self, state: MelState, tokens: Tensor, slots: Tensor, lengths: Tensor | None = None) -> None:
        """Encode tokens [B, T] into `slots` [B]. This reads no value on the host, so that a graph can capture it."""
        count = tokens.shape[1]
        for index, (keys, values) in enumerate(self.cross(self.encode(tokens, lengths))):
            for cached, new in ((state.text.keys, keys), (state.text.values, values)):
                cached[index, slots, :, :count] = cast_saturating(new, cached.dtype)
        state.last_token[slots] = (torch.full_like(slots, count) if lengths is None else lengths) - 1

    def step(self, state: MelState, span: int, text_span: int, rows: int | None = None) -> Tensor:
        """Return the next frames of every active row of the first `rows`: float32 [rows, R * M + 2].

        The last two numbers of a row say whether the utterance ends, and whether all numbers were finite. Rows may have
        at most `span` steps and `text_span` tokens.
        """
        rows = len(state.position) if rows is None else rows
        width = padded_rows(rows, len(state.position), self.device)
        active, position = state.active[:width], state.position[:width]
        x = self._embed(state, width).to(self.dtype)
        at = Steps(
            rows=torch.arange(width, device=self.device),
            target=torch.where(active, position, state.max_steps),
            position=position,
            span=span,
            mask=used_positions(position, span, self.config.head_size),
            last_token=state.last_token[:width],
            text_span=text_span,
            text_mask=used_positions(state.last_token[:width], text_span, self.config.head_size),
        )
        for index, layer in enumerate(self.network.decoder.layers):
            text = (part[:width] for part in state.text.rows(index))
            steps = (part[:width] for part in state.steps.rows(index))
            kept = [each for each in state.heads if each.layer == index]
            x = layer.step(x, tuple(steps), tuple(text), at, kept)  # type: ignore[arg-type]
        frames, logits = self.heads(x)
        stops = (logits.sigmoid().sum(-1) >= self.settings.stop_threshold) & (position + 1 >= state.min_steps[:width])
        valid = frames.isfinite().all(-1) & logits.isfinite().all(-1)
        state.frame[:width] = torch.where(active.unsqueeze(1), frames[:, -self.config.num_bins :], state.frame[:width])
        state.position[:width].add_(active)
        return torch.cat((frames, stops.unsqueeze(1), valid.unsqueeze(1)), dim=1)[:rows]

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return frames [..., R * M] and stop logits [..., R] for the decoder's output [..., W]."""
        heads = self.network.speech_decoder_postnet
        return heads.feat_out(x.float()), heads.prob_out(x.float())

    def whole(self, frames: Tensor, speaker: Tensor, text: list[Pair], kept: Tensor | None = None) -> Tensor:
        """Return the decoder's output [S, W] for all inputs `frames` [S, M] at once, without a cache.

        `speaker` [N] is a speaker vector, `text` the result of `cross`, `kept` [S, layers * U] a dropout mask.
        """
        prenet = self.network.decoder.prenet
        x = prenet(frames, self.positions[: len(frames)], prenet.speaker(speaker.unsqueeze(0)), self._scaled(kept))
        x = x.to(self.dtype).unsqueeze(0)
        for layer, pair in zip(self.network.decoder.layers, text, strict=True):
            x = layer.whole(x, pair)
        return x[0]

    def postnet(self, frames: Tensor) -> Tensor:
        """Apply the post-net to a whole mel [F, M]."""
        return self.network.speech_decoder_postnet.whole(frames)

    def _embed(self, state: MelState, width: int) -> Tensor:
        position = state.position[:width].clamp(max=len(self.positions) - 1)
        kept = None
        if state.kept is not None:
            at = position.clamp(max=state.kept.shape[1] - 1)
            kept = state.kept[torch.arange(width, device=self.device), at]
        out: Tensor = self.network.decoder.prenet(
            state.frame[:width], self.positions[position], state.speaker[:width], self._scaled(kept)
        )
        return out

    def _scaled(self, kept: Tensor | None) -> Tensor | None:
        """Return the dropout factors [..., layers, U] of prenet units; None if there is no dropout."""
        if kept is None:
            return None
        return (kept.float() / (1 - self.config.prenet_dropout)).unflatten(-1, (self.config.prenet_layers, -1))

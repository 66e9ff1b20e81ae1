"""The networks of SpeechT5: text encoder, prenet, decoder, heads and post-net.

Parameters have the names of the published checkpoint, with two exceptions: query, key and value projections of the same
input are joined (`weights.translate`), and batch norms are part of the post-net's convolutions (`weights.fold`).
Shapes: B rows, S steps, T tokens, H heads, D head size, M mel bins, W width, U prenet units.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.hifigan.model import Conv, Edges
from s1_mini.families.mel.config import MelConfig
from s1_mini.kernels.decode_attention import decode_attention
from s1_mini.kernels.head_scores import KeptHead, store_query_scores
from s1_mini.kernels.linear import linear
from s1_mini.kernels.weight import cast_saturating
from s1_mini.layers.quantized import QuantizedLinear

Pair = tuple[Tensor, Tensor]


def project(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear layer, which may be quantized, to x [..., K]."""
    assert isinstance(layer, nn.Linear | QuantizedLinear)
    return linear(x, layer.weight, layer.bias)


def position_table(length: int, width: int) -> Tensor:
    """Return interleaved sines and cosines of positions [length, width]."""
    rates = torch.exp(torch.arange(0, width, 2).float() * -(math.log(10_000.0) / width))
    angles = torch.arange(length).float().unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Named(nn.Module):
    """A container whose modules and parameters are attributes with the given names, as in the checkpoint."""

    def __init__(self, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def split_heads(x: Tensor, heads: int, parts: int = 1) -> list[Tensor]:
    """Split x [B, T, parts * W] into `parts` tensors [B, H, T, D]."""
    return [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in x.chunk(parts, -1)]


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(width, inner)
        self.output_dense = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return project(self.output_dense, F.gelu(project(self.intermediate_dense, x)))


def self_attention(width: int) -> Named:
    return Named(qkv_proj=nn.Linear(width, 3 * width), out_proj=nn.Linear(width, width))


class EncoderLayer(nn.Module):
    """Self-attention with relative positions, then feed-forward, each followed by a norm."""

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention = self_attention(config.width)
        self.layer_norm = nn.LayerNorm(config.width, config.norm_eps)
        self.feed_forward = FeedForward(config.width, config.encoder_ffn)
        self.final_layer_norm = nn.LayerNorm(config.width, config.norm_eps)

    def forward(self, x: Tensor, distances: Tensor, table: Tensor, hidden: Tensor | None) -> Tensor:
        """Run the layer on x [B, T, W]. `distances` [T, T] are the rows of `table` [P, D] for each pair of positions.

        `hidden` [B, 1, 1, T], if rows have padding, is added to the attention scores: minus infinity at padding.
        """
        query, key, value = split_heads(project(self.attention.qkv_proj, x), self.heads, 3)
        bias = (query * query.shape[-1] ** -0.5) @ table.T
        bias = bias.gather(-1, distances.expand(*bias.shape[:2], -1, -1))
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias if hidden is None else bias + hidden
        )
        x = self.layer_norm(x + project(self.attention.out_proj, attended.transpose(1, 2).flatten(2)))
        out: Tensor = self.final_layer_norm(x + self.feed_forward(x))
        return out


class Encoder(nn.Module):
    """The text encoder, which turns tokens into the vectors that the decoder attends to."""

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.prenet = Named(
            embed_tokens=nn.Embedding(config.vocab_size, config.width),
            encode_positions=Named(alpha=nn.Parameter(torch.empty(()))),
        )
        self.wrapped_encoder = Named(
            layer_norm=nn.LayerNorm(config.width, config.norm_eps),
            embed_positions=Named(pe_k=nn.Embedding(2 * config.max_distance, config.head_size)),
            layers=nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers)),
        )
        self._max_distance = config.max_distance

    def prepare(self, positions: Tensor) -> None:
        """Set the position table [length, W], which checkpoints do not store."""
        self.positions = positions

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode tokens [B, T] to [B, T, W]; only the first `lengths` [B] positions of each row are valid."""
        prenet, encoder = self.prenet, self.wrapped_encoder
        count = tokens.shape[1]
        x = prenet.embed_tokens(tokens) + prenet.encode_positions.alpha * self.positions[:count]
        table = encoder.embed_positions.pe_k.weight
        x = encoder.layer_norm(x).to(table.dtype)
        at = torch.arange(count, device=tokens.device)
        distances = (at.unsqueeze(1) - at).clamp(-self._max_distance, self._max_distance - 1) + self._max_distance
        hidden = None
        if lengths is not None:
            is_outside = at >= lengths.unsqueeze(1)
            hidden = torch.zeros_like(is_outside, dtype=x.dtype).masked_fill(is_outside, float("-inf"))[:, None, None]
        for layer in encoder.layers:
            x = layer(x, distances, table, hidden)
        return x


class Prenet(nn.Module):
    """Computes the decoder's input from a frame, its position and the speaker."""

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        sizes = [config.num_bins, *[config.prenet_units] * config.prenet_layers]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.final_layer = nn.Linear(sizes[-1], config.width)
        self.encode_positions = Named(alpha=nn.Parameter(torch.empty(())))
        self.speaker_embeds_layer = nn.Linear(config.speaker_size + config.width, config.width)
        self._width = config.width

    def speaker(self, vectors: Tensor) -> Tensor:
        """Project speaker vectors [B, N] to vectors [B, W], which are added to every input of the decoder."""
        weight, bias = self.speaker_embeds_layer.weight, self.speaker_embeds_layer.bias
        return F.linear(F.normalize(vectors), weight[:, self._width :], bias)

    def forward(self, frames: Tensor, positions: Tensor, speaker: Tensor, kept: Tensor | None) -> Tensor:
        """Return inputs [..., W] for frames [..., M] with `positions` [..., W] and the projected `speaker` [..., W].

        `kept` [..., layers, U] are the dropout factors of units, 0 or above 1; None disables dropout.
        """
        x = frames
        for index, layer in enumerate(self.layers):
            x = F.relu(layer(x))
            if kept is not None:
                x = x * kept[..., index, :]
        x = self.final_layer(x) + self.encode_positions.alpha * positions
        return F.relu(F.linear(x, self.speaker_embeds_layer.weight[:, : self._width]) + speaker)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the text, then feed-forward, each followed by a norm."""

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.self_attn = self_attention(config.width)
        self.self_attn_layer_norm = nn.LayerNorm(config.width, config.norm_eps)
        self.encoder_attn = Named(
            q_proj=nn.Linear(config.width, config.width),
            kv_proj=nn.Linear(config.width, 2 * config.width),
            out_proj=nn.Linear(config.width, config.width),
        )
        self.encoder_attn_layer_norm = nn.LayerNorm(config.width, config.norm_eps)
        self.feed_forward = FeedForward(config.width, config.decoder_ffn)
        self.final_layer_norm = nn.LayerNorm(config.width, config.norm_eps)

    def cross(self, encoded: Tensor) -> Pair:
        """Return keys and values [B, H, T, D] of an encoded text [B, T, W]."""
        keys, values = split_heads(project(self.encoder_attn.kv_proj, encoded), self.heads, 2)
        return keys, values

    def step(self, x: Tensor, cached: Pair, text: Pair, at: Steps, kept: Sequence[KeptHead] = ()) -> Tensor:
        """Return the output of one step for each row x [B, W].

        The step's keys and values are stored in `cached`, and the scores of the heads `kept` in their tensors.
        """
        count = len(x)
        query, key, value = project(self.self_attn.qkv_proj, x).view(count, 3, self.heads, -1).unbind(1)
        keys, values = cached
        keys[at.rows, :, at.target] = cast_saturating(key, keys.dtype)
        values[at.rows, :, at.target] = cast_saturating(value, values.dtype)
        attended = decode_attention(query, keys, values, at.position, at.span, at.mask).flatten(1)
        x = self.self_attn_layer_norm(x + project(self.self_attn.out_proj, attended))
        query = project(self.encoder_attn.q_proj, x).view(count, self.heads, -1)
        for each in kept:
            store_query_scores(query[:, each.head], text[0][:, each.head, : at.text_span], each)
        attended = decode_attention(query, *text, at.last_token, at.text_span, at.text_mask).flatten(1)
        return self._feed(x, attended)

    def whole(self, x: Tensor, text: Pair) -> Tensor:
        """Return the output of all steps of each row x [B, S, W] at once, with a causal mask."""
        query, key, value = split_heads(project(self.self_attn.qkv_proj, x), self.heads, 3)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        x = self.self_attn_layer_norm(x + project(self.self_attn.out_proj, attended))
        (query,) = split_heads(project(self.encoder_attn.q_proj, x), self.heads)
        attended = F.scaled_dot_product_attention(query, *text).transpose(1, 2).flatten(2)
        return self._feed(x, attended)

    def _feed(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.encoder_attn_layer_norm(x + project(self.encoder_attn.out_proj, attended))
        out: Tensor = self.final_layer_norm(x + self.feed_forward(x))
        return out


@dataclass(frozen=True)
class Steps:
    """The cache position of one new step in each of B rows, and the steps and tokens that it attends to."""

    rows: Tensor  # [B] 0, 1, 2 …
    target: Tensor  # [B] cache position of the step's key and value
    position: Tensor  # [B] last step to attend to
    span: int  # all steps are below this
    mask: Tensor | None  # from `decode_attention.used_positions`, like `text_mask`
    last_token: Tensor  # [B] last token to attend to
    text_span: int  # all tokens are below this
    text_mask: Tensor | None


class Decoder(nn.Module):
    """The decoder and its prenet."""

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.prenet = Prenet(config)
        self.wrapped_decoder = Named(layers=nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers)))

    @property
    def layers(self) -> Sequence[DecoderLayer]:
        return cast("Sequence[DecoderLayer]", self.wrapped_decoder.layers)


class Postnet(nn.Module):
    """The decoder's heads, and the post-net, which adds a residual to the mel in windows with context."""

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.feat_out = nn.Linear(config.width, config.num_bins * config.frames_per_step)
        self.prob_out = nn.Linear(config.width, config.frames_per_step)
        sizes = [config.num_bins, *[config.postnet_units] * (config.postnet_layers - 1), config.num_bins]
        pairs = itertools.pairwise(sizes)
        self.layers = nn.ModuleList(
            Named(conv=Conv(*pair, config.postnet_taps)) for pair in pairs
        )  # `weights.fold` makes the batch norms part of these convolutions
        self.reach = config.postnet_layers * (config.postnet_taps - 1) // 2
        self._axis = 2  # axis of steps

    def prepare(self, device: torch.device, dtype: torch.dtype, axis: int) -> None:
        """Convert the convolutions to the vocoder's device, dtype and layout."""
        self._axis = axis
        for layer in self.layers:
            assert isinstance(layer, Named)
            layer.to(device=device, dtype=dtype)
            if axis == 1:
                layer.conv.prepare()

    def forward(self, frames: Tensor, start: int, edges: Edges) -> Tensor:
        """Return the output for a window whose first frame is `start`, except the `reach` frames at each end."""
        x = frames = edges.clear(frames.clone(), start, 1)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Named)
            x, start = layer.conv(x), start + layer.conv.reach
            if index + 1 < len(self.layers):
                x = edges.clear(torch.tanh(x), start, 1)
        return x + frames.narrow(edges.axis, self.reach, x.shape[edges.axis])

    def whole(self, frames: Tensor) -> Tensor:
        """Apply the post-net to a whole mel [F, M]."""
        padded = F.pad(frames, (0, 0, self.reach, self.reach)).unsqueeze(0)
        padded = padded.transpose(1, 2) if self._axis == 2 else padded
        out: Tensor = self(padded, -self.reach, Edges(0, len(frames), axis=self._axis))[0]
        return out.T if self._axis == 2 else out


class MelNetwork(nn.Module):
    """All networks of a checkpoint except the vocoder."""

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.encoder, self.decoder, self.speech_decoder_postnet = Encoder(config), Decoder(config), Postnet(config)

    def products(self, dtype: torch.dtype) -> list[nn.Module]:
        """Return the modules whose weights may be quantized to `dtype`.

        Rounding changes a weight by 2.6 % in e4m3 and by 0.8 % in int8. The encoder makes errors four times as large:
        with only its products in e4m3, the mel changes by 11 %. Therefore e4m3 is used only for the self-attention and
        feed-forward of the decoder's layers.
        """
        if dtype != torch.float8_e4m3fn:
            return [self.encoder.wrapped_encoder.layers, self.decoder.wrapped_decoder.layers]
        return [part for layer in self.decoder.layers for part in (layer.self_attn, layer.feed_forward)]

"""The codec's encoder for references: samples to codes (Mimi; Défossez et al. 2024), in float32.

samples -> strided convolutions (25 steps/s) -> transformer -> strided convolution (12.5 frames/s) -> codes
The transformer attends to the whole past, like the original, which ignores the window in its config.
Shapes: T samples or steps, C channels, K codebooks, N entries of size D, F frames.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.blocks import Blocks, result_of
from s1_mini.codecs.causal.layers import CausalConv1d, Chain, Elu, ResidualUnit
from s1_mini.codecs.qwen12.config import Qwen12Config
from s1_mini.codecs.stream_state import StreamState
from s1_mini.exceptions import CapacityError
from s1_mini.layers.kv_cache import KVStore
from s1_mini.layers.transformer import Attention, BlockConfig, LayerScale, rope_table

# Steps of the transformer's input that the convolutions compute at once: 10 s of audio, on a CPU 2 s, because cancelled
# work and the steps of other requests wait for one block.
ENCODE_STEPS, CPU_ENCODE_STEPS = 250, 50


class Layer(nn.Module):
    """A pre-norm block with layer norms, a GELU feed-forward and layer scales."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.dim, config.norm_eps)
        self.attention_layer_scale = LayerScale(config.dim)
        self.ffn_norm = nn.LayerNorm(config.dim, config.norm_eps)
        self.fc1 = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.dim, bias=False)
        self.ffn_layer_scale = LayerScale(config.dim)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor, store: KVStore) -> Tensor:
        x = x + self.attention_layer_scale(self.attention(self.attention_norm(x), rope, mask, store))
        return x + self.ffn_layer_scale(self.fc2(F.gelu(self.fc1(self.ffn_norm(x)))))


class Encoder(nn.Module):
    """One loaded encoder."""

    def __init__(self, config: Qwen12Config) -> None:
        super().__init__()
        sizes = config.encoder
        self.config = config
        channels = sizes.num_filters
        layers: list[nn.Module] = [CausalConv1d(1, channels, sizes.kernel_size)]
        for ratio in reversed(sizes.upsampling_ratios):
            hidden = channels // sizes.compress
            layers += [
                ResidualUnit(channels, kernel=sizes.residual_kernel_size, hidden=hidden, activation=Elu),
                Elu(),
                CausalConv1d(channels, 2 * channels, 2 * ratio, stride=ratio),
            ]
            channels *= 2
        self.convolutions = Chain(*layers, Elu(), CausalConv1d(channels, sizes.hidden_size, sizes.last_kernel_size))
        self.layers = nn.ModuleList(Layer(sizes.block_of(sizes.norm_eps)) for _ in range(sizes.num_hidden_layers))
        self._step = math.prod(sizes.upsampling_ratios)  # samples
        stride = config.encoder_stride
        self.downsample = nn.Conv1d(sizes.hidden_size, sizes.hidden_size, 2 * stride, stride=stride, bias=False)
        # Two projections of the same vectors: for the first codebook, and for all other codebooks.
        self.projections = nn.Parameter(torch.empty(2, sizes.codebook_dim, sizes.hidden_size))
        self.books = nn.Parameter(torch.empty(config.num_codebooks, sizes.codebook_size, sizes.codebook_dim))

    def encode(self, wave: Tensor) -> Tensor:
        """Encode one wave [T] to codes [K, F]. Raises `CapacityError` if it is too long."""
        return result_of(self.encode_by_blocks(wave))

    def encode_by_blocks(self, wave: Tensor) -> Blocks[Tensor]:
        """Do the work of `encode`, with a `yield` after each part of it; the generator returns the codes."""
        sizes, steps = self.config.encoder, -(-len(wave) // self._step)
        if steps > sizes.max_position_embeddings:
            raise CapacityError(
                f"a reference of {len(wave) / self.config.sample_rate:.0f} s exceeds the codec's limit of "
                f"{sizes.max_position_embeddings * self._step / self.config.sample_rate:.0f} s. Shorten it."
            )
        state, parts = StreamState(), []
        num_steps = CPU_ENCODE_STEPS if wave.device.type == "cpu" else ENCODE_STEPS
        for block in wave.view(1, 1, -1).split(num_steps * self._step, dim=-1):
            parts.append(self.convolutions(block, state))
            yield
        x = torch.cat(parts, dim=-1).transpose(1, 2)
        rope = rope_table(steps, sizes.head_dim, sizes.rope_theta, x.device).unsqueeze(0)
        mask = torch.ones(1, 1, steps, steps, dtype=torch.bool, device=x.device).tril_()
        for layer in self.layers:
            x = layer(x, rope, mask, lambda key, value: (key, value))
            yield
        return self._quantize(self._downsampled(x.transpose(1, 2)))

    def _downsampled(self, x: Tensor) -> Tensor:
        """Return vectors [1, C, F] of x [1, C, T]; copies of the first and the last step pad x."""
        taps, stride = self.downsample.kernel_size[0], self.downsample.stride[0]
        return self.downsample(F.pad(x, (taps - stride, -x.shape[-1] % stride), mode="replicate"))

    def _quantize(self, x: Tensor) -> Tensor:
        """Return the codes [K, F] of vectors [1, C, F]; the codebooks from the third on encode residuals."""
        semantic, acoustic = F.linear(x[0].t(), self.projections.flatten(0, 1)).chunk(2, dim=-1)
        codes = [torch.cdist(semantic, self.books[0]).argmin(-1)]
        for book in self.books[1:]:
            codes.append(torch.cdist(acoustic, book).argmin(-1))
            acoustic = acoustic - book[codes[-1]]
        return torch.stack(codes)

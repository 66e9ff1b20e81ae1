"""Causal layers of codecs. Their arguments are the new input and a state that holds past inputs.

Shapes: B rows, C channels, T steps, S = window - 1 + T attended steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.stream_state import StreamState
from s1_mini.layers.convolution import conv1d, conv_transpose1d
from s1_mini.layers.kv_cache import KVStore
from s1_mini.layers.transformer import BlockConfig, RMSNorm, TransformerBlock, rope_table

DILATIONS = (1, 3, 9)  # of the three residual units at each rate
Activation = Callable[[int], nn.Module]  # builds an activation for a number of channels
PADDING = 64  # steps of rotary table beyond the longest stream, for padding that is computed and discarded


class Chain(nn.ModuleList):
    """Layers that run one after another with the same state."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(layers)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        for layer in self:
            x = layer(x, state)
        return x


class CausalConv1d(nn.Module):
    """Causal convolution. T must be a multiple of the stride, except at the end of a stream.

    There, zeros are appended to complete the last step.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride=stride, dilation=dilation, groups=groups)
        self.context = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        conv, missing = self.conv, -x.shape[-1] % self.conv.stride[0]
        x = state.extend((self, ""), F.pad(x, (0, missing)) if missing else x, self.context)
        return conv1d(x, conv.weight, conv.bias, stride=conv.stride[0], dilation=conv.dilation[0], groups=conv.groups)


class CausalConvTranspose1d(nn.Module):
    """Causal transposed convolution: T steps become T * stride."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self.stride = stride
        self.context = -(-kernel // stride) - 1  # past inputs that contribute to an output

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        start, length = self.context * self.stride, x.shape[-1] * self.stride
        x = state.extend((self, ""), x, self.context)
        return conv_transpose1d(x, self.conv.weight, self.conv.bias, stride=self.stride)[..., start : start + length]


def transposed_by_step(layer: CausalConvTranspose1d) -> Tensor:
    """Return the weights of a transposed convolution as [contributing steps, C, stride * O], the oldest step first."""
    weight, stride = layer.conv.weight, layer.stride
    inputs, outputs, taps = weight.shape
    assert taps == (layer.context + 1) * stride, "the kernel size must be a multiple of the stride"
    parts = weight.unflatten(2, (layer.context + 1, stride)).flip(2).permute(2, 0, 3, 1)
    return parts.reshape(-1, inputs, stride * outputs).contiguous()


class Snake(nn.Module):
    """x + sin²(αx) / β, per channel (Ziyin et al. 2020); β is α unless `has_beta`."""

    def __init__(self, channels: int, *, has_beta: bool = False) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, channels, 1))
        self.beta = nn.Parameter(torch.empty(1, channels, 1)) if has_beta else None

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        return self.alpha, self.alpha if self.beta is None else self.beta

    def forward(self, x: Tensor, _state: StreamState) -> Tensor:
        alpha, beta = self.factors
        wave = (alpha * x).sin()
        return torch.addcmul(x, wave, wave * (1 / (beta + 1e-9)).to(x.dtype))


class Elu(nn.Module):
    """The exponential linear unit, with the arguments that `ResidualUnit` passes to activations."""

    def __init__(self, _channels: int = 0) -> None:
        super().__init__()

    def forward(self, x: Tensor, _state: StreamState) -> Tensor:
        return F.elu(x)


class ResidualUnit(nn.Module):
    """Two convolutions, each after an activation, with a skip connection around both.

    The first convolution is dilated and has `hidden` outputs, by default as many as `channels`.
    """

    def __init__(
        self,
        channels: int,
        dilation: int = 1,
        *,
        kernel: int = 7,
        hidden: int | None = None,
        activation: Activation = Snake,
    ) -> None:
        super().__init__()
        hidden = hidden or channels
        self.block = Chain(
            activation(channels),
            CausalConv1d(channels, hidden, kernel, dilation=dilation),
            activation(hidden),
            CausalConv1d(hidden, channels, 1),
        )

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        return x + self.block(x, state)


class ConvNeXtBlock(nn.Module):
    """Causal ConvNeXt block (Liu et al. 2022): depthwise convolution, pointwise bottleneck, skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        inner = self.norm(self.dwconv(x, state).transpose(1, 2))
        inner = self.gamma * self.pwconv2(F.gelu(self.pwconv1(inner)))
        return x + inner.transpose(1, 2)


class Block(nn.Module):
    """A `Chain` named `block`, as in the checkpoint's tensor names."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.block = Chain(*layers)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        return self.block(x, state)


class DecoderBlock(Block):
    """A transposed convolution that halves the channels, then residual units."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation) -> None:
        super().__init__(
            activation(inputs),
            CausalConvTranspose1d(inputs, outputs, 2 * stride, stride=stride),
            *(ResidualUnit(outputs, dilation, activation=activation) for dilation in DILATIONS),
        )


class Decoder(nn.Module):
    """Converts vectors [B, `inputs`, T] to samples [B, 1, T * product of the rates]; `bound` limits the samples."""

    def __init__(
        self, inputs: int, dim: int, rates: Sequence[int], bound: nn.Module, activation: Activation = Snake
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [CausalConv1d(inputs, dim, 7)]
        for stride in rates:
            layers.append(DecoderBlock(dim, dim // 2, stride, activation))
            dim //= 2
        self.model = Chain(*layers, activation(dim), CausalConv1d(dim, 1, 7), bound)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        return self.model(x, state)


class WindowTransformer(nn.Module):
    """Causal transformer over x [B, C, T]: every step attends to itself and to the window - 1 steps before it.

    Positions count from the start of the stream. The state therefore holds the position, and the last keys and values
    of each layer. If `width` is given, linear layers convert x from `width` channels, and the output back.
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        layers: int,
        window: int,
        max_steps: int,
        rope_base: float,
        rope_dtype: torch.dtype = torch.float32,
        width: int | None = None,
    ) -> None:
        super().__init__()
        self.input_proj = nn.Linear(width, config.dim) if width else None
        self.output_proj = nn.Linear(config.dim, width) if width else None
        self.rope_dtype = rope_dtype  # the rotary table is rounded to this dtype
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.window = window
        self.rope_shape = (max_steps, config.head_dim, rope_base)

    def prepare(self, device: torch.device) -> None:
        """Compute the rotary table, which checkpoints do not store."""
        max_steps, head_dim, base = self.rope_shape
        self.rope = rope_table(max_steps + PADDING, head_dim, base, device, rounded_to=self.rope_dtype)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        steps = torch.arange(x.shape[-1], device=x.device)
        start = state.advance((self, "position"), len(x), len(steps), x.device)
        rope = self.rope[start.unsqueeze(1) + steps]
        mask = window_mask(start, steps, self.window)
        x = x.transpose(1, 2)
        x = x if self.input_proj is None else self.input_proj(x)
        for layer in self.layers:
            x = layer(x, rope, mask, self._store(layer, state))
        x = self.norm(x)
        return (x if self.output_proj is None else self.output_proj(x)).transpose(1, 2)

    def _store(self, layer: nn.Module, state: StreamState) -> KVStore:
        context = self.window - 1
        return lambda key, value: (
            state.extend((layer, "key"), key, context, axis=2),
            state.extend((layer, "value"), value, context, axis=2),
        )


def window_mask(start: Tensor, steps: Tensor, window: int, padding: int = 0) -> Tensor:
    """Return the attention mask of new `steps` [T] of streams at steps `start` [B]: bool [B, 1, T, S + padding].

    A step attends to the `window` steps up to itself, but to none before the start of the stream.
    """
    context = window - 1
    offset = torch.arange(context + len(steps) + padding, device=steps.device) - context  # relative to `start`
    distance = steps.unsqueeze(1) - offset
    near = (distance >= 0) & (distance < window)
    return (near & (offset >= -start.unsqueeze(1)).unsqueeze(1)).unsqueeze(1)

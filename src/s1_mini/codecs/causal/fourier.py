"""A causal decoder with an inverse Fourier transform as its last layer (Siuzdak 2023, Vocos).

All layers run at a low rate: ConvNeXt blocks, then amplitude and phase of one short spectrum per step. The windowed
inverse transforms of the spectra overlap and add up to samples. A sample depends on no later step: a step's window
begins at the step's own samples.
Shapes: B rows, C channels, T steps, H samples per step, N = 4 H samples per window.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.causal.layers import CausalConv1d, CausalConvTranspose1d, Chain, ConvNeXtBlock
from s1_mini.codecs.stream_state import StreamState
from s1_mini.kernels.linear import linear

OVERLAP = 4  # windows that contribute to each sample; squared Hann windows at a quarter step add up to 3/2
MAX_AMPLITUDE = 1e3  # of a spectrum; a full-scale sine has N / 4 = 300 in the built-in voice


class SpectralHead(nn.Module):
    """Converts x [B, C, T] to samples [B, 1, T * `hop`] through one spectrum per step, in float32."""

    def __init__(self, channels: int, hop: int) -> None:
        super().__init__()
        self.hop, self.size = hop, OVERLAP * hop
        self.context = OVERLAP - 1  # past windows that contribute to a sample
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.linear = nn.Linear(channels, self.size + 2)  # log amplitudes, then phases

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        windows = self.windows(x.transpose(1, 2)).transpose(1, 2)  # [B, N, T]
        joined = state.extend((self, ""), windows, self.context)
        return overlap_add(joined.transpose(1, 2), self.hop).unsqueeze(1)

    def windows(self, x: Tensor) -> Tensor:
        """Return the windowed inverse transforms [B, T, N] of x [B, T, C]."""
        return torch.fft.irfft(torch.polar(*self.polar(x)), self.size) * self.window(torch.float32, x.device)

    def polar(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return amplitudes and phases [B, T, N / 2 + 1] of the spectra of x [B, T, C], in float32."""
        x = F.layer_norm(x.float(), x.shape[-1:], self.norm.weight.float(), self.norm.bias.float(), self.norm.eps)
        amplitude, phase = linear(x, self.linear.weight.float(), self.linear.bias.float()).chunk(2, dim=-1)
        return amplitude.exp().clamp(max=MAX_AMPLITUDE), phase

    def inverse_basis(self) -> Tensor:
        """Return the matrix [N, N] that converts spectra to windows, in float32.

        Its inputs are all N / 2 + 1 real parts, then the imaginary parts except the first and the last, which are zero.
        """
        unit = torch.eye(self.size // 2 + 1, dtype=torch.complex128)
        waves = torch.fft.irfft(torch.cat((unit, 1j * unit[1:-1])), self.size) * self.window(torch.float64)
        return waves.t().float().contiguous().to(self.linear.weight.device)

    def window(self, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        """Return the window [N] that the inverse transforms are multiplied by."""
        return torch.hann_window(self.size, dtype=dtype, device=device) / 1.5


def overlap_add(windows: Tensor, hop: int) -> Tensor:
    """Return samples [B, T * hop] of overlapping windows [B, OVERLAP - 1 + T, N], the past windows first."""
    steps = windows.shape[1] - OVERLAP + 1
    parts = windows.unflatten(2, (OVERLAP, hop))
    first, *others = (parts[:, OVERLAP - 1 - at : OVERLAP - 1 - at + steps, at] for at in range(OVERLAP))
    return sum(others, start=first).flatten(1)


class FourierDecoder(nn.Module):
    """Converts vectors [B, `inputs`, T] to samples [B, 1, T * product of `rates`]; `bound` limits the samples.

    `rates` are upsampling factors; the last one is the step of the spectra in samples. `layers` ConvNeXt blocks run at
    the rate of the spectra.
    """

    def __init__(
        self, inputs: int, dim: int, rates: Sequence[int], layers: int, bound: nn.Module, *, expansion: int
    ) -> None:
        super().__init__()
        *factors, hop = rates
        self.model = Chain(
            CausalConv1d(inputs, dim, 3),
            *(CausalConvTranspose1d(dim, dim, factor, stride=factor) for factor in factors),
            *(ConvNeXtBlock(dim, expansion) for _ in range(layers)),
            SpectralHead(dim, hop),
            bound,
        )

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        return self.model(x, state)

"""The two convolutions of a residual unit, with all that stands between them and after them.

Where a program can have all channels of some steps, both are one kernel: what the first gives stays on the chip.
Shapes: B rows, T steps, P steps before them, C channels, K taps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from s1_mini.kernels.convolution_chain import Ending, convolve_on


@dataclass(frozen=True)
class UnitWeights:
    """What a unit is made of, but for its ending."""

    dilated: Tensor  # [K, C, C]
    dilation: int
    between: Ending  # of the dilated convolution
    pointwise: Tensor  # [1, C, C]


def residual_unit(joined: Tensor, weights: UnitWeights, ending: Ending, skip: Tensor) -> tuple[Tensor, Tensor]:
    """Give what `convolve_on` gives, of both convolutions on `joined` [B, P + T, C] and `skip` [B, T, C]."""
    _, inner = convolve_on(joined, weights.dilated, weights.dilation, weights.between)
    return convolve_on(inner, weights.pointwise, 1, ending, skip)

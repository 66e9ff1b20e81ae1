"""What a program of the codec's convolutions works on at once, for each width.

Tiles with which two programs have room on a multiprocessor are fastest: one multiplies while the other ends.
"""

from __future__ import annotations

from typing import NamedTuple

MANY_STEPS = 4096  # from here on programs take large tiles; below they must be many


class ConvolutionTile(NamedTuple):
    """Steps, outputs and inputs of a program; outputs that are no power of two are a wide part and a narrower one."""

    tall: int
    wide: int
    more: int
    block: int
    warps: int
    stages: int
    registers: int | None = None  # of a thread at most; None for as many as it likes

    @property
    def outputs(self) -> int:
        return self.wide + self.more

    @property
    def shared_bytes(self) -> int:
        """What its stages take of shared memory, for numbers of 16 bits."""
        return self.stages * self.block * (self.tall + self.outputs) * 2


FEW = ConvolutionTile(64, 32, 0, 64, warps=4, stages=4)
# By outputs; other widths take the largest that they are a multiple of. As measured at 16 streams of 25 frames.
DILATED = {
    96: ConvolutionTile(128, 64, 32, 32, warps=4, stages=4),
    192: ConvolutionTile(128, 128, 64, 32, warps=8, stages=5, registers=128),
    384: ConvolutionTile(128, 128, 64, 64, warps=8, stages=2, registers=128),
    768: ConvolutionTile(256, 128, 0, 64, warps=8, stages=3),
    1536: ConvolutionTile(128, 256, 0, 64, warps=8, stages=3),
}
TRANSPOSED = {
    192: ConvolutionTile(128, 128, 64, 64, warps=8, stages=2, registers=128),
    768: ConvolutionTile(128, 128, 0, 64, warps=8, stages=3, registers=128),
    3072: ConvolutionTile(128, 256, 0, 64, warps=8, stages=3),
}
POINTWISE = {
    96: ConvolutionTile(64, 64, 32, 32, warps=4, stages=3),
    192: ConvolutionTile(128, 64, 0, 64, warps=4, stages=3),
    384: ConvolutionTile(128, 128, 0, 64, warps=4, stages=3),
    768: ConvolutionTile(64, 128, 0, 64, warps=4, stages=4),
}
UNITS = {  # whole residual units, by channels: without a narrower part, which Triton 3.6 reads beyond its memory there
    96: ConvolutionTile(128, 128, 0, 32, warps=4, stages=4),
}


def is_many(rows: int, steps: int) -> bool:
    """Whether `rows` of so many steps fill a GPU with large tiles."""
    return rows * steps >= MANY_STEPS


def tile_of(outputs: int, taps: int, *, many: bool) -> ConvolutionTile:
    """Return the tile of a convolution with `many` steps or few."""
    if not many:
        return FEW
    table = {1: POINTWISE, 2: TRANSPOSED}.get(taps, DILATED)
    fitting = [width for width in table if outputs % width == 0]
    return table[max(fitting)] if fitting else table[max(table)]


def unit_tile(channels: int) -> ConvolutionTile | None:
    """Return the tile of a whole residual unit, None where its two convolutions are to be apart."""
    return UNITS.get(channels)

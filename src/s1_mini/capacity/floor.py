"""The least time that a frame can take on a card, and the time that is to be expected of the engine.

A step reads every weight once and the used keys and values of every row; that over the bandwidth is the floor of what
is generated step by step, operations over the computing rate that of the sound. One GPU does both, one after the other.
Where stages are on several GPUs, these work at the same time, and the one that takes longest is what counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from s1_mini.capacity.cards import Card
from s1_mini.capacity.sizes import Sizes, StageSizes

COPY_SHARE = 4.29 / 4.80  # of the data sheet's bandwidth that a copy reaches: measured on an H200 (2026-11)


@dataclass(frozen=True)
class Efficiency:
    """How near the engine comes to the floor: frame = `fixed_ms` + memory floor / share, sound = floor / share.

    Of the streams that these two allow it holds `engine_share`: prompts, bookkeeping and a burst take the rest. The
    defaults are what an H200 reached, taken for every card: 1.19, 2.44, 3.47 and 5.60 ms at 1, 64, 128 and 256 rows of
    350 columns, 1,900 seconds of sound a second by the codec alone, 640 streams held (docs/performance.md, 2026-11).
    """

    fixed_ms: float = 0.4
    memory_share: float = 0.525
    compute_share: float = 0.28
    engine_share: float = 0.65
    source: str = "docs/performance.md, H200, 2026-11"


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of one frame of `rows` rows: of what reads weights at every step, and of what computes."""

    rows: int
    model_ms: float
    codec_ms: float

    @property
    def total_ms(self) -> float:
        """Frame and sound."""
        return self.model_ms + self.codec_ms


@dataclass(frozen=True)
class Streams:
    """What a card can hold: seconds of sound a second, and at how many rows."""

    rows: int
    audio_per_s: float
    step_ms: float

    @property
    def count(self) -> int:
        """Listeners in real time, each of whom takes a second of sound a second.

        With more of them than slots, each one's speech is made ahead of him and its slot given to the next.
        """
        return int(self.audio_per_s)


class Floors:
    """Times of one checkpoint on one card, with `context` positions in use in each row.

    `devices` are the names of the stages that are on each of several such cards.
    """

    def __init__(self, sizes: Sizes, card: Card, context: int, devices: Sequence[Sequence[str]] = ()) -> None:
        self._sizes, self._card, self._context = sizes, card, context
        self._devices = [[sizes.stages[name] for name in names] for names in devices or (tuple(sizes.stages),)]
        self._bytes_per_ms = COPY_SHARE * card.bandwidth_gb_s * 1e6

    def floor(self, rows: int) -> StepTime:
        """Give the least time of a frame of `rows` rows."""
        return max(self._each(rows), key=lambda time: time.total_ms)

    def expected(self, rows: int, efficiency: Efficiency) -> StepTime:
        """Give the time that a frame of `rows` rows is to be expected to take."""
        times = [
            StepTime(
                rows,
                efficiency.fixed_ms + floor.model_ms / efficiency.memory_share,
                floor.codec_ms / efficiency.compute_share,
            )
            for floor in self._each(rows)
        ]
        return max(times, key=lambda time: time.total_ms)

    def _each(self, rows: int) -> Iterator[StepTime]:
        """Give the floor of each device."""
        for stages in self._devices:
            times = {"memory": 0.0, "compute": 0.0}
            for stage in stages:
                times[stage.bound] += self._least_ms(stage, rows)
            yield StepTime(rows, times["memory"], times["compute"])

    def _least_ms(self, stage: StageSizes, rows: int) -> float:
        cost = stage.step(rows, self._context)
        per_ms = (self._card.single_tflops if stage.is_single else self._card.half_tflops) * 1e9
        return max(cost.num_bytes / self._bytes_per_ms, cost.operations / per_ms)

    def streams(self, slots: int, efficiency: Efficiency | None = None) -> Streams:
        """Give the most that up to `slots` rows can do together with a step shorter than its sound."""

        def time(rows: int) -> float:
            return (self.floor(rows) if efficiency is None else self.expected(rows, efficiency)).total_ms

        frame_ms = 1000 * self._sizes.frame_s
        rows = max((rows for rows in range(1, slots + 1) if time(rows) < frame_ms), default=0)
        if not rows:
            return Streams(0, 0.0, time(1))
        share = 1.0 if efficiency is None else efficiency.engine_share
        return Streams(rows, share * rows * frame_ms / time(rows), time(rows))

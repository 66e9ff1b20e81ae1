"""The decoder as a stage: chunks of codes in, sound out; what a slot remembers is carried on.

A stream's beginning is mirrored, so its first chunk must have seven frames, or all that there are: `chunk_sizes` sees
to it. A chunk that ends its utterance may be filled up to the next size: its slot begins anew.
Shapes: n slots of a call, K codebooks, F frames, T samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs, Wait
from s1_mini.runtime.rows import fit
from s1_mini.runtime.stage import Pending, SimpleStage, made, whole_units

ROWS = (1, 2, 4, 8, 16, 32, 64)  # slots of the captured calls: a call runs in the smallest that holds it
MAX_FRAMES = 1600  # of all slots of one captured call: beyond, a GPU is full, and first sounds would wait


def chunk_sizes(config: EncodecConfig, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of chunks nearest to those wished for that this codec can stream exactly."""
    first, *others = sizes
    if first >= config.first_frames:
        return (first, *others)
    return (config.first_frames, *(others or [first]))


class EncodecDecoder(SimpleStage):
    """One stream in each slot; the codes of a frame are those of the first K codebooks."""

    def __init__(self, codec: Encodec, policy: Chunks, *, number: int) -> None:
        """Decode with the weights of `codec`; `number` is the stage's in its chain, for its stream on a GPU.

        Raises `ConfigurationError` for a policy whose first chunks are too small to begin a stream with.
        """
        first = min(sizes[0] for sizes in policy.sizes.values())
        if first < codec.config.first_frames:
            raise ConfigurationError(
                f"stage {policy.name!r}: a first chunk of {first} frames is too small; "
                f"Encodec begins with {codec.config.first_frames} at the least"
            )
        self.device, self._codec, self._policy, self._number = codec.device, codec, policy, number
        self._num_codebooks = policy.input.shape[0]
        self._stream = codec.open(policy.slots + 1)  # the last slot is for what fills up a call
        self.launches_ahead = self.device.type == "cuda"
        self._begun: dict[int, Begin] = {}
        self._graphs: StepGraphs[tuple[int, int]] | None = None

    @torch.inference_mode()
    def capture(self) -> None:
        if self.device.type == "cuda":
            self.make_graphs()

    def make_graphs(self) -> None:
        """Make the graphs; on a CPU (in tests) their calls run uncaptured."""
        policy, rate = self._policy, self._codec.samples_per_frame

        def call(_: tuple[int, int], codes: Tensor, rows: Tensor) -> list[Tensor]:
            chosen, fresh, lengths = rows
            sound = self._stream.push_where(codes.transpose(1, 2), chosen, fresh.bool(), lengths).float()
            return [sound, sound.isfinite().all(-1)]

        options = GraphOptions.of_stage(self.device, self._number)
        self._graphs = StepGraphs(
            call,
            policy.calls,
            lambda key: [Buffer((*key, self._num_codebooks)), Buffer((3, key[0]))],
            lambda key: [Buffer((key[0], key[1] * rate), torch.float32), Buffer((key[0],), torch.bool)],
            device=self.device,
            options=replace(options, is_beside=True, sleeps=True),
        )

    def begin(self, begins: Sequence[Begin]) -> None:
        self._begun |= {begin.slot: begin for begin in begins}

    def step(self, slots: Sequence[int], size: int) -> Pending:
        begun = [self._begun[slot] for slot in slots]
        counts = [len(begin.inputs) * self._codec.samples_per_frame for begin in begun]
        if self._graphs is not None:
            return whole_units(self._launch(self._graphs, begun, size), counts)
        return whole_units(made([self._push(begin) for begin in begun]), counts)

    def _launch(self, graphs: StepGraphs[tuple[int, int]], begun: list[Begin], size: int) -> Wait:
        n = fit(self._policy.rows, len(begun))
        codes = np.zeros((n, size, self._num_codebooks), np.int64)
        rows = np.empty((3, n), np.int64)
        rows[:] = [[self._policy.slots], [1], [size]]
        for at, begin in enumerate(begun):
            codes[at, : len(begin.inputs)] = begin.inputs
            rows[:, at] = begin.slot, begin.number == 0, len(begin.inputs)
        return graphs.launch((n, size), codes, rows)

    def _push(self, begin: Begin) -> np.ndarray:
        """Decode one chunk, alone: of several, a CPU gives other last bits."""
        codes = torch.from_numpy(begin.inputs.T.copy()).to(self.device)
        wave: np.ndarray = self._stream.push(codes, begin.slot, is_first=begin.number == 0).float().cpu().numpy()
        return wave

"""The decoder as a stage: chunks of codes in, sound out; what a slot remembers is carried on.

A stream's beginning is mirrored, so its first chunk must have seven frames, or all that there are: `chunk_sizes` sees
to it. A chunk that ends its utterance may be filled up to the next size: its slot begins anew.
Shapes: n slots of a call, K codebooks, F frames, T samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.stage import ChunkStage, Graphs
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.graphs import Buffer, Wait
from s1_mini.runtime.rows import fit

MAX_FRAMES = 1600  # of all slots of one captured call: beyond, a GPU is full, and first sounds would wait


def chunk_sizes(config: EncodecConfig, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of chunks nearest to those wished for that this codec can stream exactly."""
    first, *others = sizes
    if first >= config.first_frames:
        return (first, *others)
    return (config.first_frames, *(others or [first]))


class EncodecDecoder(ChunkStage):
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
        super().__init__(codec.device, policy, number=number, rate=codec.samples_per_frame)
        self._num_codebooks = policy.input.shape[0]
        self._stream = codec.open(policy.slots + 1)  # the last slot is for what fills up a call

    def make_graphs(self) -> None:
        def call(codes: Tensor, rows: Tensor) -> Tensor:
            chosen, fresh, lengths = rows
            return self._stream.push_where(codes.transpose(1, 2), chosen, fresh.bool(), lengths).float()

        self._capture(call, lambda key: [Buffer((*key, self._num_codebooks)), Buffer((3, key[0]))], own_kernels=False)

    def _launch(self, graphs: Graphs, begun: list[Begin], size: int) -> Wait:
        n = fit(self._policy.rows, len(begun))
        codes = np.zeros((n, size, self._num_codebooks), np.int64)
        rows = np.empty((3, n), np.int64)
        rows[:] = [[self._policy.slots], [1], [size]]
        for at, begin in enumerate(begun):
            codes[at, : len(begin.inputs)] = begin.inputs
            rows[:, at] = begin.slot, begin.number == 0, len(begin.inputs)
        return graphs.launch((n, size), codes, rows)

    def _alone(self, begin: Begin) -> np.ndarray:
        codes = torch.from_numpy(begin.inputs.T.copy()).to(self.device)
        wave: np.ndarray = self._stream.push(codes, begin.slot, is_first=begin.number == 0).float().cpu().numpy()
        return wave

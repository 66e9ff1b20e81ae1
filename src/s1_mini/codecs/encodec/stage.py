"""The decoder as a stage: chunks of codes in, audio out. Each slot holds the state of its stream.

Because layers mirror the beginning of a stream, the first chunk must have a minimum number of frames, 7 as published,
unless it is the whole stream (`chunk_sizes`). The last chunk of an utterance may be padded to the next chunk size,
because the slot's next chunk begins a new stream.
Shapes: n slots of a call, K codebooks, F frames, T samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.stream_state import StreamChunk
from s1_mini.codecs.stage import ChunkStage, Graphs
from s1_mini.codecs.stream_state import StreamState
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.graphs import Buffer, Wait
from s1_mini.runtime.rows import fit

MAX_FRAMES = 1600  # limit of a captured call; larger calls would saturate the GPU and delay first chunks


def chunk_sizes(config: EncodecConfig, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return `sizes`, with the first size raised to the `first_frames` of the codec if it is smaller.

    A single size that is too small stays the size of the later chunks.
    """
    first, *others = sizes
    if first >= config.first_frames:
        return (first, *others)
    return (config.first_frames, *(others or [first]))


class EncodecDecoder(ChunkStage):
    """Decodes one stream in each slot, from codes of the first K codebooks."""

    def __init__(self, codec: Encodec, policy: Chunks, *, number: int) -> None:
        """Decode with the weights of `codec`; `number`, the stage's index in its chain, chooses its GPU stream.

        Raises `ConfigurationError` if the first chunks of `policy` are too small for the beginning of a stream.
        """
        first = min(sizes[0] for sizes in policy.sizes.values())
        if first < codec.config.first_frames:
            raise ConfigurationError(
                f"stage {policy.name!r}: a first chunk of {first} frames is too small; Encodec needs at least "
                f"{codec.config.first_frames}"
            )
        super().__init__(codec.device, policy, number=number, rate=codec.samples_per_frame)
        self._codec, self._num_codebooks = codec, policy.input.shape[0]
        self._state = StreamState()

    def make_graphs(self) -> None:
        self._capture(
            lambda codes, rows: self._decode(codes.transpose(1, 2), rows),
            lambda key: [Buffer((*key, self._num_codebooks)), Buffer((3, key[0]))],
            own_kernels=False,
        )

    def _decode(self, codes: Tensor, rows: Tensor) -> Tensor:
        """Return the audio [n, T] of codes [n, K, F].

        `rows` [3, n] has each row's slot, whether it begins a new stream (0 or 1), and its number of valid frames. All
        tensors are on the device, so that a graph can capture the call.
        """
        slot_ids, reset_mask, lengths = rows
        chunk = StreamChunk(self._state, self._policy.slots + 1, reset_mask.bool(), lengths, slot_ids)
        sound = self._codec.decode(codes, chunk)
        chunk.commit()
        return sound.float()

    def _launch(self, graphs: Graphs, begun: list[Begin], size: int) -> Wait:
        n = fit(self._policy.rows, len(begun))
        codes = np.zeros((n, size, self._num_codebooks), np.int64)
        rows = np.empty((3, n), np.int64)
        rows[:] = [[self._policy.slots], [1], [size]]  # padding rows use the last slot
        for at, begin in enumerate(begun):
            codes[at, : len(begin.inputs)] = begin.inputs
            rows[:, at] = begin.slot, begin.number == 0, len(begin.inputs)
        return graphs.launch((n, size), codes, rows)

    def _alone(self, begin: Begin) -> np.ndarray:
        codes = torch.from_numpy(begin.inputs.T.copy()).to(self.device).unsqueeze(0)
        rows = torch.tensor([[begin.slot], [begin.number == 0], [codes.shape[-1]]], device=self.device)
        wave: np.ndarray = self._decode(codes, rows)[0].cpu().numpy()
        return wave

"""The codec's decoder as a stage: chunks of codes in, audio out; each slot has the state of its stream.

A chunk that ends its utterance may be padded to the next size, because the codec is causal and the slot then begins a
new stream.
Shapes: n slots of a call, K codebooks, F frames, T samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.causal.channels_last import ChannelsLastDecoder
from s1_mini.codecs.causal.codec import CausalCodec
from s1_mini.codecs.stage import ChunkStage, Graphs
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.kernels.backend import batch_invariance
from s1_mini.runtime.compiled import Compilable
from s1_mini.runtime.graphs import Buffer, Wait
from s1_mini.runtime.rows import fit
from s1_mini.runtime.stage import Pending

Snake = Callable[[Tensor, Tensor], Tensor]

MAX_FRAMES = 400  # limit of a captured call; more would saturate the GPU and delay first chunks


class CausalDecoder(ChunkStage):
    """One stream in each slot."""

    def __init__(self, codec: CausalCodec, policy: Chunks, *, number: int, batch_invariant: bool = False) -> None:
        """Decode with the weights of `codec`; `number`, the stage's index in its chain, chooses its GPU stream.

        With `batch_invariant` the bits of a chunk do not depend on the rest of its batch, on a GPU as well.
        """
        self._batch_invariant = batch_invariant
        super().__init__(codec.device, policy, number=number, rate=codec.samples_per_frame)
        self._codec, self._stream = codec, codec.open(policy.slots)
        self._compiled: Snake | None = None
        self._snakes: dict[int, Snake | None] = {}  # by slot, from an utterance's first chunk to its last

    def make_graphs(self) -> None:
        # In the chain, the order of sums depends on the number of steps.
        chained = False if self._batch_invariant else None
        slots = self._policy.slots + 1  # the last is for padding
        decoder = self._decoder = ChannelsLastDecoder(self._codec, slots, chained=chained)

        def call(codes: Tensor, rows: Tensor) -> Tensor:
            with batch_invariance(self._batch_invariant):
                return decoder.push_slots(codes.transpose(1, 2), rows[0], rows[1] == 0).float()

        books = self._codec.num_codebooks
        self._capture(call, lambda key: [Buffer((*key, books)), Buffer((2, key[0]))], own_kernels=True)

    def compilable(self) -> Compilable | None:
        if self.device.type != "cpu" or any(part.dtype != torch.float32 for part in self._codec.parameters()):
            return None

        from s1_mini.kernels.compiled import layers as kernel  # numba takes a moment to import

        def snake(x: Tensor, alpha: Tensor) -> Tensor:
            """Return Snake of x [1, C, T] with `alpha` [1, C, 1], both float32."""
            x = x.contiguous()
            out = torch.empty_like(x)
            kernel.snake(x[0].numpy(), alpha.detach().view(-1).numpy(), out[0].numpy())
            return out

        def use() -> None:
            x, alpha = torch.linspace(-30, 30, 999).repeat(1, 2, 1), torch.tensor([0.5, 4.0]).view(1, 2, 1)
            if not torch.allclose(snake(x, alpha), x + (alpha * x).sin().square() / alpha, rtol=1e-5, atol=1e-5):
                raise RuntimeError("the compiled activation does not match torch's")
            self._compiled = snake

        return Compilable("the activation of the codec", kernel.__name__, [], use)

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Decode the chunks of some slots. Raises `CapacityError` beyond the codec's longest stream."""
        for slot in slots:
            begin = self._begun[slot]
            self._codec.check_length(begin.produced // self._rate + len(begin.inputs))
        return super().step(slots, size)

    def _launch(self, graphs: Graphs, begun: list[Begin], size: int) -> Wait:
        n = fit(self._policy.rows, len(begun))
        codes = np.zeros((n, size, self._codec.num_codebooks), np.int64)
        # Slots and chunk numbers; chunk number 0, as during capture, begins a new stream.
        rows = np.zeros((2, n), np.int64)
        rows[0] = self._policy.slots
        for at, begin in enumerate(begun):
            codes[at, : len(begin.inputs)] = begin.inputs
            rows[:, at] = begin.slot, begin.number
        return graphs.launch((n, size), codes, rows)

    def _alone(self, begin: Begin) -> np.ndarray:
        if begin.number == 0:
            self._stream.reset(begin.slot)
            self._snakes[begin.slot] = self._compiled
        codes = torch.from_numpy(begin.inputs.T.copy()).unsqueeze(0).to(self.device)
        wave: np.ndarray = self._stream.push(codes, [begin.slot], self._snakes.get(begin.slot))[0].float().cpu().numpy()
        return wave

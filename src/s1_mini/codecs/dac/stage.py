"""The codec's decoding half as a stage: chunks of codes in, sound out; what a slot remembers is carried on.

A chunk that ends its utterance may be filled up to the next size: the codec is causal, and its slot begins anew.
Shapes: n slots of a call, K codebooks, F frames, T samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.dac.channels_last import ChannelsLastDecoder
from s1_mini.codecs.dac.model import Dac
from s1_mini.core.messages import Begin
from s1_mini.core.stage import Chunks
from s1_mini.kernels.backend import one_order
from s1_mini.runtime.compiled import Compilable
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs, Wait
from s1_mini.runtime.rows import fit
from s1_mini.runtime.stage import Pending, SimpleStage, made, whole_units

Snake = Callable[[Tensor, Tensor], Tensor]

ROWS = (1, 2, 4, 8, 16, 32, 64)  # slots of the captured calls: a call runs in the smallest that holds it
MAX_FRAMES = 400  # of all slots of one captured call: beyond, a GPU is full, and first sounds would wait


class DacDecoder(SimpleStage):
    """One stream in each slot."""

    def __init__(self, codec: Dac, policy: Chunks, *, number: int, batch_invariant: bool = False) -> None:
        """Decode with the weights of `codec`; `number` is the stage's in its chain, for its stream on a GPU.

        `batch_invariant` gives a chunk the same bits whatever is decoded beside it, on a GPU too.
        """
        self._batch_invariant = batch_invariant
        self.device, self._codec, self._policy, self._number = codec.device, codec, policy, number
        self._stream = codec.open(policy.slots)
        self.launches_ahead = self.device.type == "cuda"
        self._begun: dict[int, Begin] = {}
        self._compiled: Snake | None = None
        self._snakes: dict[int, Snake | None] = {}  # by slot, from an utterance's first chunk to its last
        self._graphs: StepGraphs[tuple[int, int]] | None = None

    @torch.inference_mode()
    def capture(self) -> None:
        if self.device.type == "cuda":
            self.make_graphs()

    def make_graphs(self) -> None:
        """Make the graphs; on a CPU (in tests) their calls run uncaptured."""
        # The chain sums up in another order for few steps than for many.
        chained = False if self._batch_invariant else None
        slots = self._policy.slots + 1  # the last is for what fills up a call
        decoder = self._decoder = ChannelsLastDecoder(self._codec, slots, chained=chained)
        books, samples = self._codec.num_codebooks, self._codec.samples_per_frame
        policy = self._policy

        def call(_: tuple[int, int], codes: Tensor, rows: Tensor) -> list[Tensor]:
            with one_order(self._batch_invariant):
                sound = decoder.push_where(codes.transpose(1, 2), rows[0], rows[1].bool()).float()
            return [sound, sound.isfinite().all(-1)]

        options = GraphOptions.of_stage(self.device, self._number)
        self._graphs = StepGraphs(
            call,
            policy.calls,
            lambda key: [Buffer((*key, books)), Buffer((2, key[0]))],
            lambda key: [Buffer((key[0], key[1] * samples), torch.float32), Buffer((key[0],), torch.bool)],
            device=self.device,
            options=replace(options, is_beside=True, sleeps=True, own_kernels=True),
        )

    def compilable(self) -> Compilable | None:
        from s1_mini.codecs.dac import compiled  # numba takes a moment to import

        if self.device.type != "cpu" or any(part.dtype != torch.float32 for part in self._codec.parameters()):
            return None

        def use() -> None:
            compiled.check()
            self._compiled = compiled.snake

        return Compilable("the activation of the codec", compiled.MODULE, [], use)

    def begin(self, begins: Sequence[Begin]) -> None:
        self._begun |= {begin.slot: begin for begin in begins}

    def step(self, slots: Sequence[int], size: int) -> Pending:
        """Decode the chunks of some slots. Raises `CapacityError` beyond the codec's longest stream."""
        begun = [self._begun[slot] for slot in slots]
        for begin in begun:
            self._codec.check_length(begin.produced // self._codec.samples_per_frame + len(begin.inputs))
        counts = [len(begin.inputs) * self._codec.samples_per_frame for begin in begun]
        if self._graphs is not None:
            return whole_units(self._launch(self._graphs, begun, size), counts)
        return whole_units(made([self._push(begin) for begin in begun]), counts)

    def _launch(self, graphs: StepGraphs[tuple[int, int]], begun: list[Begin], size: int) -> Wait:
        n = fit(self._policy.rows, len(begun))
        codes = np.zeros((n, size, self._codec.num_codebooks), np.int64)
        rows = np.full((2, n), self._policy.slots)
        rows[1] = 1
        for at, begin in enumerate(begun):
            codes[at, : len(begin.inputs)] = begin.inputs
            rows[:, at] = begin.slot, begin.number == 0
        return graphs.launch((n, size), codes, rows)

    def _push(self, begin: Begin) -> np.ndarray:
        """Decode one chunk, alone: of several, a CPU gives other last bits."""
        if begin.number == 0:
            self._stream.reset(begin.slot)
            self._snakes[begin.slot] = self._compiled
        codes = torch.from_numpy(begin.inputs.T.copy()).unsqueeze(0).to(self.device)
        wave: np.ndarray = self._stream.push(codes, [begin.slot], self._snakes.get(begin.slot))[0].float().cpu().numpy()
        return wave

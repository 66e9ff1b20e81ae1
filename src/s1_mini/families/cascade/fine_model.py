"""The fine model as a stage: windows of frames of two codes in, frames of eight out, in six passes over each window.

It sees both ways, so a window's frames are made anew where the next overlaps it; only what no later window can change
is given out. A slot keeps the codes of its last window. A CPU does each window alone, a GPU some in one graph.
Shapes: n windows of a call, T frames of a window, K books.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from s1_mini.core.messages import Begin, StepResult
from s1_mini.families.cascade.config import NUM_COARSE
from s1_mini.families.cascade.kernels.choose import MIN_TEMPERATURE, choose_plain
from s1_mini.families.cascade.language_model import stage_uniforms
from s1_mini.families.cascade.network import FineGPT
from s1_mini.families.cascade.policies import FinePolicy, FineWindow
from s1_mini.layers.staging import stage
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs
from s1_mini.runtime.stage import Pending, SimpleStage

ROWS = (8, 4, 2, 1)  # windows of the captured calls, beside the most of one: a call runs in the smallest that holds it


@dataclass
class _Begun:
    """What a slot is to do."""

    codes: np.ndarray  # int64 [T, K]: what is known, no code where nothing is
    window: FineWindow
    first: int  # frames of the window, from the first that is given out to the last
    stop: int
    temperature: float
    uniforms: np.ndarray  # float32 [T, K - 2]


class FineModel(SimpleStage):
    """One window in each slot."""

    is_overlapped = False

    def __init__(self, network: FineGPT, policy: FinePolicy, *, number: int, temperature: float) -> None:
        """`number` is the stage's in its chain; at `temperature` 0 the likeliest codes are taken."""
        self.device, self._network, self._number = network.device, network, number
        self._numbers, self._policy, self._temperature = policy.numbers, policy, temperature
        self._begun: dict[int, _Begun] = {}
        self._kept: dict[int, tuple[int, np.ndarray]] = {}  # by slot: where its last window began, and its codes
        self._rows: list[int] = []  # of the captured calls
        self._graphs: StepGraphs[int] | None = None

    @torch.inference_mode()
    def capture(self) -> None:
        if self.device.type == "cuda":
            self.make_graphs()

    def make_graphs(self) -> None:
        """Make the graphs; on a CPU (in tests) their calls run uncaptured."""
        numbers, draws = self._numbers, self._numbers.num_books - NUM_COARSE
        length, most = numbers.fine_window, self._policy.most_together(1)
        self._rows = [most, *(rows for rows in ROWS if rows < most)]
        self._graphs = StepGraphs(
            lambda _, *given: self._passes(*given),
            self._rows,
            lambda rows: [
                Buffer((rows, length, numbers.num_books)),
                Buffer((rows,)),
                Buffer((rows,), torch.float32),
                Buffer((rows, length, draws), torch.float32),
            ],
            lambda rows: [Buffer((rows, length, numbers.num_books)), Buffer((rows,), torch.bool)],
            device=self.device,
            options=replace(GraphOptions.of_stage(self.device, self._number), is_beside=True, sleeps=True),
        )

    def begin(self, begins: Sequence[Begin]) -> None:
        self._begun |= {begin.slot: self._open(begin) for begin in begins}

    def _open(self, begin: Begin) -> _Begun:
        numbers, conditions = self._numbers, begin.conditions
        voice = conditions.voice.get("fine", np.zeros((0, numbers.num_books), np.int64))
        history, first = len(voice), begin.produced - begin.context  # of the frames that came in
        is_last = begin.context + begin.consumes == len(begin.inputs)
        available = history + first + len(begin.inputs)
        window = FineWindow(numbers, begin.number, history, available, is_last=is_last)
        codes = np.full((numbers.fine_window, numbers.num_books), numbers.codebook_size)
        own = voice[window.start :]
        codes[: len(own)] = own
        codes[len(own) : len(own) + len(begin.inputs), :NUM_COARSE] = begin.inputs % numbers.codebook_size
        if begin.number:
            before, kept = self._kept[begin.slot]
            kept = kept[window.start - before :, NUM_COARSE:]
            codes[: len(kept), NUM_COARSE:] = kept
        temperature = self._temperature if conditions.sampling.temperature > MIN_TEMPERATURE else 0.0
        draws = np.zeros((numbers.fine_window, numbers.num_books - NUM_COARSE), np.float32)
        if temperature:
            until = window.start + numbers.fine_window - history
            table = stage_uniforms(self._number, begin, until, draws.shape[1])[max(0, until - len(draws)) :].numpy()
            draws[len(draws) - len(table) :] = table
        given = history + begin.produced - window.start
        return _Begun(codes, window, given, given + begin.consumes, temperature, draws)

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        begun = [self._begun[slot] for slot in slots]
        if self._graphs is not None:
            codes, valid = self._launch(self._graphs, begun)
        else:
            made = [self._alone(each) for each in begun]
            codes, valid = [each[0] for each in made], [each[1] for each in made]
        for slot, each, window in zip(slots, begun, codes, strict=True):
            self._kept[slot] = each.window.start, window
        values = [window[each.first : each.stop] for each, window in zip(begun, codes, strict=True)]
        result = StepResult(values, [len(value) for value in values], [True] * len(begun), valid)
        return lambda: result

    def _given(self, begun: Sequence[_Begun]) -> list[np.ndarray]:
        fills = [each.window.fill - each.window.start for each in begun]
        return [
            np.stack([each.codes for each in begun]),
            np.array(fills),
            np.array([each.temperature for each in begun], np.float32),
            np.stack([each.uniforms for each in begun]),
        ]

    def _launch(self, graphs: StepGraphs[int], begun: list[_Begun]) -> tuple[list[np.ndarray], list[bool]]:
        rows = min(rows for rows in self._rows if rows >= len(begun))
        filled = begun + begun[:1] * (rows - len(begun))
        codes, valid = graphs.launch(rows, *self._given(filled))()
        return list(codes[: len(begun)]), valid[: len(begun)].tolist()

    def _alone(self, begun: _Begun) -> tuple[np.ndarray, bool]:
        given = [stage(torch.from_numpy(each), self.device) for each in self._given([begun])]
        codes, valid = self._passes(*given)
        return codes[0].cpu().numpy(), bool(valid)

    def _passes(self, codes: Tensor, fill: Tensor, temperature: Tensor, uniforms: Tensor) -> list[Tensor]:
        """Make the books of windows [n, T, K] from frame `fill` [n] on; give them, and whether all was finite [n]."""
        network, books = self._network, self._numbers.num_books
        made = list(codes.unbind(-1))
        fresh = torch.arange(codes.shape[1], device=codes.device) >= fill.unsqueeze(1)
        known = network.embed(0, made[0]) + network.embed(1, made[1])
        valid = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        heat = temperature.unsqueeze(1).expand(-1, codes.shape[1])
        for book in range(NUM_COARSE, books):
            logits = network.logits(book, known + network.embed(book, made[book]))
            valid = valid & (logits.abs().amax((1, 2)) < float("inf"))
            if self._temperature:
                choice = choose_plain(logits, heat, uniforms[..., book - NUM_COARSE])
            else:
                choice = logits.argmax(-1)
            made[book] = torch.where(fresh, choice, made[book])
            known = known + network.embed(book, made[book])
        return [torch.stack(made, -1), valid]

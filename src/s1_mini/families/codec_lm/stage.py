"""The language model as a stage: a prompt in, one frame of codes per step out, until the end.

A step computes all slots up to its highest slot and attends to positions up to a multiple of `rows.SPAN`; with graphs,
it computes the next larger captured number of slots, with all positions. A slot's results do not depend on other slots;
on a CPU, they are equal bit for bit.
Shapes: B slots of a call, S positions, K codebooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.core.messages import Begin, Feed, Prefill, Saved, StepResult
from s1_mini.families.codec_lm.model import FrameModel, SamplingTensors
from s1_mini.kernels.backend import batch_invariance
from s1_mini.kernels.decode_attention import can_attend, reads_common
from s1_mini.layers.staging import Writes
from s1_mini.runtime.compiled import Compilable, CompiledSlots, can_compile
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs
from s1_mini.runtime.rows import SharedPrefixes, SteppingSlots, fit, ladder, whole_spans
from s1_mini.runtime.stage import Pending, Stage
from s1_mini.runtime.text_scores import Scores, TextScores

READS = (16, 32, 64, 128, 256, 512, 1024)  # positions of captured prefills
FEW_READS = READS[:5]
MANY_UNITS = 100  # multiprocessors that a call of 256 positions does not fill


def prefill_sizes(model: FrameModel[Any]) -> tuple[int, ...]:
    """Return the numbers of positions of a call that prefills prompts.

    Larger calls pay only on large GPUs. Without the kernel for prompts, their memory would grow with the number of
    positions.
    """
    weight, size = next(model.network.parameters()), model.config.backbone.head_dim
    if not weight.is_cuda or not can_attend(weight, size):
        return FEW_READS
    units = torch.cuda.get_device_properties(weight.device).multi_processor_count
    return READS if units >= MANY_UNITS else FEW_READS


class LanguageModel(Stage):
    """Both transformers for `slots` sequences of up to `positions` positions each."""

    def __init__(
        self, model: FrameModel[Any], *, slots: int, positions: int, kept: Sequence[AlignmentHead] | None = None
    ) -> None:
        """`kept` are the heads whose scores are reported; by default, the one that config.json names."""
        self.device, self.is_overlapped = model.device, model.device.type == "cuda"
        self._model, self._slots, self._positions = model, slots, min(positions, model.max_positions)
        with torch.inference_mode():
            self.state = model.allocate(slots, self._positions, kept)
            ones = torch.ones(3, slots, device=self.device)
            table = torch.zeros(slots, self._positions + 1, model.num_uniforms, device=self.device)
            self._sampling = SamplingTensors(ones[0], ones[1], ones[2], table)
            # The rows of a prefill [n, K + 3]: tokens, slot and position; position -1 is padding.
            self._sizes = prefill_sizes(model)
            self._to_read = torch.zeros(self._sizes[-1], model.num_codebooks + 3, dtype=torch.int64, device=self.device)
        self._writes = Writes(self.device)  # run before every call that reads the state
        self.shares_prefixes = True  # read keys and values of a common prefix once; set before `make_graphs`
        self._shared = None if self.state.common is None else SharedPrefixes(self.state.common, self._writes)
        self._ladder = ladder(slots)
        self._prompts: dict[int, np.ndarray] = {}  # by slot, [S, K + 1]
        self._lengths = [0] * slots  # positions of prompt and frames
        self._scores = TextScores(self.state.kept)
        self._stepping = SteppingSlots(self.state.active, self._writes)
        self._compiled = CompiledSlots()
        self._prefill: Callable[[int, Tensor, int], None] = partial(model.prefill, self.state)  # for compiled slots
        self._steps: StepGraphs[tuple[int, bool]] | None = None  # key: rows, whether prefixes are shared
        self._reads: StepGraphs[int] | None = None

    def make_graphs(self) -> None:
        self._stepping.choose(())
        self._writes.run()  # compiles its kernel
        books = self._model.num_codebooks
        options = GraphOptions.of_stage(self.device, 0)
        self._reads = StepGraphs(
            self._read, self._sizes[::-1], lambda _: [], lambda _: [], device=self.device, options=options
        )
        self._steps = StepGraphs(
            lambda key: [self._run(key, self._positions)],
            [key for rows in self._ladder[::-1] for key in self._kinds(rows)],
            lambda _: [],
            lambda key: [Buffer((key[0], books + 3))],
            device=self.device,
            options=replace(options, is_ahead=True),
        )

    def compilable(self) -> Compilable | None:
        model = self._model
        if not model.compiled_by or not can_compile(model, model.network.parameters()):
            return None

        from s1_mini.families.codec_lm import compiled  # importing numba takes a moment

        family = import_module(model.compiled_by)
        weights = family.gather(model)

        def use() -> None:
            compiled.check(model, weights, family.step_of)
            self._prefill = compiled.prefilling(model, self.state, weights)
            self._compiled.activate(family.step_of(model, self.state, self._sampling, weights))

        return Compilable("frames", family.MODULE, compiled.formats_of(weights), use)

    def begin(self, begins: Sequence[Begin]) -> None:
        self._writes.run()  # an earlier utterance of a slot may have writes left
        slots, conditions = [begin.slot for begin in begins], [begin.conditions for begin in begins]
        if self._shared is not None:
            for slot in slots:
                self._shared.forget(slot)  # first, so that no slot reads this one as a prefix if a later line fails
        prompts = [begin.inputs for begin in begins]
        for name in ("temperature", "top_p", "repetition_penalty"):
            values = np.array([getattr(each.sampling, name) for each in conditions])
            self._writes.rows(getattr(self._sampling, name), slots, values)
        self._model.take(self.state, slots, conditions, self._writes)
        tokens, positions = np.stack([prompt[-1] for prompt in prompts]), [len(prompt) - 1 for prompt in prompts]
        self._model.begin(self.state, slots, tokens, positions, self._writes)
        for begin in begins:
            slot, prompt = begin.slot, begin.inputs
            numbers = self._sampling.uniforms[slot, : begin.steps]
            self._writes.uniforms(numbers, begin.conditions.seed, begin.conditions.utterance)
            self._prompts[slot], self._lengths[slot] = prompt, len(prompt)
            self._scores.begin(begin)
            self._compiled.begin(slot)

    def prefill(self, parts: Sequence[Prefill]) -> None:
        if self._reads is None and not self._model.batch_invariant:
            self._writes.run()
            for part in parts:
                tokens = torch.from_numpy(self._prompts[part.slot][part.start : part.stop].T.copy())
                if self._is_compiled(part.slot):
                    self._prefill(part.slot, tokens, part.start)
                else:
                    self._model.prefill(self.state, part.slot, tokens, part.start)
            return
        rows = np.concatenate([self._rows_of(part) for part in parts])
        most = self._sizes[-1]
        for at in range(0, len(rows), most):
            batch = rows[at : at + most]
            size = fit(self._sizes, len(batch))
            padded = np.zeros((size, rows.shape[1]), np.int64)
            padded[: len(batch)], padded[len(batch) :, -1] = batch, -1
            self._writes.first(self._to_read, padded)
            self._writes.run()
            if self._reads is None:
                self._read(size)
            else:
                self._reads.launch(size)

    def feed(self, feeds: Sequence[Feed]) -> None:
        self._writes.run()  # `begin` may have set the same texts
        for each in feeds:
            self._model.feed(self.state, each.slot, each.start, each.tokens, self._writes)

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        rows = 1 + max(slots)
        if self._steps is not None:
            self._stepping.choose(slots)
            kind = self._kind(fit(self._ladder, rows), self._positions)
            self._writes.run()
            wait = self._steps.launch(kind)
            copied = self._scores.copy(slots, self._lengths)
            self._count(slots)
            return lambda: _result(slots, wait()[0], copied())
        frames = np.zeros((rows, self._model.num_codebooks + 3), np.int64)
        if others := self._compiled.others(slots):
            self._stepping.choose(others)
            span = min(whole_spans(max(self._lengths[slot] for slot in others)), self._positions)
            kind = self._kind(1 + max(others), span)
            self._writes.run()
            frames[: 1 + max(others)] = self._run(kind, span).cpu()
        self._writes.run()
        self._compiled.fill(slots, frames)
        scores = self._scores.read(slots, self._lengths, others)
        self._count(slots)
        return lambda: _result(slots, frames, scores)

    def _count(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._lengths[slot] += 1

    def save(self, slot: int, positions: int) -> Saved:
        self._writes.run()
        saved = self.state.save(slot, positions)
        self._hold(slot, saved)
        return saved._replace(state=_Prefix(saved, self._is_compiled(slot)))

    def load(self, slot: int, saved: Saved) -> None:
        prefix: _Prefix = saved.state
        is_compiled = self._is_compiled(slot)
        if prefix.is_compiled == is_compiled:
            self.state.cache.load(slot, prefix.saved.state, self._writes)
            self._hold(slot, prefix.saved)
            return
        self.prefill([Prefill(slot, 0, saved.positions)])  # compiled and eager code round differently
        if is_compiled:  # like all later utterances
            prefix.saved, prefix.is_compiled = self.state.save(slot, saved.positions), True

    def replay(self, rows: int) -> bool:
        """Launch a captured frame of the first slots without reading it. Return whether graphs exist."""
        if self._steps is not None:
            kind = self._kind(fit(self._ladder, rows), self._positions)
            self._writes.run()
            self._steps.replay(kind)
        return self._steps is not None

    def _run(self, kind: tuple[int, bool], span: int) -> Tensor:
        rows, shares = kind
        state = self.state if shares else replace(self.state, common=None)
        if self.device.type == "cpu" and not self._scores.is_wanted:  # graphs always store the scores
            state = replace(state, kept=())
        return self._model.step(state, self._sampling, span, rows)

    def _kinds(self, rows: int) -> list[tuple[int, bool]]:
        """Return the kinds of steps for `rows` rows; reading shared prefixes is slower if there are none."""
        return [(rows, shares) for shares in (False, True) if not shares or self._may_share(rows, self._positions)]

    def _kind(self, rows: int, span: int) -> tuple[int, bool]:
        """Return the kind of step for the first `rows` slots, and update the tables of their shared prefixes."""
        return rows, self._shared is not None and self._may_share(rows, span) and self._shared.write(rows)

    def _may_share(self, rows: int, span: int) -> bool:
        """Return whether a step of this many rows would read the prefixes in `FrameState.common` once."""
        if self._shared is None or not self.shares_prefixes:
            return False
        with batch_invariance(self._model.batch_invariant):
            return reads_common(rows, self._model.config.backbone.num_kv_heads, span)

    def _is_compiled(self, slot: int) -> bool:
        return not self._compiled.others([slot])

    def _hold(self, slot: int, saved: Saved) -> None:
        """Record that a slot has a prefix; slots that loaded the same prefix are bit-equal."""
        if self._shared is not None:
            self._shared.hold(slot, saved.state[0], saved.positions)

    def _rows_of(self, part: Prefill) -> np.ndarray:
        """Return rows [n, K + 3] to prefill: tokens, slot and position."""
        items = self._prompts[part.slot][part.start : part.stop]
        slots = np.full((len(items), 1), part.slot)
        return np.concatenate((items, slots, np.arange(part.start, part.stop)[:, None]), axis=1)

    def _read(self, count: int) -> list[Tensor]:
        rows = self._to_read[:count]
        slots, positions = rows[:, -2].contiguous(), rows[:, -1].contiguous()
        self._model.prefill_rows(self.state, rows[:, :-2], slots, positions, self._positions)
        return []


@dataclass
class _Prefix:
    saved: Saved  # of the model
    is_compiled: bool  # whether compiled code, instead of torch, has computed it


def _result(slots: Sequence[int], frames: np.ndarray, scores: Scores) -> StepResult:
    """Split the frames of a step [rows, K + 3] among its slots."""
    rows = frames[list(slots)]
    stops = rows[:, -2] != 0
    counts, valid = (~stops).astype(int).tolist(), (rows[:, -1] != 0).tolist()
    return StepResult(rows[:, None, 1:-2], counts, stops.tolist(), valid, scores=scores)

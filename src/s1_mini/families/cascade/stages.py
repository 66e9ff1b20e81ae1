"""The three transformers as stages.

Semantic and coarse model: a prompt in, one token per step out. The token is the next input, without leaving the device.
A step computes all slots up to the highest active slot and attends to positions up to a multiple of `rows.SPAN`. With
these shapes, a slot's results do not depend on other slots, on a CPU even bit for bit. A CPU prefills prompts
in blocks that start at fixed positions, however a plan divides the prefill. A GPU prefills several whole prompts in one
captured graph.

Fine model: windows of frames of two codes in, frames of eight codes out, in six passes over each window. Because the
model is bidirectional, frames are computed again where windows overlap; only frames that no later window can change are
returned. A slot keeps the codes of its last window. A CPU computes windows one by one, a GPU several in one graph.

Shapes: B slots of a call, S positions, V ids; n windows of a call, T frames of a window, K codebooks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.core.messages import Begin, Prefill, StepResult
from s1_mini.families.cascade.config import NUM_COARSE, Numbers
from s1_mini.families.cascade.kernels.choose import choose, choose_plain, end_early
from s1_mini.families.cascade.network import CausalGPT, FineGPT
from s1_mini.families.cascade.policies import CoarseWindows, FinePolicy, FineWindow
from s1_mini.families.cascade.prompt import window_prompt
from s1_mini.kernels.decode_attention import used_positions
from s1_mini.kernels.ranking import MIN_TEMPERATURE
from s1_mini.layers.kv_cache import CachePositions, KVCache
from s1_mini.layers.randomness import uniforms
from s1_mini.layers.staging import Writes, stage
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs
from s1_mini.runtime.rows import CPU_ROWS, SteppingSlots, fit, ladder, padded_rows, whole_spans
from s1_mini.runtime.stage import Pending, Stage

BLOCK = 128  # positions of a prompt that a CPU prefills at once
READ_ROWS = (4, 2, 1)  # numbers of prompts that a GPU prefills at once
# Numbers of fine windows for which calls are captured, besides the maximum; the smallest call that fits is launched.
FINE_ROWS = (8, 4, 2, 1)
UTTERANCES = 1 << 32  # maximum number of utterances per request, so that the random keys of stages do not overlap


def stage_uniforms(number: int, begin: Begin, count: int, samples: int = 1) -> Tensor:
    """Return the random numbers [count, samples] of an utterance at a stage."""
    conditions = begin.conditions
    return uniforms(conditions.seed, number * UTTERANCES + conditions.utterance, count, samples)


class TokenStage(Stage):
    """A causal model for `slots` sequences of up to `positions` positions each."""

    _position_shape: tuple[int, ...] = ()  # shape of the ids of one position of a prompt
    _num_outputs: int  # number of outputs of a step per row; the last is whether the logits were finite
    _steps_an_item = 1
    _steps: StepGraphs[int] | None = None
    _reads: StepGraphs[tuple[int, int]] | None = None

    def __init__(
        self,
        network: CausalGPT,
        *,
        number: int,
        slots: int,
        positions: int,
        steps: int,
        read_sizes: Iterable[int],
        kv_dtype: torch.dtype | None,
    ) -> None:
        """`number` is the stage's index in its chain; a unit has at most `steps` steps.

        `read_sizes` are the lengths to which a GPU pads prompts.
        """
        self.device, self._network, self._number = network.device, network, number
        self.is_overlapped = self.device.type == "cuda"
        self._positions, self._slots = positions, slots
        self._read_sizes = sorted((min(size, positions) for size in read_sizes), reverse=True)
        rows = max(slots, CPU_ROWS) if self.device.type == "cpu" else slots
        config = network.config

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        with torch.inference_mode():
            # One extra position, to which idle slots write.
            self._cache = KVCache.allocate(
                layers=config.num_layers,
                slots=rows,
                heads=config.num_heads,
                positions=positions + 1,
                head_dim=config.head_dim,
                dtype=kv_dtype or network.dtype,
                device=self.device,
            )
            self._token, self._position, self._count = zeros(rows), zeros(rows), zeros(rows)
            self._active = zeros(rows, dtype=torch.bool)
            self._temperature, self._top_p = (torch.ones(rows, device=self.device) for _ in range(2))
            self._top_k = zeros(rows)
            self._uniforms = zeros(rows, steps, dtype=torch.float32)
            self._no_rotation = zeros(1, config.head_dim // 2, 2, dtype=torch.float32)  # cos 1 and sin 0
            self._no_rotation[..., 0] = 1
        self._prompts: dict[int, np.ndarray] = {}  # by slot
        self._num_read: dict[int, int] = {}
        self._lengths = [0] * rows  # by slot: number of positions of prompt and tokens
        self._writes = Writes(self.device)
        self._stepping = SteppingSlots(self._active, self._writes)
        self._ladder = ladder(slots)

    def make_graphs(self) -> None:
        self._stepping.choose(())
        self._writes.run()  # compiles its kernel

        def read(_: tuple[int, int], tokens: Tensor, slots: Tensor) -> list[Tensor]:
            self._network.read_whole(tokens, self._cache, slots)
            return []

        options = GraphOptions.of_stage(self.device, self._number)
        keys = [(rows, size) for size in self._read_sizes for rows in READ_ROWS if rows <= self._slots]
        self._reads = StepGraphs(
            read,
            keys,
            lambda key: [Buffer((*key, *self._position_shape)), Buffer((key[0],))],
            lambda _: [],
            device=self.device,
            options=replace(options, is_staged=True),
        )
        self._steps = StepGraphs(
            lambda rows: [self._step_rows(rows, self._positions)],
            self._ladder[::-1],
            lambda _: [],
            lambda rows: [Buffer((rows, self._num_outputs))],
            device=self.device,
            options=replace(options, is_ahead=True),
        )

    def _prompt(self, begin: Begin) -> np.ndarray:
        """Return all positions [S, *item] of a unit's prompt. The last position is the input of the first step."""
        return begin.inputs

    def _choose(self, logits: Tensor, rows: int) -> tuple[Tensor, list[Tensor]]:
        """Return the next input token [rows], and the outputs of the step, each [rows]."""
        raise NotImplementedError

    def _result(self, rows: np.ndarray) -> StepResult:
        """Convert the outputs [slots, outputs] of a step to its result."""
        raise NotImplementedError

    def begin(self, begins: Sequence[Begin]) -> None:
        for begin in begins:
            slot, sampling = begin.slot, begin.conditions.sampling
            prompt, used = self._prompt(begin), begin.produced * self._steps_an_item
            self._temperature[slot].fill_(sampling.temperature)  # not `=`, which would wait for the device
            self._top_p[slot].fill_(sampling.top_p)
            self._top_k[slot].fill_(sampling.top_k)
            table = stage_uniforms(self._number, begin, used + begin.steps)[used:, 0]
            self._uniforms[slot, : len(table)] = stage(table, self.device)
            self._token[slot].fill_(int(prompt[-1].flat[0]))
            self._position[slot].fill_(len(prompt) - 1)
            self._count[slot].zero_()
            self._prompts[slot], self._num_read[slot], self._lengths[slot] = prompt[:-1], 0, len(prompt)

    def prefill(self, parts: Sequence[Prefill]) -> None:
        """Prefill parts of prompts: in whole blocks without graphs; with graphs, the whole prompt at its last part."""
        if self._reads is None:
            for part in parts:
                self._read_blocks(part)
            return
        complete = [part.slot for part in parts if part.stop == len(self._prompts[part.slot])]
        while complete:
            rows = next(rows for rows in READ_ROWS if rows <= len(complete))
            now, complete = complete[:rows], complete[rows:]
            longest = max(len(self._prompts[slot]) for slot in now)
            size = min(size for size in self._read_sizes if size >= longest)
            tokens = np.zeros((rows, size, *self._position_shape), np.int64)
            for row, slot in enumerate(now):
                tokens[row, : len(self._prompts[slot])] = self._prompts[slot]
            self._reads.launch((rows, size), tokens, np.array(now))

    def _read_blocks(self, part: Prefill) -> None:
        slot, prompt = part.slot, self._prompts[part.slot]
        while self._num_read[slot] < part.stop:
            start = self._num_read[slot]
            stop = min(start + BLOCK, len(prompt))
            if stop > part.stop:
                return
            tokens = torch.from_numpy(prompt[start:stop]).unsqueeze(0).to(self.device)
            self._network.read_block(tokens, self._cache, slot, start)
            self._num_read[slot] = stop

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        self._stepping.choose(slots)
        self._writes.run()
        rows = 1 + max(slots)
        if self._steps is not None:
            wait = self._steps.launch(fit(self._ladder, rows))
            return lambda: self._result(wait()[0][list(slots)])
        rows = padded_rows(rows, len(self._token), self.device)
        longest = max(self._lengths[slot] for slot in slots)
        outputs = self._step_rows(rows, min(whole_spans(longest), self._positions)).cpu().numpy()
        for slot in slots:
            self._lengths[slot] += 1
        return lambda: self._result(outputs[list(slots)])

    def _step_rows(self, rows: int, span: int) -> Tensor:
        """Generate the next token of each active row among the first `rows`; return the outputs [rows, outputs]."""
        active = self._active[:rows]
        position = self._position[:rows].clamp_max(self._positions - 1)
        target = torch.where(active, position, self._positions)
        mask = used_positions(position, span, self._network.config.head_dim)
        at = CachePositions(target, position, span, self._no_rotation.expand(rows, -1, -1), mask)
        logits = self._network.step(self._token[:rows], self._cache, at)
        token, outputs = self._choose(logits, rows)
        valid = logits.abs().amax(-1) < float("inf")  # false for NaN
        self._token[:rows] = torch.where(active, token, self._token[:rows])
        self._position[:rows] += active
        self._count[:rows] += active
        return torch.stack([*outputs, valid.long()], dim=1)

    def _sample(self, logits: Tensor, rows: int) -> Tensor:
        """Return a sampled id for each row [rows], with the row's own parameters and random number."""
        at = self._count[:rows].clamp_max(self._uniforms.shape[1] - 1).unsqueeze(1)
        parameters = self._temperature[:rows], self._top_k[:rows], self._top_p[:rows], self._uniforms[:rows]
        if self.device.type != "cpu":
            return choose(logits, *parameters[:3], parameters[3].gather(1, at).squeeze(1))
        # `choose` sorts, which is slow on a CPU, so it only gets active rows that are not greedy.
        choice = logits.argmax(-1)
        sampled = (self._active[:rows] & (parameters[0] > MIN_TEMPERATURE)).nonzero().squeeze(1)
        if len(sampled):
            temperature, top_k, top_p, table = (each[sampled] for each in parameters)
            uniform = table.gather(1, at[sampled]).squeeze(1)
            choice[sampled] = choose(logits[sampled], temperature, top_k, top_p, uniform)
        return choice


class SemanticModel(TokenStage):
    """The semantic model: from text and a voice's semantic tokens to semantic tokens, up to the end token."""

    _position_shape, _num_outputs = (2,), 3  # ids of text and voice; outputs: token, stop, valid

    def __init__(
        self,
        network: CausalGPT,
        numbers: Numbers,
        *,
        slots: int,
        positions: int,
        min_eos_p: float,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self._numbers, self._min_eos_p = numbers, min_eos_p
        super().__init__(
            network,
            number=0,
            slots=slots,
            positions=positions,
            steps=numbers.max_semantic,
            read_sizes=[numbers.max_text],
            kv_dtype=kv_dtype,
        )

    def _choose(self, logits: Tensor, rows: int) -> tuple[Tensor, list[Tensor]]:
        end = self._numbers.semantic_size
        token = end_early(logits, self._sample(logits, rows), end, self._min_eos_p)
        return token, [token, (token == end).long()]

    def _result(self, rows: np.ndarray) -> StepResult:
        stops = rows[:, 1] != 0
        return StepResult(rows[:, :1], (~stops).astype(int).tolist(), stops.tolist(), (rows[:, 2] != 0).tolist())


class CoarseModel(TokenStage):
    """The coarse model: from semantic tokens to frames of two codes, window by window.

    Steps alternate between the two codebooks. A code in a frame is the id relative to the first id of its codebook; for
    the second codebook, it may exceed the number of codes (`CascadeConfig.num_coarse_ids`).
    """

    _num_outputs, _steps_an_item = 4, NUM_COARSE  # both codes, whether the frame is complete, valid

    def __init__(
        self, network: CausalGPT, windows: CoarseWindows, *, slots: int, kv_dtype: torch.dtype | None = None
    ) -> None:
        self._windows, self._numbers = windows, windows.numbers
        least, most = self._numbers.max_coarse_text, self._numbers.max_coarse_text + self._numbers.max_coarse_history
        with torch.inference_mode():
            self._first = torch.zeros(max(slots, CPU_ROWS), dtype=torch.int64, device=network.device)
        super().__init__(
            network,
            number=1,
            slots=slots,
            positions=min(whole_spans(windows.most_positions), network.config.block_size),
            steps=windows.most_steps,
            read_sizes={least, *range(2 * least, most, least), whole_spans(most)},
            kv_dtype=kv_dtype,
        )

    def _prompt(self, begin: Begin) -> np.ndarray:
        return window_prompt(self._windows, begin)

    def _choose(self, logits: Tensor, rows: int) -> tuple[Tensor, list[Tensor]]:
        size = self._numbers.codebook_size
        book = self._count[:rows] % NUM_COARSE
        first, second = logits[:, :size], logits[:, size:]
        first = F.pad(first, (0, second.shape[1] - size), value=-math.inf)
        of_book = torch.where((book == 0).unsqueeze(1), first, second)
        code = self._sample(of_book, rows)
        first = torch.where(book == 0, code, self._first[:rows])
        self._first[:rows] = torch.where(self._active[:rows], first, self._first[:rows])
        return code + book * size + self._numbers.semantic_size, [first, code, book]

    def _result(self, rows: np.ndarray) -> StepResult:
        return StepResult(rows[:, None, :2], rows[:, 2].tolist(), [False] * len(rows), (rows[:, 3] != 0).tolist())


@dataclass
class _Window:
    """The unit of a slot of the fine model."""

    codes: np.ndarray  # int64 [T, K], with the id `codebook_size` where no code is known
    window: FineWindow
    first: int  # first returned frame
    stop: int  # exclusive end of returned frames
    temperature: float
    uniforms: np.ndarray  # float32 [T, K - 2]


class FineModel(Stage):
    """The fine model, with one window in each slot."""

    is_overlapped = False

    def __init__(self, network: FineGPT, policy: FinePolicy, *, number: int, temperature: float) -> None:
        """`number` is the stage's index in its chain; a `temperature` of 0 chooses the most likely codes."""
        self.device, self._network, self._number = network.device, network, number
        self._numbers, self._policy, self._temperature = policy.numbers, policy, temperature
        self._begun: dict[int, _Window] = {}
        self._kept: dict[int, tuple[int, np.ndarray]] = {}  # by slot: start and codes of its last window
        self._rows: list[int] = []  # numbers of windows in captured calls
        self._graphs: StepGraphs[int] | None = None

    def make_graphs(self) -> None:
        numbers, passes = self._numbers, self._numbers.num_books - NUM_COARSE
        length, most = numbers.fine_window, self._policy.most_together(1)
        self._rows = [most, *(rows for rows in FINE_ROWS if rows < most)]
        self._graphs = StepGraphs(
            lambda _, *inputs: self._passes(*inputs),
            self._rows,
            lambda rows: [
                Buffer((rows, length, numbers.num_books)),
                Buffer((rows,)),
                Buffer((rows,), torch.float32),
                Buffer((rows, length, passes), torch.float32),
            ],
            lambda rows: [Buffer((rows, length, numbers.num_books)), Buffer((rows,), torch.bool)],
            device=self.device,
            options=replace(GraphOptions.of_stage(self.device, self._number), is_beside=True, sleeps=True),
        )

    def begin(self, begins: Sequence[Begin]) -> None:
        self._begun |= {begin.slot: self._open(begin) for begin in begins}

    def _open(self, begin: Begin) -> _Window:
        numbers, conditions = self._numbers, begin.conditions
        voice = conditions.voice.get("fine", np.zeros((0, numbers.num_books), np.int64))
        history, first = len(voice), begin.produced - begin.context  # `first`: the first frame of the inputs
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
        random = np.zeros((numbers.fine_window, numbers.num_books - NUM_COARSE), np.float32)
        if temperature:
            until = window.start + numbers.fine_window - history
            table = stage_uniforms(self._number, begin, until, random.shape[1])[max(0, until - len(random)) :].numpy()
            random[len(random) - len(table) :] = table
        start = history + begin.produced - window.start
        return _Window(codes, window, start, start + begin.consumes, temperature, random)

    def step(self, slots: Sequence[int], size: int) -> Pending:  # noqa: ARG002 - there is one size
        begun = [self._begun[slot] for slot in slots]
        calls = [[each] for each in begun] if self._graphs is None else [begun]
        outputs = [window for call in calls for window in self._compute(call)]
        values = []
        for slot, each, (codes, _) in zip(slots, begun, outputs, strict=True):
            self._kept[slot] = each.window.start, codes
            values.append(codes[each.first : each.stop])
        valid = [is_finite for _, is_finite in outputs]
        result = StepResult(values, [len(value) for value in values], [True] * len(begun), valid)
        return lambda: result

    def _compute(self, begun: list[_Window]) -> list[tuple[np.ndarray, bool]]:
        """Compute windows in one call; return the codes of each, and whether its logits were finite."""
        rows = len(begun) if self._graphs is None else min(rows for rows in self._rows if rows >= len(begun))
        padded = begun + begun[:1] * (rows - len(begun))
        inputs = (
            np.stack([each.codes for each in padded]),
            np.array([each.window.fill - each.window.start for each in padded]),
            np.array([each.temperature for each in padded], np.float32),
            np.stack([each.uniforms for each in padded]),
        )
        if self._graphs is None:
            outputs = self._passes(*(stage(torch.from_numpy(each), self.device) for each in inputs))
            codes, valid = (each.cpu().numpy() for each in outputs)
        else:
            codes, valid = self._graphs.launch(rows, *inputs)()
        return list(zip(codes, valid.tolist(), strict=True))[: len(begun)]

    def _passes(self, codes: Tensor, fill: Tensor, temperature: Tensor, uniforms: Tensor) -> list[Tensor]:
        """Return windows [n, T, K] with new codes from frame `fill` [n] on, and whether all logits were finite [n]."""
        network, count = self._network, self._numbers.num_books
        books = list(codes.unbind(-1))
        is_new = torch.arange(codes.shape[1], device=codes.device) >= fill.unsqueeze(1)
        known = network.embed(0, books[0]) + network.embed(1, books[1])
        valid = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        temperature = temperature.unsqueeze(1).expand(-1, codes.shape[1])
        for book in range(NUM_COARSE, count):
            logits = network.logits(book, known + network.embed(book, books[book]))
            valid = valid & (logits.abs().amax((1, 2)) < float("inf"))
            if self._temperature:
                choice = choose_plain(logits, temperature, uniforms[..., book - NUM_COARSE])
            else:
                choice = logits.argmax(-1)
            books[book] = torch.where(is_new, choice, books[book])
            known = known + network.embed(book, books[book])
        return [torch.stack(books, -1), valid]

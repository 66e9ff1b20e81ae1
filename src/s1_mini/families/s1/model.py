"""S1 for many sequences: prefill of prompts, then one frame a step.

Everything a step needs is on the device; nothing in it looks at a value, so it can be captured whole.
Shapes: B slots, S columns, K codebooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.core.messages import Saved
from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import CapacityError
from s1_mini.families.s1.kernels.columns import take_frame
from s1_mini.families.s1.kernels.draw import (
    WINDOW,
    MainTokens,
    RepetitionWindow,
    SamplingInputs,
    SamplingTensors,
    sample_code,
    sample_semantic,
)
from s1_mini.families.s1.network import Pairs, S1Network
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.settings import Heads, RepetitionMode
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.kernels.backend import batch_invariance
from s1_mini.kernels.common_attention import CommonPrefixes, allocate_common
from s1_mini.kernels.decode_attention import looks_at_common, used_positions
from s1_mini.kernels.linear import branch_sum
from s1_mini.layers.kv_cache import CachePositions, KVCache
from s1_mini.layers.staging import stage
from s1_mini.layers.transformer import BlockConfig, FeedForward
from s1_mini.types import Voice

CPU_ROWS = 4


@dataclass(frozen=True)
class S1State:
    """The state of B sequences. Tensors are changed in place, never replaced."""

    cache: KVCache  # slow: one column per prompt or frame column, and a last one that inactive rows write to
    fast_cache: KVCache  # fast: overwritten by every frame
    pairs: Pairs
    window: RepetitionWindow
    column: Tensor  # [B, K + 1]: what the row reads next; set by begin and step
    position: Tensor  # [B]: the column it will stand in; set by begin and step
    count: Tensor  # [B]: frames made; set by begin and step
    active: Tensor  # [B] bool: the rows that step; the others rest and keep their state
    common: CommonPrefixes | None  # rows with the same prefix, set by the caller; None if no kernel reads it

    @property
    def max_columns(self) -> int:
        return self.cache.keys.shape[3] - 1


class S1Model:
    """One loaded S1 checkpoint."""

    def __init__(
        self,
        network: S1Network,
        tokenizer: S1Tokenizer,
        *,
        heads: Heads = "restricted",
        repetition_mode: RepetitionMode = "upstream",
        kv_dtype: torch.dtype | None = None,
        batch_invariant: bool = False,
    ) -> None:
        """Prepare a network; slow keys and values are of its dtype unless `kv_dtype` is given.

        With `batch_invariant` the bits of a row do not depend on the rest of its batch.
        """
        self.network = network
        self.tokenizer = tokenizer
        self.heads = heads
        self.repetition_mode = repetition_mode
        self.num_codebooks = network.config.num_codebooks
        self.max_columns = network.config.max_seq_len
        self.end = tokenizer.control("im_end")
        self.semantic = (tokenizer.semantic_begin, tokenizer.semantic_end)
        # The restricted head's rows are the semantic tokens in order, then <|im_end|>; the full head's are all ids.
        self._main_tokens = MainTokens(
            *self.semantic, self.end, restricted=heads == "restricted", num_codes=network.config.codebook_size
        )
        self.device = network.norm.weight.device
        self.dtype = network.norm.weight.dtype
        self.kv_dtype = kv_dtype or self.dtype
        self.batch_invariant = batch_invariant and self.device.type == "cuda"  # a CPU always is
        self.num_bytes = sum(weight.numel() * weight.element_size() for weight in network.parameters())
        slow = network.config.slow
        self.position_bytes = 2 * network.config.num_layers * slow.num_kv_heads * slow.head_dim * self.kv_dtype.itemsize
        network.prepare(self.device)
        for module in network.modules():
            if isinstance(module, FeedForward):
                module.merge()

    def prompt(self, text: str, voices: Sequence[Voice] = ()) -> PromptTokens:
        """Write the prompt for one sentence piece. Raises `CapacityError` if it leaves no position for speech."""
        prompt = build_prompt(self.tokenizer, self.network.config, text, voices)
        if len(prompt.items) >= self.max_columns:
            raise CapacityError(
                f"text and references take {len(prompt.items)} positions; the model's limit is {self.max_columns}. "
                "Use shorter or fewer references."
            )
        return prompt

    def allocate(self, slots: int, columns: int) -> S1State:
        """Allocate the state of `slots` sequences of up to `columns` prompt and frame columns each."""
        config = self.network.config

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        def cache(layers: int, block: BlockConfig, columns: int, dtype: torch.dtype) -> KVCache:
            return KVCache.allocate(
                layers=layers,
                slots=slots,
                heads=block.num_kv_heads,
                columns=columns,
                head_dim=block.head_dim,
                dtype=dtype,
                device=self.device,
            )

        slow, weight = config.slow, self.network.norm.weight
        with batch_invariance(self.batch_invariant):
            common = allocate_common(slots, slow.num_heads, slow.num_kv_heads, slow.head_dim, weight)
        return S1State(
            cache=cache(config.num_layers, slow, min(columns, self.max_columns) + 1, self.kv_dtype),
            fast_cache=cache(config.num_fast_layers, config.fast, config.num_codebooks, self.dtype),
            pairs=self.network.pairs(slots),
            window=RepetitionWindow(
                zeros(slots, WINDOW, config.num_codebooks + 1), as_meant=self.repetition_mode == "fixed"
            ),
            column=zeros(slots, config.num_codebooks + 1),
            position=zeros(slots),
            count=zeros(slots),
            active=zeros(slots, dtype=torch.bool),
            common=common,
        )

    def may_share(self, rows: int, span: int) -> bool:
        """Return whether a step of this many rows would read the prefixes in `S1State.common` once."""
        with batch_invariance(self.batch_invariant):
            return looks_at_common(rows, self.network.config.slow.num_kv_heads, span)

    def prefill(self, state: S1State, slot: int, columns: Tensor, start: int = 0) -> None:
        """Read prompt columns [K + 1, n] into `slot` at columns start … start + n."""
        count = columns.shape[1]
        if count == 0:
            return
        x = self.network.embed(columns.T.to(self.device), self.semantic).unsqueeze(0)
        positions = torch.arange(start, start + count, device=self.device)
        mask = torch.arange(start + count, device=self.device) <= positions.unsqueeze(1)
        rows = slice(slot, slot + 1)
        self.network.slow(x, positions.unsqueeze(0), mask, lambda layer: state.cache.block_store(layer, rows, start))

    def prefill_rows(self, state: S1State, columns: Tensor, slots: Tensor, positions: Tensor, span: int) -> None:
        """Read N prompt columns [N, K + 1], each into its slot [N] and position [N]; rows at position -1 are padding.

        Looks at no value, so it can be captured; a prompt's columns before those must have been read, or be among them.
        """
        with batch_invariance(self.batch_invariant):
            x, where = self._enter(state, columns, positions, span, slots=slots)
            self.network.slow_step(x, state.cache, where)

    def save(self, state: S1State, slot: int, columns: int) -> Saved:
        saved = state.cache.save(slot, columns)
        return Saved(saved, columns, sum(part.numel() * part.element_size() for part in saved))

    def load(self, state: S1State, slot: int, saved: Saved) -> None:
        state.cache.load(slot, saved.state)

    def begin(self, state: S1State, slot: int, column: Tensor, position: int) -> None:
        """Put `slot` before its first step, which reads `column` [K + 1] at `position`; it rests until active."""
        state.column[slot] = stage(column, self.device)
        state.position[slot].fill_(position)  # an assignment would wait for the device
        state.count[slot].zero_()
        state.window.history[slot].zero_()

    def activate(self, state: S1State, slot: int, columns: Tensor) -> None:
        """Start generation in `slot` after prompt columns [K + 1, S], of which all but the last are read already."""
        self.begin(state, slot, columns[:, -1], columns.shape[1] - 1)
        state.active[slot].fill_(True)

    def step(self, state: S1State, sampling: SamplingTensors, span: int, rows: int | None = None) -> Tensor:
        """Generate one frame for every active row of the first `rows`, none of which may have over `span` columns.

        Returns int64 [rows, K + 3], of which only active rows mean anything: main token, K codes, whether this is the
        end of the utterance instead of a frame, whether the logits were finite.
        """
        with batch_invariance(self.batch_invariant):
            return self._step(state, sampling, span, len(state.count) if rows is None else rows)

    def _step(self, state: S1State, sampling: SamplingTensors, span: int, rows: int) -> Tensor:
        hidden, logits = self.network.sum_and_logits(*self._slow(state, span, self._width(state, rows)))
        idle = len(hidden) - rows  # computed, but not drawn for
        made = torch.empty(rows, self.num_codebooks + 3, dtype=torch.int64, device=self.device)
        inputs = SamplingInputs(SamplingTensors(*(part[:rows] for part in sampling)), state.count[:rows], state.window)

        def fill(x: Tensor) -> Tensor:
            return F.pad(x, (0, 0, 0, idle)) if idle else x

        def pick(codebook: int, logits: Tensor, embeddings: Tensor) -> Tensor:
            return fill(sample_code(logits[:rows], embeddings, made, inputs, codebook))

        first = sample_semantic(logits[:rows], self.network.fast_embeddings.weight, made, inputs, self._main_tokens)
        self.network.fast(hidden, fill(first), state.fast_cache, state.pairs, pick)
        self.advance(state, made)
        return made

    def hidden(self, state: S1State, span: int) -> Tensor:
        """Run the slow transformer over the next column of all rows; its pre-norm output [rows, dim]."""
        return branch_sum(*self._slow(state, span, len(state.count)))

    def _slow(self, state: S1State, span: int, rows: int) -> tuple[Tensor, Tensor | None]:
        x, where = self._enter(state, state.column[:rows], state.position[:rows], span, active=state.active[:rows])
        return self.network.slow_step(x, state.cache, replace(where, common=state.common))

    def _enter(
        self,
        state: S1State,
        columns: Tensor,
        position: Tensor,
        span: int,
        *,
        active: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> tuple[Tensor, CachePositions]:
        """Embed columns. Return also their places in the cache and the positions that they attend to."""
        x, target, rope = self.network.enter(columns, position, active, state.max_columns, self.semantic)
        mask = used_positions(position, span, self.network.config.slow.head_dim)
        return x, CachePositions(target, position, span, rope, mask, slots)

    def _width(self, state: S1State, rows: int) -> int:
        """Rows to compute with: on a CPU, products of one to three rows are rounded otherwise than those of more."""
        if self.device.type != "cpu":
            return rows
        return min(-(-rows // CPU_ROWS) * CPU_ROWS, len(state.count))

    def advance(self, state: S1State, frame: Tensor) -> None:
        """Take `frame` [rows, K + 1 or more], main token and codes, as what the active of the first rows just made."""
        window = state.window
        take_frame(frame, window.history, state.column, state.position, state.count, state.active, window.skipped)

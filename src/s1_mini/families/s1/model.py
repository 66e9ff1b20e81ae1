"""S1 for many sequences: prefill of prompts, then one frame per step.

A step reads no value on the host, so that a CUDA graph can capture it as a whole.
Shapes: B slots, S positions, K codebooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.core.messages import Saved
from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import CapacityError
from s1_mini.families.s1.kernels.positions import store_frame
from s1_mini.families.s1.kernels.sampling import (
    WINDOW,
    RepetitionWindow,
    SamplingInputs,
    SamplingTensors,
    SemanticTokens,
    sample_code,
    sample_semantic,
)
from s1_mini.families.s1.network import Pairs, S1Network
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.settings import Heads, RepetitionMode
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.kernels.backend import batch_invariance
from s1_mini.kernels.common_attention import CommonPrefixes, allocate_common
from s1_mini.kernels.decode_attention import reads_common, used_positions
from s1_mini.kernels.head_scores import KeptHead
from s1_mini.kernels.linear import branch_sum
from s1_mini.layers.kv_cache import CachePositions, KVCache
from s1_mini.layers.staging import stage
from s1_mini.layers.transformer import BlockConfig, FeedForward
from s1_mini.types import Voice

CPU_ROWS = 4


@dataclass(frozen=True)
class S1State:
    """The state of B sequences. Tensors are changed in place, never replaced."""

    cache: KVCache  # backbone: positions of prompt and frames, and a last one that idle rows write to
    depth_cache: KVCache  # depth transformer: overwritten by every frame
    pairs: Pairs
    window: RepetitionWindow
    tokens: Tensor  # [B, K + 1] input of the next step; set by `begin` and `step`
    position: Tensor  # [B] position of that input; set by `begin` and `step`
    count: Tensor  # [B] frames generated so far; set by `begin` and `step`
    active: Tensor  # [B] bool: rows that take part in a step; idle rows keep their state
    common: CommonPrefixes | None  # rows with the same prefix, set by the caller; None if no kernel supports it
    kept: Sequence[KeptHead]  # alignment heads, and their scores at the last step

    @property
    def max_positions(self) -> int:
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
        """Prepare a network; the backbone's keys and values have its dtype unless `kv_dtype` is given.

        With `batch_invariant` the bits of a row do not depend on the rest of its batch.
        """
        self.network = network
        self.tokenizer = tokenizer
        self.heads = heads
        self.repetition_mode = repetition_mode
        self.num_codebooks = network.config.num_codebooks
        self.kept_heads = [head for head in (network.config.alignment,) if head is not None]
        self.max_positions = network.config.max_seq_len
        self.end = tokenizer.control("im_end")
        self.semantic = (tokenizer.semantic_begin, tokenizer.semantic_end)
        # The restricted head's rows are the semantic tokens in order, then <|im_end|>; the full head's are all ids.
        self._semantic_tokens = SemanticTokens(
            *self.semantic, self.end, restricted=heads == "restricted", num_codes=network.config.codebook_size
        )
        self.device = network.norm.weight.device
        self.dtype = network.norm.weight.dtype
        self.kv_dtype = kv_dtype or self.dtype
        self.batch_invariant = batch_invariant and self.device.type == "cuda"  # a CPU always is
        self.num_bytes = sum(weight.numel() * weight.element_size() for weight in network.parameters())
        backbone = network.config.backbone
        self.position_bytes = (
            2 * network.config.num_layers * backbone.num_kv_heads * backbone.head_dim * self.kv_dtype.itemsize
        )
        network.prepare(self.device)
        for module in network.modules():
            if isinstance(module, FeedForward):
                module.merge()

    def prompt(self, text: str, voices: Sequence[Voice] = ()) -> PromptTokens:
        """Build the prompt for one sentence piece. Raises `CapacityError` if it leaves no position for speech."""
        prompt = build_prompt(self.tokenizer, self.network.config, text, voices)
        if len(prompt.items) >= self.max_positions:
            raise CapacityError(
                f"text and references take {len(prompt.items)} positions; the model's limit is {self.max_positions}. "
                "Use shorter or fewer references."
            )
        return prompt

    def allocate(self, slots: int, positions: int, kept: Sequence[AlignmentHead] | None = None) -> S1State:
        """Allocate the state of `slots` sequences of up to `positions` positions of prompt and frames each.

        The scores of the attention heads `kept` are kept; by default, of the one that config.json names.
        """
        config = self.network.config

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        def cache(layers: int, block: BlockConfig, positions: int, dtype: torch.dtype) -> KVCache:
            return KVCache.allocate(
                layers=layers,
                slots=slots,
                heads=block.num_kv_heads,
                positions=positions,
                head_dim=block.head_dim,
                dtype=dtype,
                device=self.device,
            )

        backbone, weight = config.backbone, self.network.norm.weight
        with batch_invariance(self.batch_invariant):
            common = allocate_common(slots, backbone.num_heads, backbone.num_kv_heads, backbone.head_dim, weight)
        shape = slots, min(positions, self.max_positions) + 1
        heads = self.kept_heads if kept is None else kept
        return S1State(
            cache=cache(config.num_layers, backbone, min(positions, self.max_positions) + 1, self.kv_dtype),
            depth_cache=cache(config.num_depth_layers, config.depth, config.num_codebooks, self.dtype),
            pairs=self.network.pairs(slots),
            window=RepetitionWindow(
                zeros(slots, WINDOW, config.num_codebooks + 1), is_fixed=self.repetition_mode == "fixed"
            ),
            tokens=zeros(slots, config.num_codebooks + 1),
            position=zeros(slots),
            count=zeros(slots),
            active=zeros(slots, dtype=torch.bool),
            common=common,
            kept=[KeptHead(each.layer, each.head, zeros(*shape, dtype=torch.float32)) for each in heads],
        )

    def may_share(self, rows: int, span: int) -> bool:
        """Return whether a step of this many rows would read the prefixes in `S1State.common` once."""
        with batch_invariance(self.batch_invariant):
            return reads_common(rows, self.network.config.backbone.num_kv_heads, span)

    def prefill(self, state: S1State, slot: int, tokens: Tensor, start: int = 0) -> None:
        """Prefill prompt tokens [K + 1, n] in `slot` at positions start … start + n."""
        count = tokens.shape[1]
        if count == 0:
            return
        x = self.network.embed(tokens.T.to(self.device), self.semantic).unsqueeze(0)
        positions = torch.arange(start, start + count, device=self.device)
        mask = torch.arange(start + count, device=self.device) <= positions.unsqueeze(1)
        rows = slice(slot, slot + 1)
        self.network.backbone(
            x, positions.unsqueeze(0), mask, lambda layer: state.cache.block_store(layer, rows, start)
        )

    def prefill_rows(self, state: S1State, tokens: Tensor, slots: Tensor, positions: Tensor, span: int) -> None:
        """Prefill N positions of prompts: tokens [N, K + 1], slots [N] and positions [N]; position -1 is padding.

        Reads no value on the host, so it can be captured. Earlier positions of a prompt must be prefilled already, or
        be among these.
        """
        with batch_invariance(self.batch_invariant):
            x, where = self._embed(state, tokens, positions, span, slots=slots)
            self.network.backbone_step(x, state.cache, where)

    def save(self, state: S1State, slot: int, positions: int) -> Saved:
        saved = state.cache.save(slot, positions)
        return Saved(saved, positions, sum(part.numel() * part.element_size() for part in saved))

    def load(self, state: S1State, slot: int, saved: Saved) -> None:
        state.cache.load(slot, saved.state)

    def begin(self, state: S1State, slot: int, tokens: Tensor, position: int) -> None:
        """Prepare `slot` for its first step, with `tokens` [K + 1] at `position`; it is idle until it is active."""
        state.tokens[slot] = stage(tokens, self.device)
        state.position[slot].fill_(position)  # an assignment would wait for the device
        state.count[slot].zero_()
        state.window.history[slot].zero_()

    def activate(self, state: S1State, slot: int, tokens: Tensor) -> None:
        """Start generation in `slot` after a prompt [K + 1, S] that is prefilled except for its last position."""
        self.begin(state, slot, tokens[:, -1], tokens.shape[1] - 1)
        state.active[slot].fill_(True)

    def step(self, state: S1State, sampling: SamplingTensors, span: int, rows: int | None = None) -> Tensor:
        """Generate one frame for every active row of the first `rows`, each with at most `span` positions.

        Returns int64 [rows, K + 3], valid for active rows: semantic token, K codes, whether this is the end of the
        utterance instead of a frame, whether the logits were finite.
        """
        with batch_invariance(self.batch_invariant):
            return self._step(state, sampling, span, len(state.count) if rows is None else rows)

    def _step(self, state: S1State, sampling: SamplingTensors, span: int, rows: int) -> Tensor:
        hidden, logits = self.network.sum_and_logits(*self._backbone(state, span, self._width(state, rows)))
        padding = len(hidden) - rows  # rows that are computed but not sampled
        frames = torch.empty(rows, self.num_codebooks + 3, dtype=torch.int64, device=self.device)
        inputs = SamplingInputs(SamplingTensors(*(part[:rows] for part in sampling)), state.count[:rows], state.window)

        def fill(x: Tensor) -> Tensor:
            return F.pad(x, (0, 0, 0, padding)) if padding else x

        def pick(codebook: int, logits: Tensor, embeddings: Tensor) -> Tensor:
            return fill(sample_code(logits[:rows], embeddings, frames, inputs, codebook))

        first = sample_semantic(
            logits[:rows], self.network.fast_embeddings.weight, frames, inputs, self._semantic_tokens
        )
        self.network.depth(hidden, fill(first), state.depth_cache, state.pairs, pick)
        self.advance(state, frames)
        return frames

    def hidden(self, state: S1State, span: int) -> Tensor:
        """Run the backbone on the next position of all rows; its pre-norm output [rows, dim]."""
        return branch_sum(*self._backbone(state, span, len(state.count)))

    def _backbone(self, state: S1State, span: int, rows: int) -> tuple[Tensor, Tensor | None]:
        x, where = self._embed(state, state.tokens[:rows], state.position[:rows], span, active=state.active[:rows])
        return self.network.backbone_step(x, state.cache, replace(where, common=state.common, kept=state.kept))

    def _embed(
        self,
        state: S1State,
        tokens: Tensor,
        position: Tensor,
        span: int,
        *,
        active: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> tuple[Tensor, CachePositions]:
        """Embed tokens. Also return their cache positions and the positions that they attend to."""
        x, target, rope = self.network.embed_positions(tokens, position, active, state.max_positions, self.semantic)
        mask = used_positions(position, span, self.network.config.backbone.head_dim)
        return x, CachePositions(target, position, span, rope, mask, slots)

    def _width(self, state: S1State, rows: int) -> int:
        """Number of rows to compute: on a CPU, products of one to three rows round differently from larger ones."""
        if self.device.type != "cpu":
            return rows
        return min(-(-rows // CPU_ROWS) * CPU_ROWS, len(state.count))

    def advance(self, state: S1State, frame: Tensor) -> None:
        """Store `frame` [rows, K + 1 or more], semantic token and codes, as the next input of the active rows."""
        window = state.window
        store_frame(frame, window.history, state.tokens, state.position, state.count, state.active, window.skipped)

"""A codec language model for many sequences: prefill of prompts, then one frame per step.

A step reads no value on the host, so that a CUDA graph can capture it as a whole.
Shapes: B slots, S positions, K codebooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.core.messages import Conditions, Saved
from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import CapacityError
from s1_mini.families.codec_lm.network import FrameNetwork, Pairs
from s1_mini.kernels.backend import batch_invariance
from s1_mini.kernels.common_attention import CommonPrefixes, allocate_common
from s1_mini.kernels.decode_attention import used_positions
from s1_mini.kernels.head_scores import KeptHead
from s1_mini.kernels.linear import branch_sum
from s1_mini.kernels.positions import Embedding, embed, embed_positions
from s1_mini.layers.kv_cache import CachePositions, KVCache
from s1_mini.layers.staging import Writes
from s1_mini.layers.transformer import BlockConfig, FeedForward
from s1_mini.runtime.rows import padded_rows


class SamplingTensors(NamedTuple):
    """Sampling parameters of B rows, on the device."""

    temperature: Tensor  # [B]
    top_p: Tensor  # [B]
    repetition_penalty: Tensor  # [B]
    uniforms: Tensor  # [B, frames, K or more] in [0, 1)


@dataclass(frozen=True)
class FrameState:
    """The state of B sequences. Tensors are changed in place, never replaced."""

    cache: KVCache  # backbone: positions of prompt and frames, and a last one that idle rows write to
    depth_cache: KVCache  # depth transformer: overwritten by every frame
    pairs: Pairs
    tokens: Tensor  # [B, K + 1] input of the next step; set by `begin` and `step`
    position: Tensor  # [B] position of that input; set by `begin` and `step`
    count: Tensor  # [B] frames generated so far; set by `begin` and `step`
    active: Tensor  # [B] bool: rows that take part in a step; idle rows keep their state
    common: CommonPrefixes | None  # rows with the same prefix, set by the caller; None if no kernel supports it
    kept: Sequence[KeptHead]  # alignment heads, and their scores at the last step

    @property
    def max_positions(self) -> int:
        return self.cache.keys.shape[3] - 1

    def save(self, slot: int, positions: int) -> Saved:
        saved = self.cache.save(slot, positions)
        return Saved(saved, positions, sum(part.numel() * part.element_size() for part in saved))


State = TypeVar("State", bound=FrameState)


class FrameModel(Generic[State]):
    """One loaded checkpoint. Families add the state of sampling and the sampling itself."""

    compiled_by: ClassVar[str] = ""  # module with `MODULE`, `gather` and `step_of`, for frames compiled for a CPU

    def __init__(
        self,
        network: FrameNetwork,
        embedding: Embedding,
        *,
        kv_dtype: torch.dtype | None,
        batch_invariant: bool,
    ) -> None:
        """Prepare a network; the backbone's keys and values have its dtype unless `kv_dtype` is given.

        With `batch_invariant` the bits of a row do not depend on the rest of its batch.
        """
        config = network.config
        self.num_codebooks, self.max_positions = config.num_codebooks, config.max_seq_len
        self.num_uniforms = config.num_codebooks  # random numbers per frame
        self.kept_heads: Sequence[AlignmentHead] = [head for head in (config.alignment,) if head is not None]
        self.device = network.norm.weight.device
        self.dtype = network.norm.weight.dtype
        self.kv_dtype = kv_dtype or self.dtype
        self.batch_invariant = batch_invariant and self.device.type == "cuda"  # on a CPU, no row depends on its batch
        self.num_bytes = sum(weight.numel() * weight.element_size() for weight in network.parameters())
        backbone = config.backbone
        self.text_heads = config.num_layers, backbone.num_heads
        self.position_bytes = 2 * config.num_layers * backbone.num_kv_heads * backbone.head_dim * self.kv_dtype.itemsize
        self.network, self.config, self.embedding = network, config, embedding
        for module in network.modules():
            if isinstance(module, FeedForward):
                module.merge()

    def check_length(self, prompt: PromptTokens) -> PromptTokens:
        """Return a prompt. Raises `CapacityError` if it leaves no position for speech."""
        if len(prompt.items) >= self.max_positions:
            raise CapacityError(
                f"{prompt.excess(f'the model has {self.max_positions} for the prompt and the speech')}."
            )
        return prompt

    def allocate(self, slots: int, positions: int, kept: Sequence[AlignmentHead] | None = None) -> State:
        """Allocate the state of `slots` sequences of up to `positions` positions of prompt and frames each.

        The state stores the scores of the attention heads `kept`; by default, of the head that config.json names.
        """
        raise NotImplementedError

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _common_state(self, slots: int, positions: int, kept: Sequence[AlignmentHead] | None) -> dict[str, Any]:
        """Allocate the fields of `FrameState`, by name."""
        config = self.config

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
        return {
            "cache": cache(config.num_layers, backbone, min(positions, self.max_positions) + 1, self.kv_dtype),
            "depth_cache": cache(config.num_depth_layers, config.depth, config.num_codebooks, self.dtype),
            "pairs": self.network.pairs(slots),
            "tokens": self._zeros(slots, config.num_codebooks + 1),
            "position": self._zeros(slots),
            "count": self._zeros(slots),
            "active": self._zeros(slots, dtype=torch.bool),
            "common": common,
            "kept": [KeptHead(each.layer, each.head, self._zeros(*shape, dtype=torch.float32)) for each in heads],
        }

    def prefill(self, state: State, slot: int, tokens: Tensor, start: int = 0) -> None:
        """Prefill prompt tokens [K + 1, n] in `slot`, from position `start` on."""
        count = tokens.shape[1]
        if count == 0:
            return
        x = self.embed_prompt(state, slot, tokens.T).unsqueeze(0)
        positions = torch.arange(start, start + count, device=self.device)
        mask = torch.arange(start + count, device=self.device) <= positions.unsqueeze(1)
        rows = slice(slot, slot + 1)
        self.network.backbone(
            x, positions.unsqueeze(0), mask, lambda layer: state.cache.block_store(layer, rows, start)
        )

    def embed_prompt(self, state: State, slot: int, tokens: Tensor) -> Tensor:
        """Embed tokens [n, K + 1] of the prompt in `slot`: [n, dim]."""
        tokens = tokens.to(self.device)
        slots = torch.full((len(tokens),), slot, device=self.device)
        return self._condition(state, embed(tokens, self.embedding), tokens, slots)

    def prefill_rows(self, state: State, tokens: Tensor, slots: Tensor, positions: Tensor, span: int) -> None:
        """Prefill N positions of prompts: tokens [N, K + 1], slots [N] and positions [N]; position -1 is padding.

        Reads no value on the host, so it can be captured. Earlier positions of a prompt must be prefilled already, or
        be among the N positions. A GPU is faster if the positions of a slot are side by side.
        """
        with batch_invariance(self.batch_invariant):
            x, where = self._embed(state, tokens, positions, span, slots=slots)
            self.network.backbone_step(self._condition(state, x, tokens, slots), state.cache, where)

    def _condition(self, state: State, x: Tensor, tokens: Tensor, slots: Tensor) -> Tensor:  # noqa: ARG002
        """Return the embeddings x [N, dim] of prompt `tokens` [N, K + 1], plus vectors of their `slots` [N], if any."""
        return x

    def begin(
        self, state: State, slots: Sequence[int], tokens: np.ndarray, positions: Sequence[int], writes: Writes
    ) -> None:
        """Prepare `slots` [n] for their first steps, with `tokens` [n, K + 1] at `positions` [n].

        The caller sets `state.active`.
        """
        writes.rows(state.tokens, slots, tokens)
        writes.rows(state.position, slots, np.array(positions))
        writes.rows(state.count, slots, np.zeros(1, np.int64))

    def take(self, state: State, slots: Sequence[int], conditions: Sequence[Conditions], writes: Writes) -> None:
        """Store further conditions of the requests in `slots`; by default, there are none."""

    def feed(self, state: State, slot: int, start: int, tokens: np.ndarray, writes: Writes) -> None:
        """Store text tokens [n] for the steps of a slot from `start` on; for families that read one token per step."""
        raise NotImplementedError

    def activate(self, state: State, slot: int, tokens: Tensor) -> None:
        """Start generation in `slot` after a prompt [K + 1, S] that is prefilled except for its last position."""
        writes = Writes(self.device)
        self.begin(state, [slot], tokens[:, -1:].T.cpu().numpy(), [tokens.shape[1] - 1], writes)
        writes.run()
        state.active[slot].fill_(True)

    def step(self, state: State, sampling: SamplingTensors, span: int, rows: int | None = None) -> Tensor:
        """Generate one frame for every active row of the first `rows`, each with at most `span` positions.

        Returns int64 [rows, K + 3], valid for active rows: token of the next position, K codes, whether this is the end
        of the utterance instead of a frame, whether the logits were finite.
        """
        with batch_invariance(self.batch_invariant):
            return self._step(state, sampling, span, len(state.count) if rows is None else rows)

    def _step(self, state: State, sampling: SamplingTensors, span: int, rows: int) -> Tensor:
        hidden, logits = self.network.sum_and_logits(
            *self._backbone(state, span, padded_rows(rows, len(state.count), self.device))
        )
        padding = len(hidden) - rows  # rows that are computed but not sampled
        frames = torch.empty(rows, self.num_codebooks + 3, dtype=torch.int64, device=self.device)

        def fill(x: Tensor) -> Tensor:
            return F.pad(x, (0, 0, 0, padding)) if padding else x

        def pick(codebook: int, logits: Tensor, embeddings: Tensor) -> Tensor:
            sampled = self._sample(codebook, logits[:rows], embeddings, frames=frames, state=state, sampling=sampling)
            return fill(sampled)

        first = pick(0, logits, self.network.depth_embeddings(0))
        self.network.depth(hidden, first, state.depth_cache, state.pairs, pick)
        self.advance(state, frames)
        return frames

    def _sample(
        self,
        codebook: int,
        logits: Tensor,
        embeddings: Tensor,
        *,
        frames: Tensor,
        state: State,
        sampling: SamplingTensors,
    ) -> Tensor:
        """Sample the code of `codebook` of each row from `logits` [rows, V], which may be overwritten.

        Codebook 0 also decides the end. Stores the codes in `frames`, which has the format of `step`'s result, and
        returns their embeddings [rows, dim], from `embeddings` [codes, dim].
        """
        raise NotImplementedError

    def advance(self, state: State, frame: Tensor) -> None:
        """Store `frame` [rows, K + 1 or more], token and codes, as the next input of the active rows."""
        raise NotImplementedError

    def hidden(self, state: State, span: int) -> Tensor:
        """Run the backbone on the next position of all rows; return its pre-norm output [rows, dim]."""
        return branch_sum(*self._backbone(state, span, len(state.count)))

    def _backbone(self, state: State, span: int, rows: int) -> tuple[Tensor, Tensor | None]:
        x, where = self._embed(state, state.tokens[:rows], state.position[:rows], span, active=state.active[:rows])
        return self.network.backbone_step(x, state.cache, replace(where, common=state.common, kept=state.kept))

    def _embed(
        self,
        state: State,
        tokens: Tensor,
        position: Tensor,
        span: int,
        *,
        active: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> tuple[Tensor, CachePositions]:
        """Embed tokens. Also return their cache positions and the positions that they attend to."""
        x, target, rope = embed_positions(
            tokens, position, active, state.max_positions, self.embedding, self.network.rope
        )
        mask = used_positions(position, span, self.config.backbone.head_dim)
        return x, CachePositions(target, position, span, rope, mask, slots, is_prompt=slots is not None)

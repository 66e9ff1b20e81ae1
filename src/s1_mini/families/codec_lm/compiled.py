"""Frames and prefill as compiled calls on a CPU: weights and state for `kernels/compiled/frame.py`, and a check.

Shapes: K codebooks, T tables of the depth transformer, V codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from s1_mini.alignment.head import AlignmentHead
from s1_mini.families.codec_lm.model import FrameModel, FrameState, SamplingTensors
from s1_mini.kernels.compiled import frame
from s1_mini.kernels.compiled.frame import State, Weights
from s1_mini.kernels.compiled.layers import Layers
from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import Weight, is_close, pack
from s1_mini.layers.quantized import pack_linears
from s1_mini.layers.transformer import BlockConfig, TransformerBlock
from s1_mini.runtime.compiled import Step

Prefill = Callable[[int, Tensor, int], None]  # called with slot, tokens [K + 1, n] and the first position

CHECKS = 4  # number of random inputs that `check` tries
TOLERANCE, INT8_TOLERANCE = 1e-4, 0.1  # allowed difference from torch, relative to the largest number


def prefilling(model: FrameModel[Any], state: FrameState, weights: Weights) -> Prefill:
    """Return a compiled function that does the same as `model.prefill` with this state."""
    arrays = shared(state)

    def prefill(slot: int, tokens: Tensor, start: int) -> None:
        x = model.embed_prompt(state, slot, tokens.T).contiguous()
        frame.prefill(x.numpy(), slot, start, arrays, weights)

    return prefill


def shared(state: FrameState) -> State:
    """Return arrays that share the memory of a state."""
    kept = state.kept[0].scores if state.kept else torch.zeros(1, 1)
    caches = state.cache.keys, state.cache.values, state.depth_cache.keys, state.depth_cache.values
    tensors = *caches, state.tokens, state.position, state.count, kept
    return State(*(tensor.numpy() for tensor in tensors))


def formats_of(weights: Weights) -> list[str]:
    """Return the formats of all products, in the order of `frame.weights_of`."""
    formats: list[str] = []
    for field in weights:
        parts = field if isinstance(field, Layers) else (field,)
        formats += [part.weight.dtype.name for part in parts if isinstance(part, Product)]
    return formats


def check(model: FrameModel[Any], weights: Weights, step_of: Callable[..., Step]) -> None:
    """Compare compiled frames with torch's frames. Raises `RuntimeError` if they differ.

    It is enough if one of several random inputs gives the same codes, keys and values, because codes may differ where
    two tokens are almost equally likely. With int8 weights, torch also rounds the inputs of products, so that only the
    keys and values of the backbone are compared, with a larger tolerance.
    """
    generator = np.random.default_rng(0)
    is_quantized = any(weight.dtype == torch.int8 for weight in model.network.parameters())
    for _ in range(CHECKS):
        tokens = generator.integers(0, weights.num_codes, model.num_codebooks + 1)
        tokens[0] = weights.with_codes[0]
        plain, compiled = (first_frame(model, torch.from_numpy(tokens), each, step_of) for each in (None, weights))
        if is_quantized:
            plain, compiled = plain[1:3], compiled[1:3]  # keys and values of the backbone
        elif not torch.equal(plain[0], compiled[0]):
            continue
        if all(
            is_close(*pair, INT8_TOLERANCE if is_quantized else TOLERANCE) for pair in zip(plain, compiled, strict=True)
        ):
            return
    raise RuntimeError("a compiled frame does not match torch's")


def first_frame(
    model: FrameModel[Any], tokens: Tensor, weights: Weights | None, step_of: Callable[..., Step]
) -> list[Tensor]:
    """Return the frame after two positions, then keys and values; computed by torch if `weights` is None."""
    with torch.inference_mode():
        state = model.allocate(1, 2)
        parameters = torch.tensor([[1.5], [1e-5], [0.9]])
        sampling = SamplingTensors(
            parameters[1], parameters[2], parameters[0], torch.full((1, 2, model.num_uniforms), 0.5)
        )
        prompt = tokens.unsqueeze(1)
        model.activate(state, 0, prompt.repeat(1, 2))
        if weights is None:
            model.prefill(state, 0, prompt)
            found = model.step(state, sampling, 2)
        else:
            prefilling(model, state, weights)(0, prompt, 0)
            found = torch.from_numpy(step_of(model, state, sampling, weights)([0]))
    caches = state.cache, state.depth_cache
    return [found.double(), *(part for cache in caches for part in (cache.keys, cache.values))]


def gather(model: FrameModel[Any], depth_embeddings: Tensor, depth_heads: Sequence[Weight]) -> Weights:
    """Copy the weights of a model into the layout of compiled frames; `depth_embeddings` are [T, V, dim]."""
    network, config, embedding = model.network, model.config, model.embedding
    project = network.fast_project_in
    return Weights(
        token_table=_plain(embedding.token_table),
        code_table=_plain(embedding.code_table),
        with_codes=embedding.semantic,
        rope=_plain(network.rope),
        backbone=_layers(network.blocks(network.layers), config.backbone, config.alignment),
        norm=_plain(network.norm.weight),
        output=pack_linears(network.output),
        project_in=pack_linears(*[project] if isinstance(project, nn.Linear) else []),
        depth_embeddings=_plain(depth_embeddings),
        depth_rope=_plain(network.depth_rope),
        depth=_layers(network.blocks(network.fast_layers), config.depth),
        depth_norm=_plain(network.fast_norm.weight),
        depth_output=pack(depth_heads, [None] * len(depth_heads)),
        norms_depth_input=config.norm_fastlayer_input,
        num_codes=embedding.book_size(config.num_codebooks),
        code_scale=math.sqrt(config.num_codebooks + 1) if embedding.scaled else 1.0,
        eps=network.norm.eps,
        depth_eps=network.fast_norm.eps,
    )


def _plain(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _layers(blocks: Sequence[TransformerBlock], config: BlockConfig, kept: AlignmentHead | None = None) -> Layers:
    attentions, feeds = [block.attention for block in blocks], [block.feed_forward for block in blocks]
    norms = [torch.stack((each.q_norm.weight, each.k_norm.weight)) for each in attentions] if config.qk_norm else []
    return Layers(
        attention_norm=_plain(torch.stack([block.attention_norm.weight for block in blocks])),
        qkv=pack_linears(*(each.wqkv for each in attentions)),
        head_norms=_plain(torch.stack(norms)) if norms else np.zeros((0, 2, config.head_dim), np.float32),
        out=pack_linears(*(each.wo for each in attentions)),
        ffn_norm=_plain(torch.stack([block.ffn_norm.weight for block in blocks])),
        both=pack([each.both for each in feeds if each.both is not None], [None] * len(feeds)),
        down=pack_linears(*(each.w2 for each in feeds)),
        num_heads=config.num_heads,
        eps=config.norm_eps,
        kept_layer=-1 if kept is None else kept.layer,
        kept_head=0 if kept is None else kept.head,
    )

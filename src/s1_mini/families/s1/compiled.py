"""A frame of S1 as one compiled call on a CPU (`kernels/frame.py`): its weights and its state."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from s1_mini.families.s1.kernels import frame
from s1_mini.families.s1.kernels.draw import SamplingTensors
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.families.s1.network import S1Network
from s1_mini.kernels.compiled.layers import Layers
from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import is_close, pack
from s1_mini.layers.quantized import QuantizedLinear
from s1_mini.layers.transformer import BlockConfig, TransformerBlock

MODULE = frame.__name__
CHECKS = 4  # columns to try
CLOSE, ROUNDED = 1e-4, 0.1  # shares that numbers may differ by


class CompiledFrames:
    """Compiled frames on a state that it shares with torch."""

    def __init__(self, model: S1Model, state: S1State, sampling: SamplingTensors, weights: frame.Weights) -> None:
        self._weights, self._books = weights, model.num_codebooks
        self._rules = frame.Rules(
            *model.semantic,
            model.end,
            model.network.config.codebook_size,
            model.heads == "restricted",
            state.window.as_meant,
        )
        shared = (
            state.cache.keys,
            state.cache.values,
            state.fast_cache.keys,
            state.fast_cache.values,
            state.window.history,
            state.column,
            state.position,
            state.count,
            sampling.repetition_penalty,
            sampling.temperature,
            sampling.top_p,
            sampling.uniforms,
        )
        self._state = frame.State(*(tensor.numpy() for tensor in shared))

    def step(self, slots: Sequence[int]) -> np.ndarray:
        """Return a frame of each slot: int64 [slots, K + 3], rows as in `S1Model.step`."""
        made = np.zeros((len(slots), self._books + 3), np.int64)
        frame.make_frame(np.array(slots, np.int64), self._state, self._weights, self._rules, made)
        return made


def formats_of(weights: frame.Weights) -> list[str]:
    """Return the formats of all products, in the order of `frame.compile_for`."""
    found: list[str] = []
    for field in weights:
        parts = field if isinstance(field, Layers) else (field,)
        found += [part.weight.dtype.name for part in parts if isinstance(part, Product)]
    return found


def check(model: S1Model, weights: frame.Weights) -> None:
    """Compare a compiled frame with torch's. Raises `RuntimeError` if they are not the same.

    Two tokens that are equally likely may fall otherwise: one of some columns must give the same codes and numbers. In
    int8 torch rounds what it multiplies, and the codes may be others.
    """
    numbers = np.random.default_rng(0)
    is_rounded = any(isinstance(module, QuantizedLinear) for module in model.network.modules())
    for _ in range(CHECKS):
        column = numbers.integers(0, model.network.config.codebook_size, model.num_codebooks + 1)
        column[0] = model.semantic[0]
        plain, compiled = (_first_frame(model, torch.from_numpy(column), each) for each in (None, weights))
        if is_rounded:
            plain, compiled = plain[1:3], compiled[1:3]  # keys and values of the backbone
        elif not torch.equal(plain[0], compiled[0]):
            continue
        if all(is_close(*pair, ROUNDED if is_rounded else CLOSE) for pair in zip(plain, compiled, strict=True)):
            return
    raise RuntimeError("a compiled frame does not match torch's")


def _first_frame(model: S1Model, column: Tensor, weights: frame.Weights | None) -> list[Tensor]:
    """Return the frame after one column, and the keys and values, computed by torch or with compiled weights."""
    with torch.inference_mode():
        state = model.allocate(1, 1)
        parameters = torch.tensor([[1.5], [1e-5], [0.9]])
        sampling = SamplingTensors(
            parameters[1], parameters[2], parameters[0], torch.full((1, 2, model.num_codebooks), 0.5)
        )
        model.begin(state, 0, column, 0)
        state.active[0] = True
        if weights is None:
            made = model.step(state, sampling, 1)
        else:
            made = torch.from_numpy(CompiledFrames(model, state, sampling, weights).step([0]))
    kept = state.cache.keys[..., :1, :], state.cache.values[..., :1, :], state.fast_cache.keys, state.fast_cache.values
    return [made.double(), *kept]


def gather(model: S1Model) -> frame.Weights:
    """Copy the weights of a model into the layout of a compiled frame."""
    network, config = model.network, model.network.config
    project = network.fast_project_in
    return frame.Weights(
        main=_plain(network.embeddings.weight),
        codes=_plain(network.codebook_embeddings.weight),
        rope=_plain(network.rope),
        slow=_layers(network, network.layers, config.slow),
        norm=_plain(network.norm.weight),
        output=_product(network.output),
        project_in=_product(*[project] if isinstance(project, nn.Linear) else []),
        fast_embeddings=_plain(network.fast_embeddings.weight),
        fast_rope=_plain(network.fast_rope),
        fast=_layers(network, network.fast_layers, config.fast),
        fast_norm=_plain(network.fast_norm.weight),
        fast_output=_product(network.fast_output),
        norms_fast_input=config.norm_fastlayer_input,
        code_scale=math.sqrt(config.num_codebooks + 1) if config.scale_codebook_embeddings else 1.0,
        eps=network.norm.eps,
        fast_eps=network.fast_norm.eps,
    )


def _plain(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _product(*layers: nn.Module) -> Product:
    """Pack linear layers, quantized or not; none of them is a stack of no layers."""
    if not layers:
        nothing = np.zeros((0, 0), np.float32)
        return Product(np.zeros((0, 0, 0), np.float32), nothing, nothing)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear | QuantizedLinear)]
    return pack([each.weight for each in linears], [each.bias for each in linears])


def _layers(network: S1Network, layers: nn.ModuleList, config: BlockConfig) -> Layers:
    blocks: list[TransformerBlock] = network.blocks(layers)
    attentions, feeds = [block.attention for block in blocks], [block.feed_forward for block in blocks]
    norms = [torch.stack((each.q_norm.weight, each.k_norm.weight)) for each in attentions] if config.qk_norm else []
    return Layers(
        attention_norm=_plain(torch.stack([block.attention_norm.weight for block in blocks])),
        qkv=_product(*(each.wqkv for each in attentions)),
        head_norms=_plain(torch.stack(norms)) if norms else np.zeros((0, 2, config.head_dim), np.float32),
        out=_product(*(each.wo for each in attentions)),
        ffn_norm=_plain(torch.stack([block.ffn_norm.weight for block in blocks])),
        both=pack([each.both for each in feeds if each.both is not None], [None] * len(feeds)),
        down=_product(*(each.w2 for each in feeds)),
        num_heads=config.num_heads,
        eps=config.norm_eps,
    )

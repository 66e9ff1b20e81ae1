"""A frame of S1 as one compiled call on a CPU: weights and state for `kernels/frame.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from s1_mini.alignment.head import AlignmentHead
from s1_mini.families.codec_lm.sampling import SamplingTensors
from s1_mini.families.s1.kernels import frame
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.families.s1.network import S1Network
from s1_mini.kernels.compiled.layers import Layers
from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import is_close, pack
from s1_mini.layers.quantized import QuantizedLinear
from s1_mini.layers.transformer import BlockConfig, TransformerBlock

MODULE = frame.__name__
CHECKS = 4  # number of random inputs that `check` tries
TOLERANCE, INT8_TOLERANCE = 1e-4, 0.1  # allowed difference from torch, relative to the largest number


class CompiledFrames:
    """Generates frames with compiled code, which changes the tensors of `state` in place, as torch's steps do."""

    def __init__(self, model: S1Model, state: S1State, sampling: SamplingTensors, weights: frame.Weights) -> None:
        self._weights, self._books = weights, model.num_codebooks
        self._rules = frame.Rules(
            *model.semantic,
            model.end,
            model.network.config.codebook_size,
            model.heads == "restricted",
            state.window.is_fixed,
        )
        shared = (
            state.cache.keys,
            state.cache.values,
            state.depth_cache.keys,
            state.depth_cache.values,
            state.window.history,
            state.tokens,
            state.position,
            state.count,
            sampling.repetition_penalty,
            sampling.temperature,
            sampling.top_p,
            sampling.uniforms,
            state.kept[0].scores if state.kept else torch.zeros(1, 1),
        )
        self._state = frame.State(*(tensor.numpy() for tensor in shared))

    def step(self, slots: Sequence[int]) -> np.ndarray:
        """Generate a frame for each slot, int64 [slots, K + 3], in the format of `S1Model.step`."""
        frames = np.zeros((len(slots), self._books + 3), np.int64)
        frame.make_frame(np.array(slots, np.int64), self._state, self._weights, self._rules, frames)
        return frames


def formats_of(weights: frame.Weights) -> list[str]:
    """Return the formats of all products, in the order that `frame.compile_for` expects."""
    formats: list[str] = []
    for field in weights:
        parts = field if isinstance(field, Layers) else (field,)
        formats += [part.weight.dtype.name for part in parts if isinstance(part, Product)]
    return formats


def check(model: S1Model, weights: frame.Weights) -> None:
    """Compare compiled frames with torch's frames. Raises `RuntimeError` if they differ.

    It is enough if one of several random inputs gives the same codes, keys and values, because codes may differ where
    two tokens are almost equally likely. With int8 weights, torch also rounds the inputs of products, so that only the
    keys and values of the backbone are compared, with a larger tolerance.
    """
    generator = np.random.default_rng(0)
    is_quantized = any(isinstance(module, QuantizedLinear) for module in model.network.modules())
    for _ in range(CHECKS):
        tokens = generator.integers(0, model.network.config.codebook_size, model.num_codebooks + 1)
        tokens[0] = model.semantic[0]
        plain, compiled = (_first_frame(model, torch.from_numpy(tokens), each) for each in (None, weights))
        if is_quantized:
            plain, compiled = plain[1:3], compiled[1:3]  # keys and values of the backbone
        elif not torch.equal(plain[0], compiled[0]):
            continue
        if all(
            is_close(*pair, INT8_TOLERANCE if is_quantized else TOLERANCE) for pair in zip(plain, compiled, strict=True)
        ):
            return
    raise RuntimeError("a compiled frame does not match torch's")


def _first_frame(model: S1Model, tokens: Tensor, weights: frame.Weights | None) -> list[Tensor]:
    """Return the frame after one position, then keys and values; computed by torch if `weights` is None."""
    with torch.inference_mode():
        state = model.allocate(1, 1)
        parameters = torch.tensor([[1.5], [1e-5], [0.9]])
        sampling = SamplingTensors(
            parameters[1], parameters[2], parameters[0], torch.full((1, 2, model.num_codebooks), 0.5)
        )
        model.begin(state, 0, tokens, 0)
        state.active[0] = True
        if weights is None:
            frames = model.step(state, sampling, 1)
        else:
            frames = torch.from_numpy(CompiledFrames(model, state, sampling, weights).step([0]))
    kept = (
        state.cache.keys[..., :1, :],
        state.cache.values[..., :1, :],
        state.depth_cache.keys,
        state.depth_cache.values,
    )
    return [frames.double(), *kept]


def gather(model: S1Model) -> frame.Weights:
    """Copy the weights of a model into the layout of `kernels/frame.py`."""
    network, config = model.network, model.network.config
    project = network.fast_project_in
    return frame.Weights(
        token_table=_plain(network.embeddings.weight),
        code_table=_plain(network.codebook_embeddings.weight),
        rope=_plain(network.rope),
        backbone=_layers(network, network.layers, config.backbone, config.alignment),
        norm=_plain(network.norm.weight),
        output=_product(network.output),
        project_in=_product(*[project] if isinstance(project, nn.Linear) else []),
        depth_embeddings=_plain(network.fast_embeddings.weight),
        depth_rope=_plain(network.depth_rope),
        depth=_layers(network, network.fast_layers, config.depth),
        depth_norm=_plain(network.fast_norm.weight),
        depth_output=_product(network.fast_output),
        norms_depth_input=config.norm_fastlayer_input,
        code_scale=math.sqrt(config.num_codebooks + 1) if config.scale_codebook_embeddings else 1.0,
        eps=network.norm.eps,
        depth_eps=network.fast_norm.eps,
    )


def _plain(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _product(*layers: nn.Module) -> Product:
    """Pack linear layers, which may be quantized; without arguments, return an empty stack."""
    if not layers:
        empty = np.zeros((0, 0), np.float32)
        return Product(np.zeros((0, 0, 0), np.float32), empty, empty)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear | QuantizedLinear)]
    return pack([each.weight for each in linears], [each.bias for each in linears])


def _layers(
    network: S1Network, layers: nn.ModuleList, config: BlockConfig, kept: AlignmentHead | None = None
) -> Layers:
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
        kept_layer=-1 if kept is None else kept.layer,
        kept_head=0 if kept is None else kept.head,
    )

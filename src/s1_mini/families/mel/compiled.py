"""A step of a mel decoder as one compiled call on a CPU: weights and state for `kernels/step.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from s1_mini.families.mel.kernels import step
from s1_mini.families.mel.model import MelModel, MelState
from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import is_close, pack
from s1_mini.layers.quantized import QuantizedLinear

MODULE = step.__name__
# Allowed difference from torch, relative to the largest number. With int8 weights, torch also rounds the inputs.
TOLERANCE = {"float32": 1e-3, "int8": 0.1}


class CompiledSteps:
    """Runs decoder steps with compiled code, which changes the tensors of `state` in place, as torch's steps do."""

    def __init__(self, model: MelModel, state: MelState, weights: step.Weights) -> None:
        self._weights = weights
        self._size = model.config.frames_per_step * model.config.num_bins + 2
        kept = torch.zeros(len(state.position), 0, 0, dtype=torch.bool) if state.kept is None else state.kept
        shared = (
            *(state.steps.keys, state.steps.values, state.text.keys, state.text.values, kept),
            *(state.speaker, state.frame, state.position, state.last_token, state.min_steps),
            state.heads[0].scores if state.heads else torch.zeros(1, 1),
        )
        self._state = step.State(*(tensor.numpy() for tensor in shared))

    def step(self, slots: Sequence[int]) -> np.ndarray:
        """Return the next frames of each slot, float32 [slots, F * M + 2], in the format of `MelModel.step`."""
        frames = np.empty((len(slots), self._size), np.float32)
        step.make_step(np.array(slots, np.int64), self._state, self._weights, frames)
        return frames


def gather(model: MelModel) -> step.Weights:
    """Copy the weights of a model into the layout of `kernels/step.py`."""
    decoder, config, heads = model.network.decoder, model.config, model.network.speech_decoder_postnet
    layers, prenet = decoder.layers, decoder.prenet
    joined = prenet.speaker_embeds_layer.weight[:, : config.width]
    norms = [(x.self_attn_layer_norm, x.encoder_attn_layer_norm, x.final_layer_norm) for x in layers]
    pairs = [torch.stack([torch.stack((each.weight, each.bias)) for each in some]) for some in norms]
    return step.Weights(
        first=_float32_product(prenet.layers[0]),
        others=_float32_product(*prenet.layers[1:]),
        last=_float32_product(prenet.final_layer),
        joined=pack([joined], [None], compact=False),
        layers=step.Layers(
            qkv=_product(x.self_attn.qkv_proj for x in layers),
            out=_product(x.self_attn.out_proj for x in layers),
            text_query=_product(x.encoder_attn.q_proj for x in layers),
            text_out=_product(x.encoder_attn.out_proj for x in layers),
            inner=_product(x.feed_forward.intermediate_dense for x in layers),
            outer=_product(x.feed_forward.output_dense for x in layers),
            norms=torch.stack(pairs).detach().numpy(),
            kept_layer=-1 if config.alignment is None else config.alignment.layer,
            kept_head=0 if config.alignment is None else config.alignment.head,
        ),
        frames=_float32_product(heads.feat_out),
        ends=_float32_product(heads.prob_out),
        positions=(prenet.encode_positions.alpha * model.positions).detach().contiguous().numpy(),
        eps=config.norm_eps,
        num_heads=config.heads,
        kept_scale=1 / (1 - config.prenet_dropout) if model.has_dropout else 1.0,
        threshold=model.settings.stop_threshold,
    )


def formats_of(weights: step.Weights) -> list[str]:
    """Return the formats of the layers' products, in the order that `step.compile_for` expects."""
    return [part.weight.dtype.name for part in weights.layers if isinstance(part, Product)]


def check(model: MelModel, weights: step.Weights) -> None:
    """Compare compiled steps with torch's steps. Raises `RuntimeError` if they differ."""
    with torch.inference_mode():
        plain, compiled = _first_steps(model, None), _first_steps(model, weights)
    if not is_close(plain, compiled, TOLERANCE["int8" if model.is_quantized else "float32"]):
        raise RuntimeError("compiled steps do not match torch's")


def _first_steps(model: MelModel, weights: step.Weights | None) -> Tensor:
    """Return the first three steps of an utterance, computed by torch or with compiled weights."""
    state = model.allocate(1, 3)
    model.begin(state, 0, torch.ones(model.config.speaker_size), 0)
    model.keep(state, 0, 0, model.sample_kept(0, 0, 0, 3))
    model.read(state, torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0]))
    state.active[0] = True
    if weights is None:
        return torch.cat([model.step(state, 3, 2, 1) for _ in range(3)])
    compiled = CompiledSteps(model, state, weights)
    return torch.from_numpy(np.concatenate([compiled.step([0]) for _ in range(3)]))


def _float32_product(*layers: nn.Module) -> Product:
    """Pack linear layers that are so small that float32 costs nothing; without arguments, return an empty stack."""
    if not layers:
        return Product(np.zeros((0, 1), np.float32), *[np.zeros((0, 1), np.float32)] * 2)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return pack([each.weight for each in linears], [each.bias for each in linears], compact=False)


def _product(layers: Iterable[nn.Module]) -> Product:
    linears = [layer for layer in layers if isinstance(layer, nn.Linear | QuantizedLinear)]
    return pack([each.weight for each in linears], [each.bias for each in linears])

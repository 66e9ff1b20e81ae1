"""A step of a mel decoder as one compiled call on a CPU: weights and state for `kernels/step.py`."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from s1_mini.families.mel.kernels import step
from s1_mini.families.mel.model import MelModel, MelState
from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import is_close, pack
from s1_mini.layers.quantized import pack_linears
from s1_mini.runtime.compiled import Step, stepping

MODULE = step.__name__
# Allowed difference from torch, relative to the largest number. With int8 weights, torch also rounds the inputs.
TOLERANCE = {"float32": 1e-3, "int8": 0.1}
_float32 = partial(pack_linears, compact=False)  # for layers that are so small that float32 costs nothing


def step_of(model: MelModel, state: MelState, weights: step.Weights) -> Step:
    """Return the compiled step, which changes the tensors of `state` in place, as `MelModel.step` does."""
    kept = torch.zeros(len(state.position), 0, 0, dtype=torch.bool) if state.kept is None else state.kept
    tensors = (
        *(state.steps.keys, state.steps.values, state.text.keys, state.text.values, kept),
        *(state.speaker, state.frame, state.position, state.last_token, state.min_steps),
        state.heads[0].scores if state.heads else torch.zeros(1, 1),
    )
    arrays = step.State(*(tensor.numpy() for tensor in tensors))
    width = model.config.frames_per_step * model.config.num_bins + 2
    return stepping(step.make_step, width, np.float32, arrays, weights)


def gather(model: MelModel) -> step.Weights:
    """Copy the weights of a model into the layout of `kernels/step.py`."""
    decoder, config, heads = model.network.decoder, model.config, model.network.speech_decoder_postnet
    layers, prenet = decoder.layers, decoder.prenet
    joined = prenet.speaker_embeds_layer.weight[:, : config.width]
    norms = [(x.self_attn_layer_norm, x.encoder_attn_layer_norm, x.final_layer_norm) for x in layers]
    pairs = [torch.stack([torch.stack((each.weight, each.bias)) for each in some]) for some in norms]
    return step.Weights(
        first=_float32(prenet.layers[0]),
        others=_float32(*prenet.layers[1:]),
        last=_float32(prenet.final_layer),
        joined=pack([joined], [None], compact=False),
        layers=step.Layers(
            qkv=pack_linears(*(x.self_attn.qkv_proj for x in layers)),
            out=pack_linears(*(x.self_attn.out_proj for x in layers)),
            text_query=pack_linears(*(x.encoder_attn.q_proj for x in layers)),
            text_out=pack_linears(*(x.encoder_attn.out_proj for x in layers)),
            inner=pack_linears(*(x.feed_forward.intermediate_dense for x in layers)),
            outer=pack_linears(*(x.feed_forward.output_dense for x in layers)),
            norms=torch.stack(pairs).detach().numpy(),
            kept_layer=-1 if config.alignment is None else config.alignment.layer,
            kept_head=0 if config.alignment is None else config.alignment.head,
        ),
        frames=_float32(heads.feat_out),
        ends=_float32(heads.prob_out),
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
    compiled = step_of(model, state, weights)
    return torch.from_numpy(np.concatenate([compiled([0]) for _ in range(3)]))

"""Frames of Qwen3-TTS as compiled calls on a CPU: weights and state for `kernels/frame.py`."""

from __future__ import annotations

import numpy as np

from s1_mini.families.codec_lm import compiled
from s1_mini.families.codec_lm.compiled import shared
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.qwen3.kernels import frame
from s1_mini.families.qwen3.model import Qwen3Model, Qwen3State
from s1_mini.kernels.compiled.frame import Weights
from s1_mini.runtime.compiled import Step, stepping

MODULE = frame.__name__


def step_of(model: Qwen3Model, state: Qwen3State, sampling: SamplingTensors, weights: Weights) -> Step:
    """Return the compiled step, which changes the tensors of `state` in place, as `Qwen3Model.step` does."""
    depth = state.depth
    arrays = frame.State(
        shared(state),
        state.texts.numpy(),
        state.seen.numpy(),
        sampling.repetition_penalty.numpy(),
        frame.Sampling(sampling.temperature.numpy(), state.top_k.numpy(), sampling.top_p.numpy()),
        frame.Sampling(depth.temperature.numpy(), depth.top_k.numpy(), depth.top_p.numpy()),
        sampling.uniforms.numpy(),
    )
    return stepping(frame.make_frame, model.num_codebooks + 3, np.int64, arrays, weights)


def gather(model: Qwen3Model) -> Weights:
    """Copy the weights of a model into the layout of compiled frames."""
    network, books = model.network, model.num_codebooks
    tables = network.fast_embeddings.unflatten(0, (books - 1, -1))
    heads = [network.depth_head(codebook) for codebook in range(1, books)]
    return compiled.gather(model, tables, heads)

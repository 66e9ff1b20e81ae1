"""Frames of S1 as compiled calls on a CPU: weights and state for `kernels/frame.py`."""

from __future__ import annotations

import numpy as np

from s1_mini.families.codec_lm import compiled
from s1_mini.families.codec_lm.compiled import shared
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.s1.kernels import frame
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.kernels.compiled.frame import Weights
from s1_mini.runtime.compiled import Step, stepping

MODULE = frame.__name__


def step_of(model: S1Model, state: S1State, sampling: SamplingTensors, weights: Weights) -> Step:
    """Return the compiled step, which changes the tensors of `state` in place, as `S1Model.step` does."""
    semantic, window = model.semantic, state.window
    num_codes, is_restricted = model.network.config.codebook_size, model.heads == "restricted"
    second = (np.float32(each) for each in (model.ras or (0, 1, 1))[1:])
    rules = frame.Rules(*semantic, model.end, num_codes, is_restricted, window.is_fixed, model.ras is not None, *second)
    others = window.history, sampling.repetition_penalty, sampling.temperature, sampling.top_p, sampling.uniforms
    arrays = frame.State(shared(state), *(tensor.numpy() for tensor in (*others, state.top_k)))
    return stepping(frame.make_frame, model.num_codebooks + 3, np.int64, arrays, weights, rules)


def gather(model: S1Model) -> Weights:
    """Copy the weights of a model into the layout of compiled frames."""
    network = model.network
    tables = network.fast_embeddings.weight.unsqueeze(0)
    return compiled.gather(model, tables, [network.fast_output.weight])

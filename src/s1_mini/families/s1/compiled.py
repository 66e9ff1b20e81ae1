"""A frame of S1 as one compiled call on a CPU: weights and state for `kernels/frame.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from s1_mini.families.codec_lm import compiled
from s1_mini.families.codec_lm.compiled import formats_of, shared
from s1_mini.families.codec_lm.sampling import SamplingTensors
from s1_mini.families.s1.kernels import frame
from s1_mini.families.s1.model import S1Model, S1State
from s1_mini.kernels.compiled.frame import Weights

__all__ = ["MODULE", "CompiledFrames", "check", "formats_of", "gather"]

MODULE = frame.__name__


class CompiledFrames:
    """Generates frames with compiled code, which changes the tensors of `state` in place, as torch's steps do."""

    def __init__(self, model: S1Model, state: S1State, sampling: SamplingTensors, weights: Weights) -> None:
        self._weights, self._books = weights, model.num_codebooks
        self._rules = frame.Rules(
            *model.semantic,
            model.end,
            model.network.config.codebook_size,
            model.heads == "restricted",
            state.window.is_fixed,
        )
        others = (
            state.window.history,
            sampling.repetition_penalty,
            sampling.temperature,
            sampling.top_p,
            sampling.uniforms,
        )
        self._state = frame.State(shared(state), *(tensor.numpy() for tensor in others))

    def step(self, slots: Sequence[int]) -> np.ndarray:
        """Generate a frame for each slot, int64 [slots, K + 3], in the format of `S1Model.step`."""
        frames = np.zeros((len(slots), self._books + 3), np.int64)
        frame.make_frame(np.array(slots, np.int64), self._state, self._weights, self._rules, frames)
        return frames


def gather(model: S1Model) -> Weights:
    """Copy the weights of a model into the layout of compiled frames."""
    network = model.network
    tables = network.fast_embeddings.weight.unsqueeze(0)
    return compiled.gather(network, network.config, model.embedding, tables, [network.fast_output.weight])


def check(model: S1Model, weights: Weights) -> None:
    """Compare a compiled frame with torch's. Raises `RuntimeError` if they differ."""
    compiled.compare(
        model, weights, lambda state, sampling, slots: CompiledFrames(model, state, sampling, weights).step(slots)
    )

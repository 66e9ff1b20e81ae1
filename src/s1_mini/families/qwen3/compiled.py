"""A frame of Qwen3-TTS as one compiled call on a CPU: weights and state for `kernels/frame.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from s1_mini.families.codec_lm import compiled
from s1_mini.families.codec_lm.compiled import formats_of, shared
from s1_mini.families.codec_lm.sampling import SamplingTensors
from s1_mini.families.qwen3.kernels import frame
from s1_mini.families.qwen3.model import Qwen3Model, Qwen3State
from s1_mini.kernels.compiled.frame import Weights

__all__ = ["MODULE", "CompiledFrames", "check", "formats_of", "gather"]

MODULE = frame.__name__


class CompiledFrames:
    """Generates frames with compiled code, on tensors that it shares with torch."""

    def __init__(self, model: Qwen3Model, state: Qwen3State, sampling: SamplingTensors, weights: Weights) -> None:
        self._weights, self._books = weights, model.num_codebooks
        depth = state.depth
        self._state = frame.State(
            shared(state),
            state.texts.numpy(),
            state.seen.numpy(),
            sampling.repetition_penalty.numpy(),
            frame.Sampling(sampling.temperature.numpy(), state.top_k.numpy(), sampling.top_p.numpy()),
            frame.Sampling(depth.temperature.numpy(), depth.top_k.numpy(), depth.top_p.numpy()),
            sampling.uniforms.numpy(),
        )

    def step(self, slots: Sequence[int]) -> np.ndarray:
        """Generate a frame of each slot: int64 [slots, K + 3], rows as in `Qwen3Model.step`."""
        frames = np.zeros((len(slots), self._books + 3), np.int64)
        frame.make_frame(np.array(slots, np.int64), self._state, self._weights, frames)
        return frames


def gather(model: Qwen3Model) -> Weights:
    """Copy the weights of a model into the layout of compiled frames."""
    network, books = model.network, model.num_codebooks
    tables = network.fast_embeddings.unflatten(0, (books - 1, -1))
    heads = [network.depth_head(codebook) for codebook in range(1, books)]
    return compiled.gather(network, network.config, model.embedding, tables, heads)


def check(model: Qwen3Model, weights: Weights) -> None:
    """Compare a compiled frame with torch's. Raises `RuntimeError` if they differ."""
    compiled.compare(
        model, weights, lambda state, sampling, slots: CompiledFrames(model, state, sampling, weights).step(slots)
    )

"""Frames of Qwen3-TTS as compiled calls on a CPU: weights and state for `kernels/frame.py`."""

from __future__ import annotations

from s1_mini.families.codec_lm import compiled
from s1_mini.families.codec_lm.compiled import formats_of, prefilling, shared, stepping
from s1_mini.families.codec_lm.sampling import SamplingTensors
from s1_mini.families.qwen3.kernels import frame
from s1_mini.families.qwen3.model import Qwen3Model, Qwen3State
from s1_mini.kernels.compiled.frame import Weights
from s1_mini.runtime.compiled import Step

__all__ = ["MODULE", "check", "formats_of", "gather", "prefilling", "step_of"]

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
    return stepping(model.num_codebooks, frame.make_frame, arrays, weights)


def gather(model: Qwen3Model) -> Weights:
    """Copy the weights of a model into the layout of compiled frames."""
    network, books = model.network, model.num_codebooks
    tables = network.fast_embeddings.unflatten(0, (books - 1, -1))
    heads = [network.depth_head(codebook) for codebook in range(1, books)]
    return compiled.gather(network, network.config, model.embedding, tables, heads)


def check(model: Qwen3Model, weights: Weights) -> None:
    """Compare compiled frames with torch's frames. Raises `RuntimeError` if they differ."""
    compiled.compare(model, weights, step_of)

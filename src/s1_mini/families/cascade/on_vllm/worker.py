"""The worker process: `python -m s1_mini.families.cascade.on_vllm.worker`, in the environment that has vLLM.

The worker runs one stage on one vLLM engine. vLLM starts no child processes, which could outlive the worker.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import ConfigurationError
from s1_mini.remote.token_server import Begun, serve

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # by default, vLLM leaves one core idle
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads leave their cores to other processes
}
BLOCK = 128  # maximum number of positions of a vLLM cache block, on any device


class VllmGenerator:
    """Generates the tokens of one stage with vLLM."""

    def __init__(self, engine: LLMEngine, ends: list[int]) -> None:
        """`ends` are the ids that end a sequence."""
        self._engine, self._ends = engine, ends

    @property
    def has_work(self) -> bool:
        return self._engine.has_unfinished_requests()

    def begin(self, number: int, request: Mapping[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=request["temperature"],
            top_p=request["top_p"],
            top_k=request["top_k"],
            seed=request["seed"],
            max_tokens=request["steps"],
            stop_token_ids=self._ends,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(str(number), {"prompt_token_ids": request["prompt"]}, params)

    def drop(self, number: int) -> None:
        self._engine.abort_request([str(number)])

    def step(self) -> Iterator[Begun]:
        for output in self._engine.step():
            yield int(output.request_id), list(output.outputs[0].token_ids), output.finished


def open_vllm(opening: Mapping[str, Any]) -> tuple[VllmGenerator, Mapping[str, Any]]:
    """Start vLLM. Raises `ConfigurationError` if vLLM does not support the stage, or `CheckpointError`."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    from s1_mini.families.cascade.on_vllm.model import ARCHITECTURE, LOAD_FORMAT, MODEL_TYPE
    from s1_mini.families.cascade.on_vllm.packing import num_sampled_ids
    from s1_mini.families.cascade.weights import read_config

    stage, built_for = opening["stage"], current_platform.device_type
    if built_for != opening["device"]:
        raise ConfigurationError(
            f"stage {stage} is on {opening['device']}, but the vLLM of vllm_python was built for {built_for}"
        )
    checkpoint = read_config(Path(opening["checkpoint"]))
    config = getattr(checkpoint, stage)
    count = num_sampled_ids(checkpoint, stage)
    if built_for == "cpu":
        _check_heads(stage, config.head_dim)
    stage_config = {
        "model_type": MODEL_TYPE,
        "stage": stage,
        "checkpoint": opening["checkpoint"],
        "min_eos_p": opening["min_eos_p"],
        "architectures": [ARCHITECTURE],
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "vocab_size": count + 1,
        "max_position_embeddings": config.block_size + 1,
    }
    item = {"float32": 4}.get(opening["dtype"], 2)
    length = min(opening["positions"], config.block_size) + 1  # vLLM counts the last token, which is never an input
    blocks = opening["slots"] * -(-length // BLOCK) + 1  # vLLM reserves one block for itself
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(stage_config))
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                load_format=LOAD_FORMAT,
                skip_tokenizer_init=True,
                dtype=opening["dtype"],
                enforce_eager=True,
                max_model_len=length,  # otherwise vLLM needs memory for max_position_embeddings
                max_num_seqs=opening["slots"],
                kv_cache_memory_bytes=2 * blocks * BLOCK * config.num_layers * config.width * item,
                enable_prefix_caching=False,
                enable_chunked_prefill=False,  # chunked prefill with a seed crashes vLLM 0.32 on a CPU
                disable_log_stats=True,
            )
        )
    ends = [checkpoint.numbers.semantic_size, count] if stage == "semantic" else [count]
    return VllmGenerator(engine, ends), {"vllm": vllm.__version__}


def _check_heads(stage: str, head_dim: int) -> None:
    """Raise `ConfigurationError` if vLLM on a CPU lacks attention heads of this size: it would exit at a request."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if head_dim not in sizes:
        raise ConfigurationError(
            f"vLLM on a CPU does not support the {stage} model's attention heads of {head_dim} channels; "
            f"it supports {', '.join(map(str, sizes))}"
        )


if __name__ == "__main__":
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    serve(open_vllm)

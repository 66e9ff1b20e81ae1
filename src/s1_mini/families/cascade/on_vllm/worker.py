"""The worker: `python -m s1_mini.families.cascade.on_vllm.worker`, in the environment that has vLLM.

One stage, one vLLM engine, one process: without vLLM's own child processes, so that nothing outlives it.
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
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # else one core does nothing
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # leave waiting cores to other processes
}
BLOCK = 128  # positions of vLLM's blocks of keys and values; at most, on any device


class VllmMaker:
    """Makes the tokens of one stage by vLLM."""

    def __init__(self, engine: LLMEngine, ends: list[int]) -> None:
        """`ends` are the ids that end a sequence."""
        self._engine, self._ends = engine, ends

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return self._engine.has_unfinished_requests()

    def begin(self, number: int, asked: Mapping[str, Any]) -> None:
        """Begin a sequence. Raises vLLM's error if it is invalid."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=asked["temperature"],
            top_p=asked["top_p"],
            top_k=asked["top_k"],
            seed=asked["seed"],
            max_tokens=asked["steps"],
            stop_token_ids=self._ends,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(str(number), {"prompt_token_ids": asked["prompt"]}, params)

    def drop(self, number: int) -> None:
        """Cancel a sequence."""
        self._engine.abort_request([str(number)])

    def step(self) -> Iterator[Begun]:
        """Run one step of all sequences; yield their new tokens."""
        for output in self._engine.step():
            yield int(output.request_id), list(output.outputs[0].token_ids), output.finished


def open_vllm(opening: Mapping[str, Any]) -> tuple[VllmMaker, Mapping[str, Any]]:
    """Start vLLM. Raises `ConfigurationError` for what it cannot do, `CheckpointError` for a checkpoint."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    from s1_mini.families.cascade.on_vllm.packing import num_chosen
    from s1_mini.families.cascade.on_vllm.plugin import ARCHITECTURE, LOAD_FORMAT, MODEL_TYPE
    from s1_mini.families.cascade.weights import read_config

    stage, device = opening["stage"], opening["device"]
    if current_platform.device_type != device:
        raise ConfigurationError(
            f"the stage {stage} is on {device}, and the vLLM of vllm_python is made for {current_platform.device_type}"
        )
    checkpoint = read_config(Path(opening["checkpoint"]))
    config = getattr(checkpoint, stage)
    count = num_chosen(checkpoint, stage)
    if device == "cpu":
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        sizes = CPUAttentionBackend.get_supported_head_sizes()
        if config.head_dim not in sizes:  # else it would end at the first request
            raise ConfigurationError(
                f"vLLM has no attention of heads of {config.head_dim} channels on a CPU, which the {stage} model has; "
                f"it has those of {', '.join(map(str, sizes))}"
            )
    told = {
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
    length = min(opening["positions"], config.block_size) + 1  # vLLM counts the last token, which is never read
    blocks = opening["slots"] * -(-length // BLOCK) + 1  # vLLM keeps one for itself
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(told))
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                load_format=LOAD_FORMAT,
                skip_tokenizer_init=True,
                dtype=opening["dtype"],
                enforce_eager=True,
                max_model_len=length,  # else vLLM asks for the memory of max_position_embeddings
                max_num_seqs=opening["slots"],
                kv_cache_memory_bytes=2 * blocks * BLOCK * config.num_layers * config.width * item,
                enable_prefix_caching=False,
                enable_chunked_prefill=False,  # a prompt in parts and a seed together end vLLM on a CPU (0.32)
                disable_log_stats=True,
            )
        )
    ends = [checkpoint.numbers.semantic_size, count] if stage == "semantic" else [count]
    return VllmMaker(engine, ends), {"vllm": vllm.__version__}


if __name__ == "__main__":
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    serve(open_vllm)

"""A causal model of the cascade built from vLLM's layers, and the plugin that registers it.

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`). Parameters have the names of
`network.py`, so that the engine's own code can read the weights.
Shapes: N tokens of all requests, W width, V ids that can be sampled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig
from vllm import ModelRegistry
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from s1_mini.families.cascade.config import GPTConfig
from s1_mini.families.cascade.on_vllm.packing import next_is_second, num_sampled_ids, unpack_coarse, unpack_semantic
from s1_mini.families.cascade.weights import read_config, read_models, translate

MODEL_TYPE = "s1_mini_cascade_stage"
ARCHITECTURE = "S1MiniCascadeStage"
LOAD_FORMAT = "s1_mini_cascade"
NEVER = float("-inf")


class StageConfig(PretrainedConfig):
    """The config that vLLM needs. The model reads all other values from the directory `checkpoint`."""

    model_type = MODEL_TYPE

    def __init__(self, *, stage: str = "semantic", checkpoint: str = "", min_eos_p: float = 0.0, **named: Any) -> None:
        self.stage, self.checkpoint, self.min_eos_p = stage, checkpoint, min_eos_p
        super().__init__(**named | {"tie_word_embeddings": False})


class SelfAttention(nn.Module):
    """Attention whose projection computes the queries, keys and values of all heads in one product."""

    def __init__(self, config: GPTConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        heads, size = config.num_heads, config.head_dim
        self.att_proj = QKVParallelLinear(config.width, size, heads, bias=config.bias, prefix=f"{prefix}.att_proj")
        self.out_proj = RowParallelLinear(config.width, config.width, bias=config.bias, prefix=f"{prefix}.out_proj")
        self.attend = Attention(
            heads, size, scale=size**-0.5, cache_config=vllm_config.cache_config, prefix=f"{prefix}.attend"
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.att_proj(x)[0].chunk(3, dim=-1)
        out: Tensor = self.out_proj(self.attend(query, key, value))[0]
        return out


class MLP(nn.Module):
    """Two linear layers with the exact GELU between them."""

    def __init__(self, config: GPTConfig, prefix: str) -> None:
        super().__init__()
        width, bias = config.width, config.bias
        self.in_proj = ColumnParallelLinear(width, 4 * width, bias=bias, prefix=f"{prefix}.in_proj")
        self.out_proj = RowParallelLinear(4 * width, width, bias=bias, prefix=f"{prefix}.out_proj")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out_proj(F.gelu(self.in_proj(x)[0]))[0]
        return out


class Block(nn.Module):
    """A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: GPTConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.layernorm_1 = nn.LayerNorm(config.width, bias=config.bias)
        self.attn = SelfAttention(config, vllm_config, f"{prefix}.attn")
        self.layernorm_2 = nn.LayerNorm(config.width, bias=config.bias)
        self.mlp = MLP(config, f"{prefix}.mlp")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.layernorm_1(x))
        return x + self.mlp(self.layernorm_2(x))


class CascadeStage(nn.Module):
    """The semantic or the coarse model. Its logits allow only ids that may be sampled next."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        options: StageConfig = vllm_config.model_config.hf_config
        self.stage, self._min_eos_p, self._path = options.stage, options.min_eos_p, Path(options.checkpoint)
        self._config = read_config(self._path)
        config: GPTConfig = getattr(self._config, self.stage)
        count = num_sampled_ids(self._config, self.stage)
        self.input_embeds_layer = nn.Embedding(config.input_size, config.width)
        # One extra row: vLLM also counts the last token of a request, which is never an input.
        self.position_embeds_layer = nn.Embedding(config.block_size + 1, config.width)
        names = (f"{prefix}.layers.{number}".lstrip(".") for number in range(config.num_layers))
        self.layers = nn.ModuleList(Block(config, vllm_config, name) for name in names)
        self.layernorm_final = nn.LayerNorm(config.width, bias=config.bias)
        self.lm_head = ParallelLMHead(count, config.width)
        self._logits = LogitsProcessor(count)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return embeddings [N, W] of packed ids [N]."""
        if self.stage == "coarse":
            out: Tensor = self.input_embeds_layer(unpack_coarse(self._config, input_ids))
            return out
        is_pair, text, voice = unpack_semantic(self._config, input_ids)
        return self.input_embeds_layer(text) + self.input_embeds_layer(voice) * is_pair.unsqueeze(-1)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: object = None,  # noqa: ARG002 - there is one rank
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Return the last layer's output [N, W].

        The coarse model's output is [N, W + 1]: its last channel is 1 if the next token belongs to the second codebook.
        """
        assert input_ids is not None, "prompts are ids"
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        x = inputs_embeds + self.position_embeds_layer(positions)
        for layer in self.layers:
            x = layer(x)
        x = self.layernorm_final(x)
        if self.stage == "semantic":
            return x
        # vLLM passes neither ids nor positions to `compute_logits`, so x gets a channel that names the next codebook.
        is_second = next_is_second(self._config, input_ids)
        return torch.cat([x, is_second.to(x.dtype).unsqueeze(-1)], dim=-1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Return logits [N, V + 1]. A row whose logits are not finite allows only the last id, which means an error."""
        x = hidden_states if self.stage == "semantic" else hidden_states[:, :-1].contiguous()
        logits = self._logits(self.lm_head, x)
        if logits is None:
            return None
        is_bad = ~logits.isfinite().all(-1, keepdim=True)
        ids = torch.arange(logits.shape[-1], device=logits.device)
        if self.stage == "coarse":
            is_second = ids >= self._config.numbers.codebook_size
            logits = logits.masked_fill(is_second != (hidden_states[:, -1:] > 0.5), NEVER)
        elif self._min_eos_p:
            end = self._config.numbers.semantic_size
            ends = logits.float().softmax(-1)[:, end : end + 1] > self._min_eos_p
            logits = logits.masked_fill(ends & (ids != end), NEVER)
        bad = torch.zeros_like(logits[:, :1]).masked_fill(~is_bad, NEVER)
        return torch.cat([logits.masked_fill(is_bad, NEVER), bad], dim=-1)

    def load_checkpoint(self) -> None:
        """Load the parameters with the engine's own code. Raises `CheckpointError`."""
        named = translate(read_models(self._path), self._config)[self.stage]
        table = named["position_embeds_layer.weight"]
        named["position_embeds_layer.weight"] = torch.cat([table, table[-1:]])
        for name, parameter in self.named_parameters():
            parameter.data[: len(named[name])].copy_(named[name])  # vLLM pads the rows of a head


class CheckpointLoader(BaseModelLoader):
    """Loads a checkpoint of any form that the engine supports."""

    def download_model(self, model_config: ModelConfig) -> None:
        """Do nothing, because the checkpoint is on disk."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:  # noqa: ARG002 - vLLM's interface
        assert isinstance(model, CascadeStage)
        model.load_checkpoint()


def register() -> None:
    """Register the model and its weight loader with vLLM."""
    AutoConfig.register(MODEL_TYPE, StageConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # Given the class's name instead of the class, vLLM would start a process to inspect it, which takes seconds.
        ModelRegistry.register_model(ARCHITECTURE, CascadeStage)
        register_model_loader(LOAD_FORMAT)(CheckpointLoader)

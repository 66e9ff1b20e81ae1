"""What vLLM finds by the entry point `vllm.general_plugins`, in each of its processes: how a stage is configured."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PretrainedConfig

MODEL_TYPE = "s1_mini_cascade_stage"
ARCHITECTURE = "S1MiniCascadeStage"
LOAD_FORMAT = "s1_mini_cascade"


class StageConfig(PretrainedConfig):
    """What vLLM asks of a model; all else the model reads from the `checkpoint` itself."""

    model_type = MODEL_TYPE

    def __init__(self, *, stage: str = "semantic", checkpoint: str = "", min_eos_p: float = 0.0, **named: Any) -> None:
        self.stage, self.checkpoint, self.min_eos_p = stage, checkpoint, min_eos_p
        super().__init__(**named | {"tie_word_embeddings": False})


def register() -> None:
    """Register the model and its weight loader with vLLM."""
    from vllm import ModelRegistry
    from vllm.model_executor.model_loader import register_model_loader

    AutoConfig.register(MODEL_TYPE, StageConfig, exist_ok=True)
    if ARCHITECTURE in ModelRegistry.get_supported_archs():
        return
    from s1_mini.families.cascade.on_vllm.model import CascadeStage, CheckpointLoader

    # The class itself: its name alone would be looked into by a process of its own, which takes seconds.
    ModelRegistry.register_model(ARCHITECTURE, CascadeStage)
    register_model_loader(LOAD_FORMAT)(CheckpointLoader)

"""The common base of loaded checkpoints of codec language models."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from s1_mini.families.codec_lm.model import FrameModel


class LoadedFrameModel:
    """One checkpoint directory. Encoders of references are loaded when they are first needed."""

    def __init__(self, directory: Path, model: FrameModel[Any], encodes_on: torch.device) -> None:
        self.text_heads, self.heads = model.text_heads, model.kept_heads
        self.num_bytes, self.position_bytes = model.num_bytes, model.position_bytes
        self.max_positions = model.max_positions
        self._directory, self._encodes_on = directory, encodes_on
        self._lock = threading.Lock()  # of the encoders

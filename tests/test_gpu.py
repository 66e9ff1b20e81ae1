"""What only a GPU can show: the same tokens, and the original's tensors, there as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.checkpoint.verify import verify_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_the_originals_tensors_are_reproduced_on_the_gpu(oracle: Path) -> None:
    checks = list(verify_checkpoint(oracle, oracle / "oracle.pt", device="cuda", tolerance=1e-3))

    assert [check.name for check in checks if not check.passed] == []


def test_the_gpu_says_what_the_cpu_says(tiny: Path) -> None:
    waves = []
    for device in ("cpu", "cuda"):
        config = EngineConfig(checkpoint_path=tiny, device=device, precision="float32", compile="false")
        with ProductionTTSEngine(config) as engine:
            waves.append(engine.generate("Hello.", temperature=0, max_new_tokens=20).audio)

    assert np.abs(waves[0] - waves[1]).max() < 1e-3

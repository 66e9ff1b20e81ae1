"""The proof that a port kept the original's output: it holds, and it fails where it should."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from s1_mini.checkpoint.verify import verify_checkpoint
from s1_mini.exceptions import VerificationError


def test_the_originals_every_tensor_is_reproduced(oracle: Path) -> None:
    """Prompts and greedy tokens identical, hidden, logits and codec stages within 1e-4, encoded codes identical."""
    checks = {check.name: check for check in verify_checkpoint(oracle, oracle / "oracle.pt")}

    assert [name for name, check in checks.items() if not check.passed] == []
    for name in ("ref/greedyish prompt", "ref/greedyish greedy tokens", "codec encoded codes"):
        assert checks[name].agreement == 1.0
    for name in ("ref/sampled hidden", "ref/sampled fast_logits", "sampler 3", "codec post", "codec audio"):
        assert checks[name].difference is not None


@pytest.mark.parametrize(
    ("file", "tensor", "check"),
    [
        ("model", "layers.1.attention.k_norm.weight", "ref/sampled hidden"),
        ("model", "fast_output.weight", "ref/greedyish fast_logits"),
        ("codec", "quantizer.post_module.layers.0.attention.wo.weight", "codec post"),
        ("codec", "encoder.block.6.conv.weight", "codec encoded codes"),
    ],
)
def test_a_changed_weight_is_noticed(file: str, tensor: str, check: str, oracle: Path, tmp_path: Path) -> None:
    shutil.copytree(oracle, tmp_path / "c")
    tensors = load_file(tmp_path / "c" / f"{file}.safetensors")
    tensors[tensor] = tensors[tensor].flip(0).contiguous()
    save_file(tensors, tmp_path / "c" / f"{file}.safetensors")

    failed = [c.name for c in verify_checkpoint(tmp_path / "c", oracle / "oracle.pt") if not c.passed]

    assert check in failed


@pytest.mark.parametrize("content", [{"a": torch.ones(1)}, [1, 2], None])
def test_a_file_that_is_no_oracle_is_refused(content: object, oracle: Path, tmp_path: Path) -> None:
    path = tmp_path / "oracle.pt"
    if content is not None:
        torch.save(content, path)

    with pytest.raises(VerificationError, match="oracle"):
        list(verify_checkpoint(oracle, path))

"""`s1-mini verify` passes when the output matches the original, and fails when it does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import reference_s1
from s1_mini.checkpoint.verify import verify_checkpoint
from s1_mini.exceptions import VerificationError
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.random import RECIPES, Recipe, write_random_checkpoint
from s1_mini.families.s1.tokenizer import S1Tokenizer


def test_every_tensor_of_the_original_is_reproduced(oracle: Path) -> None:
    """Prompts and greedy tokens identical, hidden, logits and codec stages within 1e-4, encoded codes identical."""
    checks = {check.name: check for check in verify_checkpoint(oracle, oracle / "oracle.pt")}

    assert [name for name, check in checks.items() if not check.passed] == []
    for name in ("ref/greedyish prompt", "ref/greedyish greedy tokens", "codec enc_codes"):
        assert checks[name].agreement == 1.0
    for name in ("ref/sampled hidden", "ref/sampled fast_logits", "sampler 3", "codec post", "codec audio"):
        assert checks[name].difference is not None


@pytest.mark.parametrize(
    ("file", "tensor", "check"),
    [
        ("model", "layers.1.attention.k_norm.weight", "ref/sampled hidden"),
        ("model", "fast_output.weight", "ref/greedyish fast_logits"),
        ("codec", "quantizer.post_module.layers.0.attention.wo.weight", "codec post"),
        ("codec", "encoder.block.6.conv.weight", "codec enc_codes"),
    ],
)
def test_a_changed_weight_is_noticed(file: str, tensor: str, check: str, oracle: Path, tmp_path: Path) -> None:
    shutil.copytree(oracle, tmp_path / "c")
    tensors = load_file(tmp_path / "c" / f"{file}.safetensors")
    tensors[tensor] = tensors[tensor].flip(0).contiguous()
    save_file(tensors, tmp_path / "c" / f"{file}.safetensors")

    path = changed(oracle, tmp_path, only=check.rpartition(" ")[0])

    failed = [c.name for c in verify_checkpoint(tmp_path / "c", path) if not c.passed]

    assert check in failed


def test_an_oracle_may_be_a_safetensors_file(oracle: Path, tmp_path: Path) -> None:
    save_file({"foreign": torch.zeros(3)}, tmp_path / "oracle.safetensors")

    with pytest.raises(VerificationError, match="none of its tensors is known"):
        list(verify_checkpoint(oracle, tmp_path / "oracle.safetensors"))


def changed(
    oracle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object] = lambda _: None, *, only: str = ""
) -> Path:
    """Write the oracle, or one case of it, with a change."""
    content = torch.load(oracle / "oracle.pt", weights_only=True)
    content = {only: content[only]} if only else content
    change(content)
    torch.save(content, tmp_path / "oracle.pt")
    return tmp_path / "oracle.pt"


@pytest.mark.parametrize(
    ("case", "change", "row"),
    [
        ("ref/sampled", lambda o: o["ref/sampled"].update(new=torch.ones(2)), "ref/sampled new (unknown)"),
        ("codec", lambda o: o["codec"].pop("codes"), "codec zq (unknown)"),
        ("codec", lambda o: o.update(vocoder={"x": torch.ones(2)}), "vocoder (unknown)"),
    ],
)
def test_a_stored_tensor_that_is_not_recomputed_fails(
    case: str, change: Callable[[dict[str, Any]], object], row: str, oracle: Path, tmp_path: Path
) -> None:
    """Nothing is skipped silently."""
    path = changed(oracle, tmp_path, change, only=case)
    checks = {check.name: check for check in verify_checkpoint(oracle, path)}

    assert not checks[row].passed


def test_a_case_without_fast_logits_is_still_checked_for_the_rest(oracle: Path, tmp_path: Path) -> None:
    path = changed(oracle, tmp_path, lambda o: o["ref/sampled"].pop("fast_logits"), only="ref/sampled")

    checks = {check.name: check.passed for check in verify_checkpoint(oracle, path)}

    assert checks["ref/sampled hidden"]
    assert "ref/sampled fast_logits" not in checks


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("ref/sampled", lambda o: o["ref/sampled"].update(seq=o["ref/sampled"]["prompt"])),
        ("ref/sampled", lambda o: o["ref/sampled"]["seq"].add_(100_000)),
        ("sampler", lambda o: o.update(sampler={"logits": 1})),
        ("codec", lambda o: o["codec"].update(codes=torch.zeros(3))),
    ],
)
def test_an_oracle_of_another_form_is_an_error_and_no_traceback(
    case: str, change: Callable[[dict[str, Any]], object], oracle: Path, tmp_path: Path
) -> None:
    path = changed(oracle, tmp_path, change, only=case)

    with pytest.raises(VerificationError, match="is not an oracle"):
        list(verify_checkpoint(oracle, path))


def cut(case: str, part: str, sizes: Sequence[slice]) -> Callable[[dict[str, Any]], object]:
    return lambda content: content[case].update({part: content[case][part][tuple(sizes)].clone()})


@pytest.mark.parametrize(
    ("case", "change", "told"),
    [
        ("ref/sampled", cut("ref/sampled", "prompt", [slice(4)]), "its num_codebooks is 3; expected 10"),
        ("ref/sampled", cut("ref/sampled", "hidden", [slice(24), slice(16)]), "its dim is 16; expected 32"),
        (
            "ref/sampled",
            cut("ref/sampled", "slow_logits", [slice(24), slice(300)]),
            "its vocab_size is 300; expected 400",
        ),
        ("codec", cut("codec", "codes", [slice(1), slice(3)]), "its num_codebooks is 3; expected 10"),
    ],
)
def test_an_oracle_of_another_checkpoint_is_reported_with_the_differing_size(
    case: str, change: Callable[[dict[str, Any]], object], told: str, oracle: Path, tmp_path: Path
) -> None:
    path = changed(oracle, tmp_path, change, only=case)

    with pytest.raises(VerificationError, match=f"the oracle belongs to a different checkpoint: {told}"):
        list(verify_checkpoint(oracle, path))


@pytest.mark.parametrize("projected", [False, True])
def test_hidden_states_may_be_stored_before_or_behind_the_projection(projected: bool, tmp_path: Path) -> None:
    """Where fast_dim differs from dim; the tests' plain reference implementation supplies the expected values."""
    recipe = Recipe(RECIPES["tiny"].model | {"fast_dim": 24, "fast_n_head": 2}, RECIPES["tiny"].codec, num_semantic=64)
    write_random_checkpoint(tmp_path / "c", recipe)
    config = S1Config.from_json(recipe.model)
    tokenizer = S1Tokenizer.from_directory(tmp_path / "c")
    weights = load_file(tmp_path / "c" / "model.safetensors")
    prompt = torch.from_numpy(build_prompt(tokenizer, config, "Hello.", []).items).T
    frames = torch.randint(0, 32, (11, 3), generator=torch.Generator().manual_seed(0))
    frames[0] = frames[1] + tokenizer.semantic_begin
    sequence = torch.cat((prompt, frames), dim=1)
    hidden, logits = reference_s1.backbone(
        config, weights, sequence[:, :-1], tokenizer.semantic_begin, tokenizer.semantic_end
    )
    hidden, logits = hidden[-3:], logits[-3:]
    depth = [
        reference_s1.depth(config, weights, state, frame.tolist())
        for state, frame in zip(hidden, frames[1:].T, strict=True)
    ]
    if projected:
        hidden = hidden @ weights["fast_project_in.weight"].T + weights["fast_project_in.bias"]
    case = {
        "prompt": prompt,
        "seq": sequence,
        "hidden": hidden,
        "slow_logits": logits,
        "fast_logits": torch.stack(depth),
    }
    torch.save({"noref/sampled": case}, tmp_path / "oracle.pt")

    checks = list(verify_checkpoint(tmp_path / "c", tmp_path / "oracle.pt"))

    assert [check.name for check in checks if not check.passed] == []
    assert len(checks) == 4


@pytest.mark.parametrize("content", [{"a": torch.ones(1)}, [1, 2], None])
def test_a_file_that_is_not_an_oracle_is_refused(content: object, oracle: Path, tmp_path: Path) -> None:
    path = tmp_path / "oracle.pt"
    if content is not None:
        torch.save(content, path)

    with pytest.raises(VerificationError, match="oracle"):
        list(verify_checkpoint(oracle, path))

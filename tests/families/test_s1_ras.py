"""Top-k and repetition-aware sampling: in torch, in the GPU kernel, and compiled for a CPU.

The kernel runs on a GPU or, where Triton is installed, in its interpreter (TRITON_INTERPRET=1, -m gpu).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernel_checks import DEVICE, INTERPRETED, by_both, needs_gpu, randn
from s1_mini.core.messages import Begin, Conditions, Prefill
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.s1.config import Ras
from s1_mini.families.s1.kernels import sampling
from s1_mini.families.s1.kernels.sampling import RepetitionWindow, SamplingInputs, SemanticTokens, probabilities
from s1_mini.kernels.positions import store_frame
from s1_mini.layers.randomness import uniforms
from s1_mini.types import SamplingParams
from tests.families.s1_room import build

ORACLE = Path("tests/assets/audio8_tiny/oracle.pt")
RAS = Ras(window=10, temperature=1.3, top_p=0.95)
FIRST, NUM, END, BOOKS, DRAWS = 20, 48, 7, 3, 100_000  # 49 of the 71 tokens can be sampled
TOKENS = {"restricted": (NUM + 1, True), "full": (FIRST + NUM + 3, False)}  # size of the head


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return torch.load(ORACLE, weights_only=True)


def semantic(logits: Tensor, oracle: dict[str, Any]) -> Tensor:
    config = oracle["config"]
    first, last = config["semantic_begin_id"], config["semantic_end_id"]
    restricted = torch.full_like(logits, -torch.inf)
    for kept in (slice(first, last + 1), slice(config["eos_token_id"], config["eos_token_id"] + 1)):
        restricted[kept] = logits[kept]
    return restricted


def shares(logits: Tensor, vector: dict[str, Any]) -> Tensor:
    temperature, top_p = (torch.tensor([float(vector[key])]) for key in ("t", "p"))
    return probabilities(logits.unsqueeze(0), temperature, top_p, torch.tensor([vector["k"]]))[0]


def test_probabilities_are_those_of_the_reference(oracle: dict[str, Any]) -> None:
    for vector in oracle["sampler"]:
        logits = vector["logits"] if vector["kind"] == "code" else semantic(vector["logits"], oracle)

        torch.testing.assert_close(shares(logits, vector), vector["probs"], atol=1e-6, rtol=0)
    for vector in oracle["ras"]:
        logits = semantic(vector["logits"], oracle)

        torch.testing.assert_close(shares(logits, vector), vector["normal"], atol=1e-6, rtol=0)
        again = vector | {"t": oracle["config"]["ras_temperature"], "p": oracle["config"]["ras_top_p"]}
        torch.testing.assert_close(shares(logits, again), vector["high"], atol=1e-6, rtol=0)


def test_the_window_is_that_of_the_reference_in_every_frame(oracle: dict[str, Any]) -> None:
    """It begins with the second frame. Order and unused entries do not matter."""
    for name in ("noref/sampled", "ref/greedy", "ends/sampled"):
        case = oracle[name]
        frames = case["seq"][:, case["prompt"].shape[1] :].T.contiguous()
        history = torch.zeros(1, case["ras_windows"].shape[1], frames.shape[1], dtype=torch.int64)
        window = RepetitionWindow(history, is_fixed=False)
        state = torch.zeros(1, frames.shape[1]).long(), torch.zeros(1).long(), torch.zeros(1).long()
        for frame, expected in zip(frames, case["ras_windows"], strict=True):
            assert sorted(history[0, :, 0].tolist()) == sorted(expected.clamp_min(0).tolist())
            store_frame(frame.unsqueeze(0), history, *state, torch.tensor([True]), window.skipped)


def inputs_of(rows: int, window: Tensor, *, top_k: int, temperature: float = 0.8, top_p: float = 0.9) -> SamplingInputs:
    """Rows with their own random numbers, in the third frame; `window` [W] are the last frames' tokens."""
    history = torch.zeros(rows, len(window), BOOKS + 1, dtype=torch.int64, device=DEVICE)
    history[:, :, 0] = window.to(DEVICE)
    table = torch.zeros(rows, 3, BOOKS + 1)
    table[:, 2] = uniforms(7, 0, rows, BOOKS + 1)

    def row(value: float) -> Tensor:
        return torch.full((rows,), value, device=DEVICE)

    parameters = SamplingTensors(row(temperature), row(top_p), row(1.0), table.to(DEVICE))
    count = torch.full((rows,), 2, device=DEVICE)
    return SamplingInputs(parameters, count, RepetitionWindow(history, False), RAS, row(top_k).long())


def distribution(logits: Tensor, inputs: SamplingInputs, tokens: SemanticTokens) -> Tensor:
    """P(x) = N(x) [x is not in the window] + N(window) H(x), over all tokens."""
    whole = torch.full((tokens.first + NUM + 3,), -torch.inf)
    if tokens.restricted:
        whole[tokens.first : tokens.last + 1], whole[tokens.end] = logits[:-1], logits[-1]
    else:
        kept = [*range(tokens.first, tokens.last + 1), tokens.end]
        whole[kept] = logits[kept]
    top_k = inputs.top_k[:1].cpu()
    own = inputs.sampling.temperature[:1].cpu(), inputs.sampling.top_p[:1].cpu()
    normal, again = (
        probabilities(whole.unsqueeze(0), *parameters, top_k)[0]
        for parameters in (own, (torch.tensor([RAS.temperature]), torch.tensor([RAS.top_p])))
    )
    inside = torch.zeros(len(whole), dtype=torch.bool)
    inside[inputs.window.history[0, :, 0].cpu()] = True
    inside[tokens.end] = inside[0] = False
    assert 0.2 < normal[inside].sum() < 0.8
    return normal * ~inside + normal[inside].sum() * again


def case_of(head: str, rows: int) -> tuple[Tensor, SamplingInputs, SemanticTokens]:
    size, restricted = TOKENS[head]
    tokens = SemanticTokens(FIRST, FIRST + NUM - 1, END, restricted, NUM)
    logits = 1.5 * torch.randn(size, generator=torch.Generator().manual_seed(1))
    likeliest = (logits[:-1] if restricted else logits[FIRST : FIRST + NUM]).topk(4).indices + FIRST
    window = torch.cat((likeliest[[0, 2]], torch.tensor([FIRST + 5, END]), torch.zeros(6).long()))
    return logits, inputs_of(rows, window, top_k=14), tokens


def drawn(logits: Tensor, inputs: SamplingInputs, tokens: SemanticTokens) -> Tensor:
    frames = torch.zeros(len(inputs.num_frames), BOOKS + 3, dtype=torch.int64, device=DEVICE)
    table = randn(NUM, 8)
    sampling.sample_semantic(logits.to(DEVICE).repeat(len(frames), 1), table, frames, inputs, tokens)
    return frames[:, 0].cpu()


def assert_distributed(found: Tensor, expected: Tensor) -> None:
    assert (found.bincount(minlength=len(expected)) / len(found) - expected).abs().max() < 0.007


@pytest.mark.parametrize("head", TOKENS)
@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=needs_gpu)])
def test_repeated_tokens_are_drawn_again(head: str, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "runs_triton", lambda _: by_kernel)
    logits, inputs, tokens = case_of(head, DRAWS)

    assert_distributed(drawn(logits, inputs, tokens), distribution(logits, inputs, tokens))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs an NVIDIA GPU, or Triton's interpreter")
@pytest.mark.parametrize("head", TOKENS)
@pytest.mark.parametrize("dtype", [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("coarse", [False, True])
def test_the_kernel_draws_as_torch_does(
    head: str, dtype: torch.dtype, coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in greedy rows, in rows with other top-k, and in first frames. One row may differ by rounding."""
    monkeypatch.setattr(sampling, "runs_triton", lambda _: True)  # as on a GPU, also in the interpreter
    rows = 60 if INTERPRETED else 600
    logits, inputs, tokens = case_of(head, rows)
    logits = (logits + randn(rows, len(logits)).cpu()).to(DEVICE, dtype)
    logits = logits.round() if coarse else logits  # many are equal then, and rank by their tokens
    inputs.top_k[::3], inputs.top_k[1::3] = 0, 5
    inputs.sampling.temperature[::5], inputs.num_frames[::7] = 0.0, 0
    table = randn(len(logits[0]), 48, dtype=dtype)

    def call() -> Tensor:
        frames = torch.full((rows, BOOKS + 3), -7, device=DEVICE)
        first = sampling.sample_semantic(logits.clone(), table, frames, inputs, tokens)
        second = sampling.sample_code(logits.clone(), table, frames, inputs, 2)
        return torch.cat((frames, first, second), dim=1)

    ours, theirs = by_both(monkeypatch, sampling, call)

    assert (ours != theirs).any(1).sum() <= 1
    assert (ours[:, 2] == -7).all()


@pytest.mark.usefixtures("no_grad")
def test_every_request_has_its_own_top_k(tmp_path: Path) -> None:
    """The likeliest token alone is left with a top-k of 1, in all codebooks, and in second draws too."""
    stage = LanguageModel(build(tmp_path, {}, ras=RAS), slots=3, positions=40)
    for slot, (temperature, top_k) in enumerate([(0.0, 0), (1.0, 1), (1.0, 0)]):
        prompt = stage._model.prompt("Say this").items
        params = SamplingParams(temperature=temperature, top_p=1.0, top_k=top_k)
        asked = Conditions(params, seed=1, utterance=0, max_steps=8, voice={}, text_start=3)
        begin = Begin(slot, 0, prompt, None, 0, 8, 1, context=0, consumes=len(prompt), conditions=asked)
        stage.begin([begin])
        stage.prefill([Prefill(slot, 0, len(prompt) - 1)])

    frames = np.stack([np.stack(stage.step([0, 1, 2], 1)().values)[:, 0] for _ in range(8)], axis=1)

    np.testing.assert_array_equal(frames[0], frames[1])
    assert (frames[0] != frames[2]).any()


@pytest.mark.long
@pytest.mark.parametrize("head", TOKENS)
def test_repeated_tokens_are_drawn_again_by_compiled_code(head: str) -> None:
    pytest.importorskip("numba", reason="numba has no wheels for this platform")
    from s1_mini.families.s1.kernels import frame
    from s1_mini.kernels.compiled.frame import state_of

    logits, inputs, tokens = case_of(head, DRAWS)
    parameters, counts = inputs.sampling, inputs.num_frames.cpu().numpy()
    tensors = inputs.window.history, parameters.repetition_penalty, *parameters[:2], parameters.uniforms, inputs.top_k
    state = frame.State(state_of()._replace(counts=counts), *(tensor.cpu().numpy() for tensor in tensors))
    rules = frame.Rules(*tokens[:3], NUM, tokens.restricted, False, True, *np.array(RAS[1:], np.float32))
    whole = np.repeat(logits.numpy()[None], DRAWS, axis=0)

    draw = frame._sample_token
    columns = torch.tensor([draw(whole[row], state, row, 0, tokens.restricted, rules) for row in range(DRAWS)])

    found = torch.where(columns == NUM, END, columns + FIRST) if tokens.restricted else columns
    assert_distributed(found, distribution(logits, inputs, tokens))

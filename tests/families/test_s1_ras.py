"""Top-k and repetition-aware sampling: in torch, in the GPU kernel, and compiled for a CPU.

`verify`, which test_audio8.py runs, compares probabilities and windows with the original's.

The kernel runs on a GPU or, where Triton is installed, in its interpreter (TRITON_INTERPRET=1, -m gpu).
"""

from __future__ import annotations

from pathlib import Path

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
from s1_mini.layers.randomness import uniforms
from s1_mini.types import SamplingParams
from tests.families.s1_room import build

RAS = Ras(window=10, temperature=1.3, top_p=0.95)
FIRST, NUM, END, BOOKS, DRAWS = 20, 48, 7, 3, 100_000  # 49 of the 71 tokens can be sampled
HEADS = {"restricted": (NUM + 1, True), "full": (FIRST + NUM + 3, False)}  # size of the head


def case_of(head: str, rows: int) -> tuple[Tensor, SamplingInputs, SemanticTokens]:
    """Logits [V], and rows with their own random numbers whose third frame may repeat one of four tokens."""
    size, restricted = HEADS[head]
    tokens = SemanticTokens(FIRST, FIRST + NUM - 1, END, restricted, NUM)
    logits = 1.5 * torch.randn(size, generator=torch.Generator().manual_seed(1))
    ranked = (logits[:-1] if restricted else logits[FIRST : FIRST + NUM]).argsort(descending=True) + FIRST
    history = torch.zeros(rows, RAS.window, BOOKS + 1, dtype=torch.int64)
    history[:, :4, 0] = torch.stack((ranked[0], ranked[2], ranked[-1], torch.tensor(END)))
    table = uniforms(7, 0, rows, BOOKS + 1).unsqueeze(1).expand(-1, 3, -1)
    *parameters, top_k, count = (torch.full((rows,), value, device=DEVICE) for value in (0.8, 0.9, 1.0, 14, 2))
    window = RepetitionWindow(history.to(DEVICE), is_fixed=False)
    inputs = SamplingInputs(SamplingTensors(*parameters, table.contiguous().to(DEVICE)), count, window, RAS, top_k)
    return logits, inputs, tokens


def distribution(logits: Tensor, inputs: SamplingInputs, tokens: SemanticTokens) -> Tensor:
    """P(x) = N(x) [x is not in the window] + N(window) H(x), over all tokens."""
    kept = [*range(FIRST, FIRST + NUM), END]
    whole = torch.full((1, FIRST + NUM), -torch.inf)
    whole[0, kept] = logits if tokens.restricted else logits[kept]
    sets = torch.tensor([[0.8, 0.9], RAS[1:]])
    normal, again = probabilities(whole.expand(2, -1), *sets.T, inputs.top_k[:2].cpu())
    token = torch.arange(FIRST + NUM)
    repeats = torch.isin(token, inputs.window.history[0, :, 0].cpu()) & (token >= FIRST)
    assert 0.2 < normal[repeats].sum() < 0.8
    return normal * ~repeats + normal[repeats].sum() * again


def assert_distributed(found: Tensor, expected: Tensor) -> None:
    assert (found.bincount(minlength=len(expected)) / len(found) - expected).abs().max() < 0.007


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=needs_gpu)])
def test_repeated_tokens_are_drawn_again(head: str, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "runs_triton", lambda _: by_kernel)
    logits, inputs, tokens = case_of(head, DRAWS)
    frames = torch.zeros(DRAWS, BOOKS + 3, dtype=torch.int64, device=DEVICE)

    sampling.sample_semantic(logits.to(DEVICE).repeat(DRAWS, 1), randn(NUM, 8), frames, inputs, tokens)

    assert_distributed(frames[:, 0].cpu(), distribution(logits, inputs, tokens))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs an NVIDIA GPU, or Triton's interpreter")
@pytest.mark.parametrize("head", HEADS)
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
@pytest.mark.parametrize("head", HEADS)
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

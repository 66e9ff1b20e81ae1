"""Every S1 kernel matches its plain reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_checks import assert_close, by_both, dtypes, needs_gpu, randn
from s1_mini.families.codec_lm.model import SamplingTensors
from s1_mini.families.s1.kernels import sampling
from s1_mini.families.s1.kernels.sampling import WINDOW, RepetitionWindow
from s1_mini.kernels import positions

pytestmark = needs_gpu

UNWRITTEN = -7


def some(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape)))


def inputs_of(rows: int, vocabulary: int, mode: str) -> sampling.SamplingInputs:
    """Rows of different lengths and sampling parameters, with tokens of the vocabulary as history."""
    window = RepetitionWindow((some(rows, WINDOW, 4) * vocabulary).long(), mode == "fixed")
    count = torch.arange(rows, device="cuda") % 40
    random = some(rows, 3)
    parameters = SamplingTensors(
        random[:, 1].contiguous() * 1.5,
        random[:, 2].contiguous() * 0.9 + 0.1,
        1 + random[:, 0].contiguous(),
        some(rows, 41, 3),
    )
    return sampling.SamplingInputs(parameters, count, window)


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype, *, coarse: bool) -> Tensor:
    logits = randn(rows, vocabulary) * 3
    return (logits.round() if coarse else logits).to(dtype)  # many are equal then, and rank by their tokens


def differing_rows(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> int:
    """Count rows with different samples; one may differ, as a uniform number may fall between two tokens."""
    return int(((ours[0] != theirs[0]).any(1) | (ours[1] != theirs[1]).any(1)).sum())


@dtypes
@pytest.mark.parametrize("mode", ["upstream", "fixed"])
@pytest.mark.parametrize("restricted", [True, False])
@pytest.mark.parametrize("coarse", [False, True])
def test_a_semantic_token_is_sampled(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, mode: str, restricted: bool, coarse: bool
) -> None:
    rows, first = 200, 100
    tokens = sampling.SemanticTokens(first, first + 4095, 50, restricted, 4096)
    logits = logits_of(rows, 4097, dtype, coarse=coarse)
    logits[:5, -1 if restricted else 50] = 30.0  # they end, except the first, which has not generated a frame yet
    logits[7, 3], logits[8, 4] = float("nan"), float("inf")
    table, inputs = randn(4096, 48, dtype=dtype), inputs_of(rows, 4300, mode)

    def call() -> tuple[Tensor, Tensor]:
        frames = torch.full((rows, 6), UNWRITTEN, device="cuda")
        return frames, sampling.sample_semantic(logits.clone(), table, frames, inputs, tokens)

    ours, theirs = by_both(monkeypatch, sampling, call)

    sound = [row for row in range(rows) if row not in (7, 8)]
    assert differing_rows(*(tuple(part[sound] for part in parts) for parts in (ours, theirs))) <= 1
    assert (ours[0] != UNWRITTEN).tolist() == [[True, True, False, False, True, True]] * rows
    assert ours[0][:5, -2].tolist() == [0, 1, 1, 1, 1]
    assert ours[0][:, -1].tolist() == [int(row in sound) for row in range(rows)]


@dtypes
@pytest.mark.parametrize("vocabulary", [64, 1000, 1024, 4097])
@pytest.mark.parametrize("mode", ["upstream", "fixed"])
@pytest.mark.parametrize("coarse", [False, True])
def test_a_code_is_sampled(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, vocabulary: int, mode: str, coarse: bool
) -> None:
    rows = 200
    logits = logits_of(2 * rows, vocabulary, dtype, coarse=coarse)[1::2]
    table, inputs = randn(vocabulary, 48, dtype=dtype), inputs_of(rows, vocabulary, mode)

    def call() -> tuple[Tensor, Tensor]:
        frames = torch.full((rows, 6), UNWRITTEN, device="cuda")
        return frames, sampling.sample_code(logits, table, frames, inputs, 2)

    ours, theirs = by_both(monkeypatch, sampling, call)

    assert differing_rows(ours, theirs) <= 1
    assert (ours[0] != UNWRITTEN).tolist() == [[False, False, False, True, False, False]] * rows


@dtypes
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_positions_are_embedded(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, scaled: bool, marked: bool
) -> None:
    tables = positions.Embedding(randn(50, 300, dtype=dtype), randn(3 * 8, 300, dtype=dtype), (20, 29), scaled)
    tokens = torch.tensor([[3, 1, 2, 7], [20, 0, 5, 7], [29, 7, 7, 7], [30, 1, 1, 1]], device="cuda")
    position = torch.tensor([0, 5, 3, 8] if marked else [0, 5, -1, 8], device="cuda")
    active = torch.tensor([True, True, False, True], device="cuda") if marked else None
    table = randn(9, 32, 2)

    ours, theirs = by_both(
        monkeypatch, positions, lambda: positions.embed_positions(tokens, position, active, 77, tables, table)
    )

    assert_close(ours[0], theirs[0], dtype)
    assert ours[1].tolist() == theirs[1].tolist() == [0, 5, 77, 8]
    assert torch.equal(ours[2], theirs[2])


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_a_frame_is_stored(monkeypatch: pytest.MonkeyPatch, skipped: int, turned: bool) -> None:
    frame = torch.arange(4 * 13, device="cuda")
    frame = frame.view(13, 4).t() if turned else frame.view(4, 13)
    active = torch.tensor([True, False, True, True, True], device="cuda")

    def store() -> Tensor:
        history, tokens = torch.zeros(5, 16, 11, device="cuda").long(), torch.zeros(5, 11, device="cuda").long()
        position, count = torch.tensor([9, 8, 7, 6, 5], device="cuda"), torch.tensor([0, 5, 17, 1, 3], device="cuda")
        positions.store_frame(frame, history, tokens, position, count, active, skipped)
        return torch.cat([part.flatten() for part in (history, tokens, position, count)])

    ours, theirs = by_both(monkeypatch, positions, store)

    assert torch.equal(ours, theirs)

"""Every kernel of Qwen3-TTS matches its plain reference.

Runs on a GPU or, where Triton is installed, in its interpreter (TRITON_INTERPRET=1, -m gpu), which knows float32 only.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_checks import DEVICE, INTERPRETED, by_both, needs_kernels, randn
from s1_mini.families.qwen3.kernels import sampling
from s1_mini.families.qwen3.kernels.sampling import CodeSampling, FirstCode, sample_code
from s1_mini.kernels import positions

pytestmark = needs_kernels
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
ROWS, BOOKS, FRAMES, UNWRITTEN = (12 if INTERPRETED else 200), 4, 41, -7


@pytest.fixture(autouse=True)
def _kernels_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels in the interpreter as on a GPU."""
    if INTERPRETED:
        for module in (sampling, positions):
            monkeypatch.setattr(module, "runs_triton", lambda _: True)


def some(*shape: int) -> Tensor:
    return torch.rand(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(sum(shape)))


def parameters(vocabulary: int, *, top_p: float | None = None) -> CodeSampling:
    """Rows of different lengths and parameters: some sample all codes, some are greedy."""
    random, row = some(ROWS, 3), torch.arange(ROWS, device=DEVICE)
    top_k = (random[:, 0] * 60).long().clamp_max(vocabulary)
    return CodeSampling(
        torch.where(row % 5 == 0, 0.0, random[:, 1] * 1.5),
        torch.where(row % 3 == 0, 0, top_k),
        torch.where(row % 2 == 0, 1.0, random[:, 2] * 0.9 + 0.1)
        if top_p is None
        else torch.full_like(random[:, 0], top_p),
        some(ROWS, FRAMES + 1, BOOKS),
        row % FRAMES,
    )


def differing_rows(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> int:
    """Count rows with different samples; one may differ, as a uniform number may fall between two codes."""
    return int(sum((a != b).flatten(1).any(1) for a, b in zip(ours, theirs, strict=True)).count_nonzero())


def logits_of(vocabulary: int, dtype: torch.dtype, *, coarse: bool) -> Tensor:
    logits = randn(ROWS, vocabulary) * 3
    return (logits.round() if coarse else logits).to(dtype)  # many are equal then


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [33, 2049])
@pytest.mark.parametrize("coarse", [False, True])
def test_a_first_code_is_sampled(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, vocabulary: int, coarse: bool
) -> None:
    logits, embeddings = logits_of(vocabulary, dtype, coarse=coarse), randn(vocabulary - 1, 48, dtype=dtype)
    logits[:6, -1] = 40.0  # they end, unless they have fewer than two frames
    broken = [] if INTERPRETED else [7]  # numpy, which interprets, warns of infinity
    logits[broken, 3] = torch.inf
    seen = (some(ROWS, vocabulary - 1) < 0.3).to(torch.uint8)
    first = FirstCode(1 + some(ROWS), seen, (some(ROWS, FRAMES + 1) * 100).long())
    rules = parameters(vocabulary, top_p=1.0)

    def call() -> tuple[Tensor, Tensor]:
        frames = torch.full((ROWS, BOOKS + 3), UNWRITTEN, device=DEVICE)
        return sample_code(logits.clone(), embeddings, frames, rules, 0, first), frames

    ours, theirs = by_both(monkeypatch, sampling, call)

    sound = [row for row in range(ROWS) if row not in broken]
    assert differing_rows(*(tuple(part[sound] for part in parts) for parts in (ours, theirs))) <= 1
    assert (ours[1] != UNWRITTEN).tolist() == [[True, True, False, False, False, True, True]] * ROWS
    assert ours[1][:6, -2].tolist() == [0, 0, 1, 1, 1, 1]
    assert ours[1][:, -1].tolist() == [int(row not in broken) for row in range(ROWS)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [32, 2048])
@pytest.mark.parametrize("coarse", [False, True])
def test_a_later_code_is_sampled(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, vocabulary: int, coarse: bool
) -> None:
    logits, embeddings = logits_of(vocabulary, dtype, coarse=coarse), randn(vocabulary, 48, dtype=dtype)
    rules = parameters(vocabulary)

    def call() -> tuple[Tensor, Tensor]:
        frames = torch.full((ROWS, BOOKS + 3), UNWRITTEN, device=DEVICE)
        return sample_code(logits, embeddings, frames, rules, 2, None), frames

    ours, theirs = by_both(monkeypatch, sampling, call)

    assert differing_rows(ours, theirs) <= 1
    assert (ours[1] != UNWRITTEN).tolist() == [[False, False, False, True, False, False, False]] * ROWS


def test_a_frame_is_stored_with_its_first_code(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = torch.arange(4 * 8, device=DEVICE).view(4, 8) % 16
    active = torch.tensor([True, False, True, True, True], device=DEVICE)

    def store() -> Tensor:
        tokens, seen = torch.zeros(5, 6, device=DEVICE).long(), torch.zeros(5, 16, device=DEVICE, dtype=torch.uint8)
        position, count = torch.tensor([9, 8, 7, 6, 5], device=DEVICE), torch.tensor([0, 5, 17, 1, 3], device=DEVICE)
        positions.store_frame(frame, None, tokens, position, count, active, seen=seen)
        return torch.cat([part.flatten().long() for part in (tokens, position, count, seen)])

    ours, theirs = by_both(monkeypatch, positions, store)

    assert torch.equal(ours, theirs)


def test_positions_are_embedded_with_rows_after_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = positions.Embedding(randn(50, 300), randn(3 * 8 + 5, 300), (0, 2**62), other_rows=5)
    tokens = torch.tensor([[3, 1, 2, 7], [20, 25, 5, 7], [29, 7, 28 - 8, 28 - 16]], device=DEVICE)
    position = torch.tensor([0, 5, 3], device=DEVICE)
    table = randn(9, 32, 2)

    ours, theirs = by_both(
        monkeypatch, positions, lambda: positions.embed_positions(tokens, position, None, 77, tables, table)
    )

    rows = tables.code_table[[7, 28, 28]]
    torch.testing.assert_close(theirs[0][2], tables.token_table[29] + rows.sum(0))
    torch.testing.assert_close(ours[0], theirs[0])

"""The repetition penalty's window, in both modes, matches the original's own bookkeeping."""

from __future__ import annotations

import torch

from s1_mini.families.s1.kernels.sampling import WINDOW, RepetitionWindow
from s1_mini.kernels.positions import store_frame

NUM_CODEBOOKS = 3


def frames(count: int) -> torch.Tensor:
    """Frame t is [1000 + t, t, t, t]: every entry identifies its frame."""
    codes = torch.arange(1, count + 1).unsqueeze(1).expand(count, NUM_CODEBOOKS)
    return torch.cat((codes[:, :1] + 1000, codes), dim=1)


def empty(rows: int, mode: str) -> RepetitionWindow:
    return RepetitionWindow(torch.zeros(rows, WINDOW, NUM_CODEBOOKS + 1, dtype=torch.int64), mode == "fixed")


def windows(mode: str, count: int) -> RepetitionWindow:
    window = empty(1, mode)
    for index, frame in enumerate(frames(count)):
        record(window, frame.unsqueeze(0), torch.tensor([index]), torch.tensor([True]))
    return window


def record(window: RepetitionWindow, frame: torch.Tensor, count: torch.Tensor, active: torch.Tensor) -> None:
    tokens, position = torch.zeros_like(frame), torch.zeros_like(count)
    store_frame(frame, window.history, tokens, position, count, active, window.skipped)


def penalised(pair: tuple[torch.Tensor, torch.Tensor]) -> list[int]:
    tokens, valid = pair
    return sorted(set(tokens[valid].tolist()))


def test_upstream_mode_reproduces_the_original_frame_by_frame() -> None:
    """Its `previous_tokens` table, its window and its column-for-row slip (decode_n_tokens at d3df505)."""
    generated = frames(40)
    for count in range(1, 40):
        table = torch.zeros(NUM_CODEBOOKS + 1, 64, dtype=torch.int64)
        table[:, : count - 1] = generated[1:count].T
        index = count - 1
        window = table[:, :WINDOW] if index < WINDOW else table[:, index - WINDOW : index]

        ours = windows("upstream", count)

        now = torch.tensor([count])
        assert penalised(ours.semantic_tokens(now)) == sorted(set(window[:, 0].tolist())), count
        for codebook in range(NUM_CODEBOOKS):
            assert penalised((ours.codes(codebook, len(now)), ours.recorded_frames(now))) == sorted(
                set(window[codebook + 1].tolist())
            ), count


def test_fixed_mode_penalises_the_last_sixteen_frames_only() -> None:
    for count in (0, 1, 5, 16, 17, 40):
        ours, generated, now = windows("fixed", count), frames(count)[-WINDOW:], torch.tensor([count])

        assert penalised(ours.semantic_tokens(now)) == sorted(generated[:, 0].tolist())
        assert penalised((ours.codes(1, len(now)), ours.recorded_frames(now))) == sorted(generated[:, 2].tolist())


def test_the_first_frame_is_sampled_without_penalty() -> None:
    for mode in ("upstream", "fixed"):
        ours, now = windows(mode, 0), torch.tensor([0])

        assert (
            penalised(ours.semantic_tokens(now))
            == penalised((ours.codes(0, len(now)), ours.recorded_frames(now)))
            == []
        )


def test_idle_rows_record_no_history() -> None:
    window = empty(2, "fixed")

    record(window, torch.full((2, 4), 7), torch.tensor([0, 0]), torch.tensor([True, False]))

    assert window.history[0].sum() == 4 * 7
    assert window.history[1].sum() == 0

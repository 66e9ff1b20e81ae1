"""The repetition penalty's window, in both modes, matches the original's own bookkeeping."""

from __future__ import annotations

import torch

from s1_mini.families.s1.kernels.columns import take_frame
from s1_mini.families.s1.kernels.draw import WINDOW, RepetitionWindow

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
    column, position = torch.zeros_like(frame), torch.zeros_like(count)
    take_frame(frame, window.history, column, position, count, active, window.skipped)


def looked_at(pair: tuple[torch.Tensor, torch.Tensor]) -> list[int]:
    tokens, valid = pair
    return sorted(set(tokens[valid].tolist()))


def test_upstream_mode_reproduces_the_original_frame_by_frame() -> None:
    """Its `previous_tokens` table, its window and its column-for-row slip (decode_n_tokens at d3df505)."""
    made = frames(40)
    for count in range(1, 40):
        table = torch.zeros(NUM_CODEBOOKS + 1, 64, dtype=torch.int64)
        table[:, : count - 1] = made[1:count].T
        index = count - 1
        window = table[:, :WINDOW] if index < WINDOW else table[:, index - WINDOW : index]

        ours = windows("upstream", count)

        now = torch.tensor([count])
        assert looked_at(ours.main_tokens(now)) == sorted(set(window[:, 0].tolist())), count
        for codebook in range(NUM_CODEBOOKS):
            assert looked_at((ours.codes(codebook, len(now)), ours.counted(now))) == sorted(
                set(window[codebook + 1].tolist())
            ), count


def test_fixed_mode_looks_at_the_last_sixteen_frames_and_at_nothing_else() -> None:
    for count in (0, 1, 5, 16, 17, 40):
        ours, made, now = windows("fixed", count), frames(count)[-WINDOW:], torch.tensor([count])

        assert looked_at(ours.main_tokens(now)) == sorted(made[:, 0].tolist())
        assert looked_at((ours.codes(1, len(now)), ours.counted(now))) == sorted(made[:, 2].tolist())


def test_the_first_frame_is_drawn_without_penalty() -> None:
    for mode in ("upstream", "fixed"):
        ours, now = windows(mode, 0), torch.tensor([0])

        assert looked_at(ours.main_tokens(now)) == looked_at((ours.codes(0, len(now)), ours.counted(now))) == []


def test_idle_rows_record_no_history() -> None:
    window = empty(2, "fixed")

    record(window, torch.full((2, 4), 7), torch.tensor([0, 0]), torch.tensor([True, False]))

    assert window.history[0].sum() == 4 * 7
    assert window.history[1].sum() == 0

"""Prompts read the keys and values of a tile of rows once, and match the attention of each row alone.

Runs on a GPU or, where Triton is installed, in its interpreter (TRITON_INTERPRET=1, -m gpu).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_checks import DEVICE, assert_close, needs_kernels
from s1_mini.kernels import decode_attention
from s1_mini.kernels.decode_attention import step_attention, used_positions
from s1_mini.kernels.rope import HeadNorms

pytestmark = needs_kernels

GROUPS, SIZE = (8, 128) if DEVICE == "cuda" else (2, 32)
SPAN, SLOTS = 200, 5
# The parts of prompts in a call: slot, start, stop. A slot may have several parts, side by side or not.
CALLS = {
    "whole prompts": [(3, 0, 130), (0, 0, 7), (1, 0, 40)],
    "short prompts, several in a tile": [(slot, 0, 2 + slot) for slot in range(SLOTS)],
    "the ends of prompts": [(2, 90, 131), (4, 180, SPAN - 1), (0, 64, 65)],
    "parts in any order": [(1, 0, 20), (2, 0, 9), (1, 20, 43), (2, 9, 10), (1, 43, 70)],
}
if DEVICE == "cuda":
    FORMATS = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float8_e4m3fn)]
else:  # the interpreter knows float32 only
    FORMATS = [(torch.float32, torch.float32)]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shared", [2, 3])
@pytest.mark.parametrize("formats", FORMATS)
def test_prompts_attend_as_their_rows_do_alone(
    call: str, shared: int, formats: tuple[torch.dtype, torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, padding = torch.Generator().manual_seed(3), 5
    dtype, kv_dtype = formats

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    if kv_dtype.itemsize == 1 and (DEVICE == "cpu" or torch.cuda.get_device_capability() < (8, 9)):
        pytest.skip("needs a GPU with fp8")
    places = [(slot, at) for slot, start, stop in CALLS[call] for at in range(start, stop)] + padding * [(0, -1)]
    slots, position = (torch.tensor(part, device=DEVICE) for part in zip(*places, strict=True))
    target = torch.where(position < 0, SPAN, position)
    qkv, rope = randn(len(places), (shared + 2) * GROUPS * SIZE), randn(len(places), SIZE // 2, 2).float()
    norms = HeadNorms(randn(SIZE), randn(SIZE), 1e-6)
    cache = [randn(SLOTS, GROUPS, SPAN + 1, SIZE).to(kv_dtype) for _ in range(2)]
    mask = (torch.arange(SPAN, device=DEVICE) <= position.clamp_min(0).unsqueeze(1))[:, None, None]

    def attend(*, is_prompt: bool) -> Tensor:
        copies = [each.clone() for each in cache]
        where = {"span": SPAN, "mask": mask, "slots": slots, "is_prompt": is_prompt}
        return step_attention(qkv, *copies, target, position, rope, norms, **where)[:-padding]

    theirs = attend(is_prompt=False)
    assert DEVICE == "cpu" or used_positions(position, SPAN, SIZE) is None
    monkeypatch.setattr(decode_attention, "runs_triton", lambda _: True)
    ours = attend(is_prompt=True)

    assert_close(ours, theirs, dtype)

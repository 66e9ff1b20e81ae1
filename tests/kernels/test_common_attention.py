"""Rows that share a prefix read it once, from their leader's slot, and match unshared attention.

Runs on a GPU or, where Triton is installed, in its interpreter (TRITON_INTERPRET=1, -m gpu).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernel_checks import DEVICE, assert_close, needs_kernels
from s1_mini.kernels import common_attention, decode_attention
from s1_mini.kernels.backend import batch_invariance
from s1_mini.kernels.common_attention import CommonPrefixes
from s1_mini.kernels.rope import HeadNorms
from s1_mini.layers.staging import Writes
from s1_mini.runtime.rows import SharedPrefixes

pytestmark = needs_kernels

HEADS, GROUPS, SIZE = (16, 8, 128) if DEVICE == "cuda" else (4, 2, 32)
SPAN = 320
formats = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32])
orders = pytest.mark.parametrize("ordered", [False, True])


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep rows in one part however few there are, and run kernels wherever Triton runs."""
    monkeypatch.setattr(decode_attention, "PROGRAMS", 1)
    for module in (decode_attention, common_attention):
        monkeypatch.setattr(module, "runs_triton", lambda _: True)
    if DEVICE == "cpu":  # the interpreter knows float32 only, but can use the tiles of bfloat16
        plain = common_attention._shape
        monkeypatch.setattr(common_attention, "_shape", lambda shared, _: plain(shared, torch.bfloat16))


@dataclass
class Room:
    """Active slots, each with a voice (0: none shared) whose prefix it holds, and the inputs of a step."""

    voices: list[int]
    dtype: torch.dtype
    lengths: dict[int, int]  # positions of a voice's prefix
    span: int = SPAN  # above all positions of the rows in a step

    def __post_init__(self) -> None:
        rows, self.made = len(self.voices), torch.Generator().manual_seed(7)
        self.qkv, self.rope = self.randn(rows, (HEADS + 2 * GROUPS) * SIZE), self.randn(rows, SIZE // 2, 2).float()
        self.keys, self.values = (self.randn(rows, GROUPS, SPAN + 1, SIZE) for _ in range(2))
        self.norms = HeadNorms(self.randn(SIZE), self.randn(SIZE), 1e-6)
        self.position = torch.tensor([self.length(row) + 17 * row % 70 for row in range(rows)], device=DEVICE)
        tables = common_attention.allocate_common(rows, HEADS, GROUPS, SIZE, self.qkv)
        assert tables is not None
        self.shared, self.prefixes = (
            SharedPrefixes(tables, Writes(self.qkv.device)),
            {voice: torch.zeros(1) for voice in self.lengths},
        )
        for row in range(rows):
            self.join(row, self.voices[row])

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.made).to(DEVICE, self.dtype)

    def length(self, row: int) -> int:
        return self.lengths.get(self.voices[row], 0)

    def join(self, row: int, voice: int) -> None:
        """Start a slot with its voice's prefix copied from another slot."""
        self.voices[row] = voice
        self.shared.forget(row)
        if not voice:
            return
        first, length = self.voices.index(voice), self.lengths[voice]
        for each in (self.keys, self.values):
            each[row, :, :length] = each[first, :, :length].clone()
        self.shared.hold(row, self.prefixes[voice], length)

    def step(self, common: CommonPrefixes | None, rows: Tensor | None = None) -> Tensor:
        """Run attention for all or some rows; if `common`, keys and values of group members must not be read."""
        keys, values = self.keys.clone(), self.values.clone()
        if common is not None:
            for leader, length, *members in common.groups.tolist():
                for member in members if length else []:
                    if member not in (leader, -1):
                        keys[member, :, :length] = values[member, :, :length] = float("nan")
        chosen = slice(None) if rows is None else rows
        return decode_attention.step_attention(
            self.qkv[chosen],
            keys[chosen],
            values[chosen],
            self.position[chosen],
            self.position[chosen],
            self.rope[chosen],
            self.norms,
            span=self.span,
            mask=None,
            common=common,
        )

    def together(self) -> Tensor:
        self.shared.write(len(self.voices))
        self.shared.writes.run()
        return self.step(self.shared.tables)


def by_torch(room: Room, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Return plain torch's output, each row reading its own copy."""
    with monkeypatch.context() as patch:
        patch.setattr(decode_attention, "runs_triton", lambda _: False)
        patch.setattr("s1_mini.kernels.rope.runs_triton", lambda _: False)
        mask = (torch.arange(SPAN, device=DEVICE) <= room.position.unsqueeze(1))[:, None, None]
        keys, values = room.keys.clone(), room.values.clone()
        return decode_attention.step_attention(
            room.qkv, keys, values, room.position, room.position, room.rope, room.norms, span=SPAN, mask=mask
        )


def ragged(dtype: torch.dtype) -> Room:
    """One voice with more rows than a group, one with few, one with too few, one too short, and unshared rows."""
    shape = common_attention._shape(HEADS // GROUPS, dtype)
    most = shape.lines // (HEADS // GROUPS) + 1
    voices = [1] * most + [2] * 5 + [3] * 2 + [4] * 5 + [0] * 4
    mixed = [voices[place * 11 % len(voices)] for place in range(len(voices))]
    assert sorted(mixed) == sorted(voices)
    return Room(mixed, dtype, {1: 150, 2: 231, 3: 100, 4: 40})


@formats
@orders
def test_groups_of_any_kind_give_what_each_row_gives_by_torch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, ordered: bool
) -> None:
    with batch_invariance(ordered):
        room = ragged(dtype)
        ours = room.together()

    assert len({start for start in room.shared.tables.starts.tolist() if start}) == 2
    assert_close(ours, by_torch(room, monkeypatch), dtype)


@formats
def test_in_batch_invariant_mode_a_row_has_the_same_bits_with_and_without_sharing(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    if dtype == torch.float32 and DEVICE == "cuda":
        pytest.skip("float32 has no such order on a GPU: the engine refuses")
    with batch_invariance():
        room = ragged(dtype)
        shared, apart = room.together(), room.step(None)
        assert torch.equal(shared, apart)
        monkeypatch.setattr(decode_attention, "PROGRAMS", 256)  # alone, a row is split into several parts
        for row in (0, 1, 9):
            assert torch.equal(room.step(None, torch.tensor([row], device=DEVICE))[0], shared[row])


@formats
@orders
def test_a_group_that_rests_may_have_more_in_common_than_all_that_step_attend_to(
    dtype: torch.dtype, ordered: bool
) -> None:
    voices = [2, 1, 1, 1, 1, 2, 2, 2]  # the rows of voice 1 are idle
    with batch_invariance(ordered):
        room = Room(voices, dtype, {1: 224, 2: 64})
        apart = room.step(None)
        room.span = 128
        ours = room.together()

    stepping = torch.tensor(voices) == 2
    assert room.shared.tables.starts.tolist() == [64, 224, 224, 224, 224, 64, 64, 64]
    if ordered and (dtype == torch.bfloat16 or DEVICE == "cpu"):  # float32 has no batch-invariant mode on a GPU
        assert torch.equal(ours[stepping], apart[stepping])
    else:
        assert_close(ours[stepping], apart[stepping], dtype)


@formats
@orders
def test_rows_join_and_their_leader_leaves(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, ordered: bool) -> None:
    with batch_invariance(ordered):
        room = Room([1] * 6 + [0] * 3, dtype, {1: 96, 2: 64})
        room.together()
        assert room.shared.tables.groups[0, :2].tolist() == [0, 96]

        for row in (6, 7):
            room.join(row, 1)
        room.voices[0] = 0
        room.shared.forget(0)
        for each in (room.keys, room.values):
            each[0] = room.randn(GROUPS, SPAN + 1, SIZE)  # another slot's

        ours = room.together()
        assert room.shared.tables.groups[0, :2].tolist() == [1, 96]
        assert room.shared.tables.starts.tolist() == [0] + [96] * 7 + [0]
        room.position[6:8] += 96
        assert_close(room.together(), by_torch(room, monkeypatch), dtype)
        assert ours.isfinite().all()

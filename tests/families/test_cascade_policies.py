"""Available input decides when a cascade window runs, not where it lies; skipped computation changes no window."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s1_mini.core.stage import Progress, Spec, StagePolicy
from s1_mini.families.cascade.config import Numbers
from s1_mini.families.cascade.policies import (
    COARSE,
    FINE,
    SEMANTIC,
    CoarsePolicy,
    CoarseWindows,
    FinePolicy,
    FineWindow,
)
from tests.core.test_policies import units_of

NUMBERS = Numbers()
CODES = Spec("int64")


def coarse(*, merges: bool = True, begins_early: bool = True) -> CoarsePolicy:
    windows = CoarseWindows(NUMBERS, merges=merges)
    return CoarsePolicy(
        name="coarse", input=CODES, output=CODES, slots=4, holds="unit", windows=windows, begins_early=begins_early
    )


FINE_POLICY = FinePolicy(name="fine", input=CODES, output=CODES, slots=4, numbers=NUMBERS)


@st.composite
def facts(draw: st.DrawFn) -> Mapping[str, int]:
    semantic = draw(st.sampled_from([0, *range(1, 210), 209]))
    codes = max(0, round(semantic * NUMBERS.ratio) - 2)
    return {SEMANTIC: semantic, COARSE: codes, FINE: draw(st.sampled_from([0, 1, 150, 511, 512]))}


@pytest.mark.parametrize("policy", [coarse(), coarse(merges=False), FINE_POLICY], ids=["merged", "single", "fine"])
@given(
    total=st.one_of(st.integers(0, 768), st.sampled_from([1024, 1025, 1152])),
    arrivals=st.lists(st.integers(1, 90), max_size=40),
    told=facts(),
)
def test_windows_do_not_depend_on_when_their_items_come(
    policy: StagePolicy, total: int, arrivals: list[int], told: Mapping[str, int]
) -> None:
    units = units_of(policy, total, arrivals, "balanced", told)

    assert units == units_of(policy, total, [total], "balanced", told)
    assert sum(unit.consumes for unit in units) == total
    assert all(0 <= unit.start <= unit.stop <= total for unit in units)


@given(total=st.integers(1, 768), told=facts(), merges=st.booleans())
def test_coarse_windows_make_all_codes_and_none_is_longer_than_the_model(
    total: int, told: Mapping[str, int], *, merges: bool
) -> None:
    units = units_of(coarse(merges=merges), total, [total], "balanced", told)

    assert sum(unit.steps for unit in units) == NUMBERS.num_coarse(total)
    assert all(unit.prefill + 1 + unit.steps - 1 <= 1024 for unit in units)


def test_without_a_voice_the_first_eleven_windows_are_one() -> None:
    units = units_of(coarse(), 768, [768], "balanced")

    assert [unit.steps for unit in units[:3]] == [660, 60, 60]
    assert [unit.prefill for unit in units[:3]] == [256, 886, 886]


@pytest.mark.parametrize(("window", "needed"), [(0, 47), (1, 67), (2, 87), (3, 107)])
def test_with_a_whole_voice_a_window_needs_47_tokens_and_20_for_each_before_it(window: int, needed: int) -> None:
    told = {SEMANTIC: 209, COARSE: 626}

    def unit_with(available: int) -> object:
        produced, consumed = 30 * window, round(60 * window / NUMBERS.ratio)
        return coarse().next_unit(Progress(available, False, consumed, produced, window, 768, "balanced", told))

    assert unit_with(needed - 1) is None
    assert unit_with(needed) is not None


@given(total=st.integers(1, 1600), history=st.sampled_from([0, 1, 150, 511, 512]))
def test_no_fine_window_recomputes_delivered_frames(total: int, history: int) -> None:
    units = units_of(FINE_POLICY, total, [total], "balanced", {FINE: history})
    given_out = history

    for number, unit in enumerate(units):
        window = FineWindow(NUMBERS, number, history, history + total, is_last=number + 1 == len(units))
        assert window.start <= window.fill
        assert given_out >= window.fill if number == 0 else window.fill >= given_out
        assert window.stop - window.start <= 1024
        given_out += unit.consumes

"""Process settings of a busy engine: a short thread switch interval, and loaded objects frozen for the collector."""

from __future__ import annotations

import gc
import sys

import pytest

from s1_mini.runtime.process import SWITCH_S, frozen, prepare_process


def test_a_prepared_process_lets_threads_take_turns_often() -> None:
    before = sys.getswitchinterval()
    try:
        prepare_process()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        sys.setswitchinterval(before)


def test_loaded_objects_are_frozen_within_the_block_only() -> None:
    loaded = [[number] for number in range(1000)]
    with frozen():
        assert gc.get_freeze_count() > len(loaded)
        assert not any(each is loaded for each in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(each is loaded for each in gc.get_objects())

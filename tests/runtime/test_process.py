"""A process whose engine has much to do: threads take turns often, and the collector passes over what is loaded."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from s1_mini.runtime.process import SWITCH_S, frozen

PREPARED = """
import sys
from s1_mini.runtime.process import prepare_process
prepare_process()
print(sys.getswitchinterval())
"""


def test_a_prepared_process_lets_threads_take_turns_often() -> None:
    done = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(SWITCH_S)


def test_what_is_loaded_is_frozen_within_the_block_alone() -> None:
    loaded = [[number] for number in range(1000)]
    with frozen():
        assert gc.get_freeze_count() > len(loaded)
        assert not any(each is loaded for each in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(each is loaded for each in gc.get_objects())

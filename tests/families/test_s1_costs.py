"""S1's costs are computed from its shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from s1_mini.codecs.causal.costs import stream_bytes
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.stream_state import StreamState
from s1_mini.config import EngineConfig
from s1_mini.runtime.loader import LoadedCheckpoint, load


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> LoadedCheckpoint:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu"))


def test_costs_are_those_of_the_checkpoint(speaker: LoadedCheckpoint) -> None:
    model = speaker.loaded.model
    step = speaker.sizes().stages["language_model"].step

    assert step(1, 65).num_bytes - step(1, 64).num_bytes == model.position_bytes
    assert step(4, 64).operations == 4 * step(1, 64).operations
    weights = 2 * step(1, 0).num_bytes - step(2, 0).num_bytes
    passes = model.num_codebooks - 1
    assert weights < model.num_bytes + (passes - 1) * sum(p.nbytes for p in model.network.fast_layers.parameters())


def test_the_cache_of_the_depth_transformer_is_counted_for_each_slot(speaker: LoadedCheckpoint) -> None:
    model = speaker.loaded.model

    one, two = (model.allocate(slots, 64).depth_cache for slots in (1, 2))

    counted = speaker.sizes().demands["language_model"].fixed_slot
    assert counted == two.keys.nbytes + two.values.nbytes - one.keys.nbytes - one.values.nbytes


def test_the_counted_state_of_a_stream_is_what_a_stream_allocates(speaker: LoadedCheckpoint) -> None:
    loaded = speaker.loaded
    state = StreamState()

    with torch.inference_mode():
        loaded.codec.push(torch.zeros(1, loaded.codec.num_codebooks, 1, dtype=torch.int64), state)

    assert stream_bytes(Dac(loaded.codec.config, encodes=False)) == sum(part.nbytes for part in state.save(0))


@pytest.mark.long
def test_counting_sizes_does_not_import_torchs_compiler() -> None:
    program = (
        "import sys\n"
        "from s1_mini.capacity.sizes import Formats\n"
        "from s1_mini.families.registry import FAMILIES, get_family\n"
        "for name in FAMILIES: get_family(name).sizes(None, Formats())\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

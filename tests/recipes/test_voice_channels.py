"""Training of the 24 kHz codec computes the same as the engine, and its kernels the same as plain sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from kernel_checks import needs_gpu
from recipes.voice import channels, passes
from recipes.voice.channels import ChannelsLast
from recipes.voice.codec import SpeechPool, initialise
from recipes.voice.sizes import CODECS
from recipes.voice.speech import write_utterances
from s1_mini.codecs.causal.layers import ResidualUnit
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.stream_state import NoState

CPU = torch.device("cpu")
SMALL = {
    **CODECS["fast"],
    "encoder_dim": 64,
    "encoder_rates": [3, 4],  # 128 channels run in kernels, 256 in compiled code
    "encoder_transformer_layers": [0, 0],
    "decoder_dim": 512,
    "decoder_rates": [4, 3],
    "input_dim": 16,
    "q_dim": 16,
    "q_n_head": 2,
    "q_n_layer": 1,
    "q_inter": 16,
    "q_window": 8,
}
each_format = pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])


def far(mine: Tensor, theirs: Tensor) -> float:
    mine, theirs = mine.detach().float(), theirs.detach().float()
    return float((mine - theirs).norm() / theirs.norm())


def filled(codec: Dac) -> Dac:
    torch.manual_seed(0)
    initialise(codec)
    for parameter in codec.parameters():
        if parameter.dim() <= 1:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    codec.prepare()
    return codec


def test_training_computes_what_the_engine_computes_and_its_gradients() -> None:
    codec = filled(Dac(DacConfig.from_json(SMALL)))
    halves = ChannelsLast(codec, compiles=False)
    waves, vectors = 0.1 * torch.randn(2, 1, 8 * codec.samples_per_frame), torch.randn(2, 16, 8)
    both = []
    for latents, sound in (
        (codec.latents(waves, NoState()), codec.sound(codec.quantizer.post_module(vectors, NoState()), NoState())),
        (halves.latents(waves), halves.synthesise(vectors)),
    ):
        codec.zero_grad()
        (latents.sin().sum() + sound.square().sum()).backward()
        gradients = {name: p.grad.clone() for name, p in codec.named_parameters() if p.grad is not None}
        both.append((latents, sound, gradients))
    (latents, sound, theirs), (ours, heard, gradients) = both
    assert far(ours, latents) < 1e-5
    assert far(heard, sound) < 1e-5
    assert gradients.keys() == theirs.keys()
    assert max(far(gradients[name], theirs[name]) for name in theirs) < 1e-3


def test_each_of_several_processes_reads_its_own_speech_and_together_they_read_all(tmp_path: Path) -> None:
    for shard in range(24):
        write_utterances(tmp_path / f"shard_00_{shard:05d}.npz", [(0, 0, np.zeros(2**shard, np.int16))])
    read = []
    for part in range(3):
        pool = SpeechPool(tmp_path, max_samples=2**24, device=CPU, part=part, parts=3)
        pool.refill()
        read.append(pool.num_samples)
    assert sum(read) == 2**24 - 1  # each power of two once
    assert all(read)


def by_both(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, inputs: list[Tensor], call: Callable[[], Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Kernel outputs, including the gradients of `inputs`, and those of plain sums."""
    found = []
    for _ in range(2):
        made = call()
        torch.manual_seed(1)
        given = torch.randn_like(made)
        found.append([made, *torch.autograd.grad(made, inputs, given)])
        monkeypatch.setattr(module, "runs_triton", lambda _: False)
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("dilation", [1, 9])
@pytest.mark.parametrize("width", [16, 24, 48, 128])
@each_format
class TestUnits:
    pytestmark = needs_gpu

    def test_the_kernels_of_a_residual_unit_match_torch(
        self, monkeypatch: pytest.MonkeyPatch, width: int, dilation: int, dtype: torch.dtype, most: float
    ) -> None:
        torch.manual_seed(0)
        layer = ResidualUnit(width, dilation)
        initialise(layer)
        layer.to("cuda")
        monkeypatch.setattr(channels, "_halved", lambda x: x)
        x = torch.randn(3, 1000, width, device="cuda").to(dtype).requires_grad_()
        pairs = by_both(monkeypatch, channels, [x, *layer.parameters()], lambda: channels.unit(x, layer))
        assert max(far(ours, theirs) for ours, theirs in pairs) < most


@each_format
class TestPasses:
    pytestmark = needs_gpu

    def test_the_kernel_of_a_leaky_rectifier_matches_torch(
        self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, most: float
    ) -> None:
        torch.manual_seed(0)
        x = torch.randn(3, 32, 41, 7, device="cuda").to(dtype, memory_format=torch.channels_last).requires_grad_()
        bias = torch.randn(32, device="cuda").requires_grad_()
        pairs = by_both(monkeypatch, passes, [x, bias], lambda: passes.leaky(x, bias))
        assert max(far(ours, theirs) for ours, theirs in pairs) < most

    def test_the_kernels_of_a_distance_match_torch(
        self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, most: float
    ) -> None:
        torch.manual_seed(0)
        mine = [torch.randn(2, 8, 5, size, device="cuda").to(dtype).requires_grad_() for size in (3, 901)]
        real = [torch.randn_like(one) for one in mine]
        pairs = by_both(monkeypatch, passes, mine, lambda: passes.distance(mine, real))
        assert max(far(ours, theirs) for ours, theirs in pairs) < most

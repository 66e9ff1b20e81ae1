"""The 24 kHz codec: each training stage saves a codec that the engine loads; the last stage changes no code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipes.voice import codec as codec_stage
from recipes.voice.codec import MIN_POOL_S, STAGES, CodecTraining
from recipes.voice.run import environments
from recipes.voice.sizes import CODECS
from recipes.voice.speech import write_utterances
from s1_mini.codecs.dac.weights import open_dac
from waiting import EVENTUALLY_S

CPU = torch.device("cpu")
RATE = 24_000
TINY = {
    **CODECS["fast"],
    "encoder_dim": 4,
    "encoder_rates": [4, 5],
    "encoder_transformer_layers": [0, 0],
    "decoder_dim": 16,
    "decoder_rates": [5, 4],
    "downsample_factor": [2],
    "input_dim": 16,
    "q_dim": 16,
    "q_n_head": 2,
    "q_n_layer": 1,
    "q_inter": 16,
    "q_window": 64,
    "n_codebooks": 2,
    "codebook_size": 16,
    "semantic_codebook_size": 16,
}


def tone(frequency: float, seconds: float, amplitude: float) -> torch.Tensor:
    return amplitude * torch.sin(2 * torch.pi * frequency * torch.arange(round(seconds * RATE)) / RATE)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(CODECS, "tiny", TINY)
    monkeypatch.setattr(codec_stage, "POOL_S", 90)
    monkeypatch.setattr(codec_stage, "SCALES", ((64, 10, 1.0), (256, 20, 1.0)))
    monkeypatch.setattr(codec_stage, "CROP_S", 0.05)
    (tmp_path / "speech").mkdir()
    wave = (tone(200.0, 61.0, 0.3) * torch.linspace(0, 40, 61 * RATE).sin() * 32767).to(torch.int16).numpy()
    write_utterances(tmp_path / "speech" / "shard_00.npz", [(0, 0, wave)])
    return tmp_path


def training(work: Path, name: str, **options: Any) -> CodecTraining:
    torch.manual_seed(0)
    stage = replace(STAGES[name], rows=2, breadth=1)
    made = CodecTraining(name, "tiny", work, stage, CPU, compiles=False, **options)
    made.resume()
    made.pool.wait(MIN_POOL_S * made.codec.sample_rate, 1.0)
    made.rate.fill_(1e-3)
    return made


def test_every_stage_leaves_a_codec_that_the_engine_opens(work: Path) -> None:
    for name in STAGES:
        stage = training(work, name)
        stage.step()
        stage.move()
        stage.print_progress(1.0)
        stage.save()
        opened = open_dac(work, encodes=True)
        assert json.loads((work / "codec_config.json").read_text())["decoder_dim"] == 16
        with torch.inference_mode():
            codes = opened.encode(torch.randn(900).clamp(-1, 1))
            stage.fill(stage.mean, stage.mean)
            assert torch.allclose(opened.decode(codes[None]), stage.codec.decode(codes[None]), atol=1e-6)


def test_the_first_stage_brings_the_spectrum_nearer(work: Path) -> None:
    stage = training(work, "spectral")
    stage.rate.fill_(5e-3)
    output = []
    for _ in range(12):
        stage._report.zero_()
        stage.step()
        stage.move()
        output.append(stage._report[0].item())
    assert np.mean(output[-3:]) < 0.8 * np.mean(output[:3])


def test_training_quantises_as_the_engine_does(work: Path) -> None:
    stage = training(work, "adversarial")
    stage._lenient.zero_()
    exact = torch.randn(3, 16, 5)
    vectors, _ = stage._quantise(exact)
    quantizer = stage.codec.quantizer
    assert torch.allclose(vectors, quantizer.decode(quantizer.encode(exact)), atol=1e-5)


def test_the_last_stage_moves_the_decoder_and_no_code(work: Path) -> None:
    first = training(work, "adversarial")
    first.step()
    first.move()
    first.save()
    stage = training(work, "decoder")
    wave, codec = tone(300.0, 0.2, 0.3), stage.codec
    with torch.inference_mode():
        codes, sound = codec.encode(wave), codec.decode(codec.encode(wave)[None])
    for _ in range(3):
        stage.step()
        stage.move()
    with torch.inference_mode():
        assert torch.equal(codec.encode(wave), codes)
        assert not torch.allclose(codec.decode(codes[None]), sound, atol=1e-4)


def test_the_decoder_waits_for_new_discriminators_but_not_for_saved_ones(work: Path) -> None:
    stage = training(work, "decoder")
    stage.schedule = replace(stage.schedule, warm_up=1)
    before, judges = ([each.detach().clone() for each in some] for some in (stage.parameters, stage._judges))
    for steps in (0, stage.stage.patience):
        stage.steps = steps
        stage._set_rate()
        stage.step()
        stage.move()
    assert all(torch.equal(now, then) for now, then in zip(stage.parameters, before, strict=True))
    assert not any(torch.equal(now, then) for now, then in zip(stage._judges, judges, strict=True))
    stage.save()
    (work / "decoder.pt").unlink()

    second = training(work, "decoder")
    saved = stage.adversary.state_dict()
    assert all(torch.equal(each, saved[name].half().float()) for name, each in second.adversary.state_dict().items())
    for resumed in (second, training(work, "decoder")):  # the last one from the state of the second
        resumed.steps = 500
        resumed._set_rate()
        assert resumed.rate == pytest.approx(resumed.schedule.rate, rel=0.01)
        resumed.save()

    (work / "decoder.pt").unlink()
    (work / "adversary_1_1.safetensors").unlink()
    with pytest.raises(SystemExit, match=r"adversary_1_1.safetensors is missing"):
        training(work, "decoder")


class Constant(torch.nn.Module):
    """Losses whose gradient at every sample is 1."""

    loss_names = ("whisper", "speaker")

    def forward(self, _: torch.Tensor, decoded: torch.Tensor) -> torch.Tensor:
        return decoded.sum().expand(len(self.loss_names))


@pytest.mark.parametrize("sizes", [(1.0, 1.0, 1.0), (1e3, 1e-3, 10.0)])
def test_each_loss_has_its_share_of_the_gradient_whatever_its_size(work: Path, sizes: tuple[float, ...]) -> None:
    stage, output = training(work, "decoder", perceptual=Constant()), torch.zeros(2, 1, 100, requires_grad=True)
    weights = [torch.randn_like(output) for _ in range(3)]
    parts = [size * (weight * output).sum() for size, weight in zip(sizes, weights, strict=True)]
    expected = sum(share * weight / weight.norm() for share, weight in zip((0.2, 0.65, 0.15), weights, strict=True))
    torch.testing.assert_close(stage._balanced(parts, output), expected, rtol=1e-2, atol=1e-3)

    stage.step()  # and all three losses reach the decoder
    assert stage._norms.all()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in stage.parameters)


TOGETHER = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
import torch
from recipes.voice import codec as stage
from recipes.voice.loop import Group
stage.CODECS["tiny"] = json.loads(sys.argv[2])
stage.POOL_S, stage.CROP_S, stage.REVIVE_EVERY = 90, 0.05, 2
group, device = Group.join(torch.device("cpu"))
spectral = replace(stage.STAGES["spectral"], rows=1)
made = stage.CodecTraining("spectral", "tiny", Path(sys.argv[1]), spectral, device, group=group, compiles=False)
group.share([*made.parameters, *made.mean])
made.pool.wait(stage.MIN_POOL_S * made.codec.sample_rate, 1.0)
drawn = made.pool.batch(1, 100).abs().sum().item()
while made.steps < 3:  # however slow the machine is
    made.run(0.2)
weights = [float(p.detach().double().sum()) for p in made.parameters]
group.leave()
threads = Path("/proc/self/task")
named = sorted((task / "comm").read_text() for task in threads.iterdir()) if threads.exists() else []
remaining = [name for name in named if name.startswith(("gloo", "pt_"))]
Path(sys.argv[1], f"rank_{group.rank}.json").write_text(json.dumps([drawn, remaining, made.steps, made.spent, weights]))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="torch.distributed wants libuv, which torch lacks there")
def test_processes_that_train_together_have_one_codec_of_all_their_speech(work: Path) -> None:
    root = Path(__file__).parents[2]
    (work / "together.py").write_text(TOGETHER)
    shutil.copy(work / "speech" / "shard_00.npz", work / "speech" / "shard_04.npz")  # the other process's, by its name
    command = [sys.executable, str(work / "together.py"), str(work), json.dumps(TINY)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(root / "src"), str(root))), "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen(command, env=environment | output) for output in environments(2)]
    assert [process.wait(EVENTUALLY_S) for process in running] == [0, 0]
    (drawn, left, *first), (other, left_too, *second) = (
        json.loads((work / f"rank_{rank}.json").read_text()) for rank in range(2)
    )
    assert drawn != other
    assert first == second
    assert left == left_too == []  # a thread that outlives its process group may abort the process on exit
    assert (work / "codec.safetensors").exists()
